"""Recording what a device does, and doing it again without asking Python: the only place that knows of CUDA.

PyTorch's rules for CUDA graphs: everything that is read or written stays where it is; nothing waits for the device;
the work runs on a stream of its own a few times before it is recorded there.
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

from fedstrata.core import empty_rows
from fedstrata.core.rows import fits

WARM = 3
"""Calls before one is recorded, so that libraries have chosen their programs."""
MOST = 64
"""Recordings that are kept; clients of many different sizes would make one for each."""

Recorder = Callable[[Callable[[], None]], Callable[[], None] | None]
"""Takes a function and returns one that does the same work again; the work is not done by recording it.

Returns None when the function, and whatever else may come, cannot be recorded.
"""


class Replay:
    """Calls functions, and from the fourth time on replays what they did.

    Args:
        record: how to record; None always calls.
    """

    def __init__(self, record: Recorder | None) -> None:
        """Start without recordings."""
        self._record = record
        self._calls = Counter[Hashable]()
        self._recorded: dict[Hashable, tuple[tuple[Tensor, ...], Callable[[], None]]] = {}

    def __call__(self, key: Hashable, function: Callable[..., None], *inputs: Tensor) -> None:
        """Call a function, or replay what it did.

        Args:
            key: the same for the same function, shapes of inputs, and places of all that it touches besides them.
            function: returns nothing and changes tensors in place.
            inputs: are copied to where they were when it was recorded.
        """
        self._calls[key] += 1
        if self._calls[key] > WARM and key not in self._recorded and len(self._recorded) < MOST:
            self._keep(key, function, inputs)
        if key not in self._recorded:
            function(*inputs)
            return
        own, replay = self._recorded[key]
        for tensor, given in zip(own, inputs, strict=True):
            tensor.copy_(given)
        replay()

    def _keep(self, key: Hashable, function: Callable[..., None], inputs: tuple[Tensor, ...]) -> None:
        """Record a function, where that is possible; where it is not, never try again."""
        if self._record is None:
            return
        own = tuple(tensor.clone() for tensor in inputs)
        replay = self._record(partial(function, *own))
        if replay is None:
            self._record = None
        else:
            self._recorded[key] = own, replay


def recorder(device: torch.device) -> Recorder | None:
    """How to record on a device, or None where that is of no use."""
    if device.type != "cuda":
        return None
    living = _living(device)

    def record(function: Callable[[], None]) -> Callable[[], None] | None:
        if device in UNABLE:
            return None
        graph = torch.cuda.CUDAGraph()
        try:
            with _without_collecting():
                # One pool for all that live: they run one after the other, and a recording leaves nothing in it that
                # another one reads. A handle kept for ever would not do: torch refuses a pool whose last one is gone.
                other = next(iter(living), None)
                pool = None if other is None else other.pool()
                with torch.cuda.graph(graph, pool=pool, stream=torch.cuda.current_stream()):
                    function()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            UNABLE.add(device)
            return None
        living.add(graph)
        replay: Callable[[], None] = graph.replay
        return replay

    return record


UNABLE: set[torch.device] = set()
"""Devices on which something could not be recorded, as a network that looks at its values cannot.

Nothing is recorded there any more: torch keeps the memory of every recording that failed, and its pool unusable.
"""


@cache
def _living(device: torch.device) -> WeakSet[Any]:
    """The recordings of a device that somebody can still replay."""
    return WeakSet()


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Collect garbage now and not meanwhile: a recording among it, dropped amid another one, would spoil that one."""
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
    """Work on a stream of the device's own that can be recorded; when it ends, all of it is done."""
    if device.type != "cuda":
        yield
        return
    stream = _stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream), exact():
        yield
        stream.synchronize()


@contextmanager
def exact() -> Iterator[None]:
    """Have CUDA compute float32 in float32, and the same again from the same.

    Otherwise convolutions round their inputs to 10 bits, and so do matrix products where the user allowed it.
    `torch.backends.cudnn.flags` would not do: it fails where precisions were set one by one, and leaves products alone.
    """
    cudnn: Any = torch.backends.cudnn  # its annotations lack some
    wanted: list[tuple[Any, str, object]] = [
        (torch.backends.cuda.matmul, "fp32_precision", "ieee"),
        (cudnn.conv, "fp32_precision", "ieee"),
        (cudnn.rnn, "fp32_precision", "ieee"),
        (cudnn, "deterministic", True),
        (cudnn, "benchmark", False),  # the program that is fastest today may be another one tomorrow
    ]
    before = [getattr(owner, name) for owner, name, _ in wanted]
    try:
        for owner, name, value in wanted:
            setattr(owner, name, value)
        yield
    finally:
        for (owner, name, _), value in zip(wanted, before, strict=True):
            setattr(owner, name, value)


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device, without waiting for it."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def landing(device: torch.device, m: int, p: int) -> Tensor:
    """Room for rows (m, p) in the computer's own memory; if they are not too many, the device can put them by itself.

    The system cannot move such memory to a disk, so that what would lie in a file is not in it.
    """
    pinned = device.type == "cuda" and fits(m, p)
    return torch.empty(m, p, pin_memory=True) if pinned else empty_rows(m, p)


def capacity(device: torch.device) -> int | None:
    """Bytes of memory that a device has of its own, in use or not; None if it has none."""
    if device.type != "cuda":
        return None
    total: int = torch.cuda.get_device_properties(device).total_memory
    return total
