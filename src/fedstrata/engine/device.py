"""The devices that compute: which there are, and how their results are made to repeat."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def has_device(kind: str) -> bool:
    """Whether this machine has a device of a kind: "cpu", "cuda" or "mps"."""
    if kind == "cuda":
        return torch.cuda.is_available()
    return kind == "cpu" or (kind == "mps" and torch.backends.mps.is_available())


@contextmanager
def repeatable(device: torch.device) -> Iterator[None]:
    """Give the random generators of the CPU and of the device back as they were, and compute float32 exactly."""
    if device.type == "cpu":
        with torch.random.fork_rng(devices=[]):
            yield
        return
    with torch.random.fork_rng(devices=[device.index or 0], device_type=device.type), exact():
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


@contextmanager
def exact() -> Iterator[None]:
    """Have CUDA compute float32 in float32, with the same results for the same inputs.

    Otherwise convolutions round their inputs to 10 bits, and so do matrix products where the user allowed it.
    `torch.backends.cudnn.flags` would not do: it fails where precisions were set one by one, and leaves products alone.
    """
    cudnn: Any = torch.backends.cudnn  # its annotations are incomplete
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
