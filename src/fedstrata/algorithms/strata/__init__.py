"""fedstrata's own algorithm: see docs/strata-steps.md, and `algorithm` for the four steps of a round."""

from fedstrata.algorithms.strata.algorithm import Strata

__all__ = ["Strata"]
