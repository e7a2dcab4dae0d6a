"""What the last digits of a result depend on, beside the experiment: the versions of the libraries, and the machine.

Torch, oneDNN, MKL and OpenBLAS have several kernels for the same product of matrices. They choose one by the
processor's vector instructions and by its caches. Kernels add the same numbers in another order, so sums differ in
their last bits. Training makes such differences larger.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch

_PROCESSORS = Path("/proc/cpuinfo")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")

_MODEL = ("cpu family", "model", "stepping")
_VECTORS = ("avx", "amx", "fma", "f16c", "sse4", "asimd", "sve")
"""How the flags of vector instructions begin, on x86 and on Arm."""

_SETTINGS = (
    "ATEN_CPU_CAPABILITY",
    "DNNL_MAX_CPU_ISA",
    "ONEDNN_MAX_CPU_ISA",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "OPENBLAS_CORETYPE",
)
"""Variables of the environment by which a user chooses kernels."""


def origin(device: str) -> dict[str, str]:
    """All that the last digits of a run depend on, beside its keys, on a device such as "cpu"."""
    return {**versions(), **machine(device)}


@cache
def versions() -> dict[str, str]:
    """The versions of Python and of the libraries that compute."""
    names = ("fedstrata", "torch", "numpy", "scipy", "scikit-learn")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


@cache
def machine(device: str = "cpu") -> dict[str, str]:
    """The fingerprint of this machine: where it and all versions are equal, a result is equal in every bit.

    Args:
        device: The device that trains: "cpu", "cuda" or "mps".

    Returns:
        The system, the processor, its vector instructions, its caches, the instructions that torch uses, and the
        variables of the environment that choose kernels. Of a run on a GPU also the name of the GPU.
    """
    processor = _first_processor()
    found = {
        "system": " ".join((platform.system(), platform.machine(), *platform.libc_ver())).strip(),
        "processor": _name(processor),
        "vectors": " ".join(sorted(flag for flag in _flags(processor) if flag.startswith(_VECTORS))),
        "caches": ", ".join(_caches()),
        "kernels": torch.backends.cpu.get_cpu_capability(),
        "settings": " ".join(f"{name}={os.environ[name]}" for name in _SETTINGS if name in os.environ),
    }
    if device == "cuda":
        found["accelerator"] = torch.cuda.get_device_name()
    return found


def _first_processor() -> dict[str, str]:
    """The fields of the first processor, where the system tells them."""
    if not _PROCESSORS.exists():
        return {}
    lines = _PROCESSORS.read_text().split("\n\n")[0].splitlines()
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    return {name.strip(): value.strip() for name, value in pairs}


def _name(processor: dict[str, str]) -> str:
    """The name of a processor. Virtual machines hide it in part, so the numbers of the model follow."""
    name = processor.get("model name") or platform.processor() or "unknown"
    numbers = [f"{field} {processor[field]}" for field in _MODEL if field in processor]
    return ", ".join([name, *numbers])


def _flags(processor: dict[str, str]) -> list[str]:
    return (processor.get("flags") or processor.get("Features") or "").split()


def _caches() -> Iterator[str]:
    """The data caches of the first processor, and how many processors share each: kernels take blocks that fit."""
    for folder in sorted(_CACHES.glob("index*")):
        level, kind, size, shared = (_line(folder / name) for name in ("level", "type", "size", "shared_cpu_list"))
        if kind != "Instruction":
            yield f"L{level} {size} for {_count(shared)}"


def _line(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


def _count(processors: str) -> int:
    """The number of processors in a list such as ``0-3,8``."""
    ranges = [[int(end) for end in part.split("-")] for part in processors.split(",") if part]
    return sum(ends[-1] - ends[0] + 1 for ends in ranges)
