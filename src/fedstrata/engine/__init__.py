"""The engines, which simulate clients. No other package computes gradients.

`registry` has their names, and chooses the fastest. `loop` trains one client after the other and defines what all must
equal, `parallel` has worker processes and Ray, and `vectorized` trains all clients as one program.

What they work on: `client_data` with its statistics, and the tensors that clients keep in the `client_store`. How they
train: `optimizer`, and `plain_networks` without autograd; `outside_state` is about networks that need care. Where:
`device`.

`shared_work` does once what several algorithms ask of the same clients. `work` is what a plan asks of a client that is
not simulated, and can train a model and evaluate one.
"""

from fedstrata.engine.client_data import ClientData, SimulationSpec
from fedstrata.engine.client_store import RESIDUAL, ClientStore
from fedstrata.engine.loop import Loop
from fedstrata.engine.parallel import Parallel, Processes, Ray
from fedstrata.engine.registry import (
    ENGINES,
    Engine,
    resolve_engine,
)
from fedstrata.engine.vectorized import Vectorized
from fedstrata.engine.work import Answer, Ask, Work, report_of

__all__ = [
    "ENGINES",
    "RESIDUAL",
    "Answer",
    "Ask",
    "ClientData",
    "ClientStore",
    "Engine",
    "Loop",
    "Parallel",
    "Processes",
    "Ray",
    "SimulationSpec",
    "Vectorized",
    "Work",
    "report_of",
    "resolve_engine",
]
