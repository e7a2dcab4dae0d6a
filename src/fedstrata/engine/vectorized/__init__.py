"""Many clients as one tensor program."""

from fedstrata.engine.vectorized.engine import Vectorized, run_together
from fedstrata.engine.vectorized.network import MEMORY, budget

__all__ = ["MEMORY", "Vectorized", "budget", "run_together"]
