"""The only place that computes gradients."""

from fedstrata.engine.auto import Work, candidates, choose
from fedstrata.engine.batched import Batched, run_together
from fedstrata.engine.choice import ENGINES, Engine, settle
from fedstrata.engine.holdings import Holdings
from fedstrata.engine.loop import Loop
from fedstrata.engine.site import Site
from fedstrata.engine.store import Store
from fedstrata.engine.workers import Processes, Ray, Workers

__all__ = [
    "ENGINES",
    "Batched",
    "Engine",
    "Holdings",
    "Loop",
    "Processes",
    "Ray",
    "Site",
    "Store",
    "Work",
    "Workers",
    "candidates",
    "choose",
    "run_together",
    "settle",
]
