"""Many clients as one tensor program."""

from fedstrata.engine.vectorized.engine import Vectorized, run_together, why_not_vectorized
from fedstrata.engine.vectorized.network import BATCH_BYTES, budget

__all__ = ["BATCH_BYTES", "Vectorized", "budget", "run_together", "why_not_vectorized"]
