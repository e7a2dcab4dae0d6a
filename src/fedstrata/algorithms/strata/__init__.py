"""fedstrata's own algorithm: see docs/methods/strata-steps.md. `algorithm` has a round, and `state` what it remembers.

Before the steps, clients may choose another cluster (`reassignment`, `cluster_merging`), and `checked_updates` says
which updates count. Then:

1. `conclude_comparisons`: hold-out comparisons in one round (`holdout`, `holdout_tasks`) or over several ones
   (`multi_round`, `multi_round_tasks`). `split_decision` decides by the `split_gains`.
2. `split_tests`: permutation tests, which make a `group_tree` of what they confirm.
3. `start_comparisons`: of the `group_models` of these groups; where there are none, `outliers` are searched for. Before
   a comparison over several rounds, `class_mixes` looks for groups that differ in more than their classes.
4. `split_clusters`: what becomes of the clusters.
"""

from fedstrata.algorithms.strata.algorithm import Strata

__all__ = ["Strata"]
