"""fedstrata's own algorithm: see docs/methods/strata.md, whose pseudo-code `algorithm` follows.

`candidates` makes groups of updates, `trial` decides by what their models do on other data, `trial_tasks` is what
clients are asked for it, `choices` lets single clients change their cluster, and `state` is what is remembered.
"""

from fedstrata.algorithms.strata.algorithm import Strata

__all__ = ["Strata"]
