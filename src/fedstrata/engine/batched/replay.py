"""Recording what a device does, and doing it again without asking Python: the only place that knows of CUDA.

PyTorch's rules for CUDA graphs: everything that is read or written stays where it is; nothing waits for the device;
the work runs on a stream of its own a few times before it is recorded there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import cache, partial

import torch
from torch import Tensor

from fedstrata.core import empty_rows

WARM = 3
"""Calls before one is recorded, so that libraries have chosen their programs."""
MOST = 64
"""Recordings that are kept; clients of many different sizes would make one for each."""

Record = Callable[[Callable[[], None]], Callable[[], None]]
"""Takes a function and returns one that does the same work again; the work is not done by recording it."""


class Replay:
    """Calls functions, and from the fourth time on replays what they did.

    Args:
        record: how to record; None always calls.
    """

    def __init__(self, record: Record | None) -> None:
        """Start without recordings."""
        self._record, self._calls = record, Counter[Hashable]()
        self._recorded: dict[Hashable, tuple[tuple[Tensor, ...], Callable[[], None]]] = {}

    def __call__(self, key: Hashable, function: Callable[..., None], *inputs: Tensor) -> None:
        """Call a function, or replay what it did.

        Args:
            key: the same for the same function, shapes of inputs, and places of all that it touches besides them.
            function: returns nothing and changes tensors in place.
            inputs: are copied to where they were when it was recorded.
        """
        self._calls[key] += 1
        full = key not in self._recorded and len(self._recorded) == MOST
        if self._record is None or self._calls[key] <= WARM or full:
            function(*inputs)
            return
        if key not in self._recorded:
            own = tuple(tensor.clone() for tensor in inputs)
            self._recorded[key] = own, self._record(partial(function, *own))
        own, replay = self._recorded[key]
        for tensor, given in zip(own, inputs, strict=True):
            tensor.copy_(given)
        replay()


def recorder(device: torch.device) -> Record | None:
    """How to record on a device, or None where that is of no use."""
    if device.type != "cuda":
        return None
    # One pool for all: a recording leaves nothing in it that another one reads.
    pool = torch.cuda.graph_pool_handle()

    def record(function: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=torch.cuda.current_stream()):
            function()
        replay: Callable[[], None] = graph.replay
        return replay

    return record


@contextmanager
def session(device: torch.device) -> Iterator[None]:
    """Work on a stream of the device's own that can be recorded; when it ends, all of it is done."""
    if device.type != "cuda":
        yield
        return
    stream = _stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    # Convolutions would round their inputs to 10 bits otherwise.
    exact = torch.backends.cudnn.flags(enabled=True, allow_tf32=False, fp32_precision="ieee")
    with torch.cuda.stream(stream), exact:
        yield
        stream.synchronize()


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device, without waiting for it."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def landing(device: torch.device, m: int, p: int) -> Tensor:
    """Room for rows (m, p) in the computer's own memory, where the device can put them by itself."""
    return torch.empty(m, p, pin_memory=True) if device.type == "cuda" else empty_rows(m, p)
