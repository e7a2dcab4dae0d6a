"""Many clients as one tensor program."""

from fedstrata.engine.batched.clients import Batched, run_together
from fedstrata.engine.batched.network import MEMORY

__all__ = ["MEMORY", "Batched", "run_together"]
