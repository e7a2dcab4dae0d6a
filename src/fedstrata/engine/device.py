"""The devices that compute: which there are, and how their results are made to repeat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from fedstrata.base.randomness import global_generators


def has_device(kind: str) -> bool:
    """Whether this machine has a device of a kind: "cpu", "cuda" or "mps"."""
    if kind == "cuda":
        return torch.cuda.is_available()
    return kind == "cpu" or (kind == "mps" and torch.backends.mps.is_available())


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch to one thread: the bits of a sum depend on how many share it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def repeatable(device: torch.device) -> Iterator[None]:
    """Give the random generators of the CPU and of the device back as they were, and compute float32 exactly."""
    if device.type == "cpu":
        with global_generators():
            yield
        return
    with global_generators(devices=[device.index or 0], device_type=device.type), exact():
        yield


def seed_device(device: torch.device, seed: int) -> None:
    """Seed the generator of the CPU and that of the device, and of no other device.

    torch.manual_seed would seed all accelerators, which nothing here gives back.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


_Setting = tuple[Any, str, object]
"""An object, the name of one of its attributes, and the value that it should have."""

_CUDNN: Any = torch.backends.cudnn
"""Its annotations are incomplete."""


def exact() -> AbstractContextManager[None]:
    """Have CUDA compute float32 in float32, with the same results for the same inputs.

    Otherwise convolutions round their inputs to 10 bits, and so do matrix products where the user allowed it.
    `torch.backends.cudnn.flags` would not do: it fails where precisions were set one by one, and leaves products alone.
    """
    wanted: list[_Setting] = [
        *_products("ieee"),
        (_CUDNN, "deterministic", True),
        (_CUDNN, "benchmark", False),  # the program that is fastest today may be another one tomorrow
    ]
    return _with_attributes(wanted)


def without_cudnn() -> AbstractContextManager[None]:
    """Have CUDA compute without cuDNN."""
    return _with_attributes([(_CUDNN, "enabled", False)])


def products_in(precision: str) -> AbstractContextManager[None]:
    """Inside of `exact`, let CUDA round the factors of products to 10 bits if the precision of training is "tf32"."""
    return _with_attributes(_products("tf32")) if precision == "tf32" else nullcontext()


def _products(precision: str) -> list[_Setting]:
    """What makes CUDA compute products of float32 in a precision, "ieee" or "tf32"."""
    return [(owner, "fp32_precision", precision) for owner in (torch.backends.cuda.matmul, _CUDNN.conv, _CUDNN.rnn)]


@contextmanager
def _with_attributes(wanted: Sequence[_Setting]) -> Iterator[None]:
    """Set attributes, and give them back as they were."""
    before = [getattr(owner, name) for owner, name, _ in wanted]
    try:
        for owner, name, value in wanted:
            setattr(owner, name, value)
        yield
    finally:
        for (owner, name, _), value in zip(wanted, before, strict=True):
            setattr(owner, name, value)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device, without waiting for it."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def to_host(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Tensors of one type in the computer's own memory. On a device they are waited for once, not one by one."""
    if device.type == "cpu" or not tensors:
        return list(tensors)
    found = torch.cat([tensor.flatten() for tensor in tensors]).cpu()
    parts = found.split([tensor.numel() for tensor in tensors])
    # Each has memory of its own: who keeps one does not keep all.
    return [part.view(tensor.shape).clone() for part, tensor in zip(parts, tensors, strict=True)]
