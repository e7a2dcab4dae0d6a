"""The engines by name, and the devices on which each computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Protocol

import torch
from torch import Tensor

from fedstrata.base.errors import ExperimentError
from fedstrata.core import Clients
from fedstrata.engine.client_data import SimulationSpec
from fedstrata.engine.client_store import ClientStore
from fedstrata.engine.device import has_device
from fedstrata.engine.loop import Loop
from fedstrata.engine.parallel import Parallel, Processes, Ray
from fedstrata.engine.parallel.ray import MISSING
from fedstrata.engine.vectorized import Vectorized

DEVICES: Mapping[str, tuple[str, ...]] = {
    "loop": ("cpu", "cuda", "mps"),
    "batched": ("cpu", "cuda"),
    "processes": ("cpu",),
    "ray": ("cpu",),
}
"""The devices that each engine can use."""

_FIRST_WITH_TF32 = (8, 0)
"""The compute capability of the first GPUs whose tensor cores have TF32, NVIDIA's Ampere."""


class Engine(Clients, Protocol):
    """Simulated clients.

    Attributes:
        store: The tensors that the clients keep to themselves.
    """

    store: ClientStore

    def predict(self, models: Tensor, inputs: Tensor) -> Tensor:
        """Class probabilities (r, b, classes) that models (r, p) give inputs (b, ...), in evaluation mode."""

    def classify(self, models: Tensor, inputs: Tensor) -> Tensor:
        """The class of the largest output, (r, b), that models (r, p) give inputs (b, ...), in evaluation mode."""


ENGINES: Mapping[str, Callable[[SimulationSpec, str, int, int], Engine]] = {
    "loop": lambda spec, device, workers, timeout: Loop.at(spec, device=device),
    "batched": lambda spec, device, workers, timeout: Vectorized.at(spec, device=device),
    "processes": lambda spec, device, workers, timeout: Parallel(spec, Processes(spec, workers, timeout)),
    "ray": lambda spec, device, workers, timeout: Parallel(spec, Ray(spec, workers, timeout=timeout)),
}
"""The function that makes an engine, by the engine's name. It takes the network and the data, the device, the number of
workers (0 is one for each core), and the seconds without progress after which a worker is replaced (0 is never).
Nothing runs before the first plan."""


def resolve_engine(name: str, device: str) -> tuple[str, str]:
    """The name and the device of an engine, with "auto" as the device replaced.

    Args:
        name: A name in `ENGINES`, or "auto", which stays; `choose_engine` replaces it.
        device: The device: "cpu", "cuda", "mps" or "auto".

    Raises:
        ExperimentError: When the engine cannot compute on this device, or is not installed.
    """
    if name == "ray" and find_spec("ray") is None:
        raise ExperimentError(MISSING)
    able = [engine for engine, devices in DEVICES.items() if device in devices]
    if device != "auto" and name not in ("auto", *able):
        wanted = " or ".join(f'"{engine}"' for engine in able)
        raise ExperimentError(f'engine.device = "{device}": expected engine.name = {wanted}, found {name!r}; use "cpu"')
    if device != "auto" and not has_device(device):
        raise ExperimentError(
            f'engine.device = "{device}": expected a device of {device.upper()}, found none; use "cpu" or "auto"'
        )
    if name == "auto" or device != "auto":
        return name, device
    return name, "cuda" if name == "batched" and torch.cuda.is_available() else "cpu"


def check_tf32(precision: str, device: str) -> None:
    """Refuse TF32 where it is not certain to be used: everything else computes in float32 without a word.

    Args:
        precision: The precision of training.
        device: The device as it was asked for, "auto" included. If it is "cuda", there is one.

    Raises:
        ExperimentError: When the precision is "tf32", and the device is not "cuda" or has no TF32.
    """
    if precision != "tf32":
        return
    if device != "cuda":
        raise ExperimentError(
            f'engine.precision = "tf32": expected engine.device = "cuda", found "{device}"; set it, or use "float32"'
        )
    capability = torch.cuda.get_device_capability()
    if capability < _FIRST_WITH_TF32:
        raise ExperimentError(
            'engine.precision = "tf32": expected a GPU of compute capability 8.0 or more, found '
            f'{".".join(map(str, capability))}; use "float32"'
        )
