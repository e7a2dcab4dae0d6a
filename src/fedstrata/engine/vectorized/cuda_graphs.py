"""CUDA graphs and streams. Work that a device has recorded is replayed without Python.

PyTorch has three rules for CUDA graphs. All tensors that are read or written stay where they are. Nothing waits for the
device. The work runs a few times on a stream of its own before it is recorded there.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from fedstrata.engine.device import exact

_WARM_UP_CALLS = 3
"""Calls before one is recorded, so that libraries have chosen their programs."""
_MAX_RECORDINGS = 64
"""Recordings that are kept, as clients of many different sizes would make one for each size."""
_FAILED_DEVICES: set[torch.device] = set()
"""Devices on which something could not be recorded, as a network that looks at its values cannot.

Nothing is recorded there any more: torch keeps the memory of every recording that failed, and its pool unusable.
"""

Recorder = Callable[[Callable[[], None]], Callable[[], None] | None]
"""Takes a function and returns one that does the same work again. Recording does not do the work.

It returns None when neither this function nor any other can be recorded.
"""


class Replay:
    """Calls functions, and replays what they did from the fourth time on.

    Args:
        record: The function that records; None is to call always.
    """

    def __init__(self, record: Recorder | None) -> None:
        """Start without recordings."""
        self._record = record
        self._calls = Counter[Hashable]()
        self._recorded: dict[Hashable, tuple[tuple[Tensor, ...], Callable[[], None]]] = {}

    def __call__(self, key: Hashable, function: Callable[..., None], *inputs: Tensor) -> None:
        """Call a function, or replay what it did.

        Args:
            key: A key that is equal for the same function, the same shapes of inputs, and the same places of all other
                tensors that it touches.
            function: A function that changes tensors in place.
            inputs: The tensors that are copied to where they were when the function was recorded.
        """
        if self._record is not None and key not in self._recorded and len(self._recorded) < _MAX_RECORDINGS:
            self._calls[key] += 1
            if self._calls[key] > _WARM_UP_CALLS:
                self._keep(key, function, inputs)
        if key not in self._recorded:
            function(*inputs)
            return
        own, replay = self._recorded[key]
        for tensor, given in zip(own, inputs, strict=True):
            tensor.copy_(given)
        replay()

    def _keep(self, key: Hashable, function: Callable[..., None], inputs: tuple[Tensor, ...]) -> None:
        """Record a function. If that is impossible, never try again."""
        if self._record is None:
            return
        own = tuple(tensor.clone() for tensor in inputs)
        replay = self._record(partial(function, *own))
        if replay is None:
            self._record = None
        else:
            self._recorded[key] = own, replay


def recorder(device: torch.device) -> Recorder | None:
    """The function that records on a device, or None where that is of no use."""
    if device.type != "cuda":
        return None
    living = _living(device)

    def record(function: Callable[[], None]) -> Callable[[], None] | None:
        if device in _FAILED_DEVICES:
            return None
        graph = torch.cuda.CUDAGraph()
        try:
            with _without_collecting():
                # All living recordings share a pool: they run one after the other, and none leaves anything in it that
                # another one reads. No handle is kept for ever: torch refuses a pool whose last recording is gone.
                other = next(iter(living), None)
                pool = None if other is None else other.pool()
                with torch.cuda.graph(graph, pool=pool, stream=torch.cuda.current_stream()):
                    function()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            _FAILED_DEVICES.add(device)
            return None
        living.add(graph)
        replay: Callable[[], None] = graph.replay
        return replay

    return record


@cache
def _living(device: torch.device) -> WeakSet[Any]:
    """The recordings of a device that can still be replayed."""
    return WeakSet()


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Collect garbage now and not while recording: a recording that is dropped meanwhile would spoil the other one."""
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


@contextmanager
def session(device: torch.device) -> Iterator[None]:
    """Work on a stream of the device that can be recorded. At the end all work is done."""
    if device.type != "cuda":
        yield
        return
    stream = _stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream), exact():
        yield
        stream.synchronize()


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
