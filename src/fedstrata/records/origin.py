"""What the last digits of a result depend on, beside the experiment: the versions of the libraries, and the machine.

Torch, oneDNN, MKL and OpenBLAS have several kernels for the same product of matrices, and choose one by the processor.
Kernels add the same numbers in another order, so sums differ in their last bits. Training makes such differences
larger.
"""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import version

import torch


def origin(device: str) -> dict[str, str]:
    """The versions and the machine together, for a run on a device such as "cpu"."""
    return {**versions(), **machine(device)}


@cache
def versions() -> dict[str, str]:
    """The versions of Python and of the libraries that compute."""
    names = ("fedstrata", "torch", "numpy", "scipy", "scikit-learn")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


@cache
def machine(device: str = "cpu") -> dict[str, str]:
    """The system, the processor, and the instructions that torch uses; of a run on a GPU also the name of the GPU.

    Args:
        device: The device that trains: "cpu", "cuda" or "mps".
    """
    found = {
        "system": " ".join((platform.system(), *platform.libc_ver())).strip(),
        "processor": platform.processor() or platform.machine(),
        "kernels": torch.backends.cpu.get_cpu_capability(),
    }
    if device == "cuda":
        found["accelerator"] = torch.cuda.get_device_name()
    return found
