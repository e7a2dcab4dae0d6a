"""Many clients as one tensor program."""

from fedstrata.engine.batched.clients import Batched, run_together

__all__ = ["Batched", "run_together"]
