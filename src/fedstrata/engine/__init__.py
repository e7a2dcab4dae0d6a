"""The engines, which simulate clients. No other package computes gradients."""

from fedstrata.engine.benchmark import choose_engine, engine_candidates
from fedstrata.engine.client_data import ClientData, SimulationSpec
from fedstrata.engine.client_store import RESIDUAL, ClientStore
from fedstrata.engine.loop import Loop
from fedstrata.engine.parallel import Parallel, Processes, Ray
from fedstrata.engine.registry import ENGINES, Engine, check_tf32, resolve_engine
from fedstrata.engine.vectorized import Vectorized, run_together

__all__ = [
    "ENGINES",
    "RESIDUAL",
    "ClientData",
    "ClientStore",
    "Engine",
    "Loop",
    "Parallel",
    "Processes",
    "Ray",
    "SimulationSpec",
    "Vectorized",
    "check_tf32",
    "choose_engine",
    "engine_candidates",
    "resolve_engine",
    "run_together",
]
