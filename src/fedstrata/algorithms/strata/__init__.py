"""fedstrata's own algorithm: see docs/methods/strata-steps.md. `algorithm` has a round, and `state` what it remembers.

Before the steps, clients may choose another cluster (`reassignment`), and the checks of the problem say which updates
count. Then:

1. `comparisons`: hold-out comparisons in one round (`holdout`, `holdout_tasks`) or over several ones (`multi_round`)
   are concluded. `split_decision` decides.
2. `split_tests`: permutation tests, which make a tree of `groups` of what they confirm.
3. `comparisons` of the models of these groups begin; where there are none, `outliers` are searched for. Before a
   comparison over several rounds, `class_mixes` looks for groups that differ in more than their classes.
4. `split_clusters`: what becomes of the clusters.
"""

from fedstrata.algorithms.strata.algorithm import Strata

__all__ = ["Strata"]
