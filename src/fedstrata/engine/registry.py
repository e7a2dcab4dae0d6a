"""From the name of an engine to an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Protocol

import torch
from torch import Tensor

from fedstrata.core import Clients
from fedstrata.engine.client_store import ClientStore
from fedstrata.engine.parallel import Parallel, Processes, Ray
from fedstrata.engine.parallel.ray import MISSING
from fedstrata.engine.simulation_spec import SimulationSpec
from fedstrata.engine.vectorized import Vectorized
from fedstrata.errors import ExperimentError


class Engine(Clients, Protocol):
    """Simulated clients.

    Attributes:
        store: what lives on their devices.
    """

    store: ClientStore

    def predict(self, models: Tensor, inputs: Tensor) -> Tensor:
        """Class probabilities (r, b, classes) that models (r, p) give inputs (b, ...), in evaluation mode."""


ENGINES: Mapping[str, Callable[[SimulationSpec, str, int, int], Engine]] = {
    "loop": lambda spec, device, workers, timeout: spec.loop(),
    "batched": lambda spec, device, workers, timeout: Vectorized.at(spec, device=device),
    "processes": lambda spec, device, workers, timeout: Parallel(spec, Processes(spec, workers, timeout)),
    "ray": lambda spec, device, workers, timeout: Parallel(spec, Ray(spec, workers, timeout=timeout)),
}
"""Name -> what makes an engine: of the network and the data, the device, the number of workers, 0 for as many as
cores, and the seconds without progress after which a worker is replaced, 0 for never. Nothing runs before its first
plan."""


def resolve_engine(name: str, device: str) -> tuple[str, str]:
    """Where an engine computes, where that was left open; which one "auto" is takes a try, see `choose_engine`.

    Args:
        name: of `ENGINES`, or "auto".
        device: "cpu", "cuda" or "auto".

    Returns:
        Its name and its device.

    Raises:
        ExperimentError: when it cannot compute there, or is not installed.
    """
    if name == "ray" and find_spec("ray") is None:
        raise ExperimentError(MISSING)
    if device == "cuda" and name not in ("auto", "batched"):
        raise ExperimentError(f'engine.device = "cuda": expected engine.name = "batched", found {name!r}; use "cpu"')
    if device == "cuda" and not torch.cuda.is_available():
        raise ExperimentError('engine.device = "cuda": expected a device of CUDA, found none; use "cpu" or "auto"')
    if name == "auto" or device != "auto":
        return name, device
    return name, "cuda" if name == "batched" and torch.cuda.is_available() else "cpu"
