"""Many clients as one tensor program."""

from fedstrata.engine.batched.clients import Batched, run_together
from fedstrata.engine.batched.network import MEMORY, budget

__all__ = ["MEMORY", "Batched", "budget", "run_together"]
