"""A network that makes its own process fail, as a machine does.

The file ``fault`` in the working directory says how, and after which round of which run: a kind, then the path of a
checkpoint. Without the file the network works.
"""

import os
import resource
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

ROOM = 2**26
"""Bytes of memory that are left under a limit; 64 MiB."""


def kill() -> None:
    """End as a process does that the system takes for the one with too much memory."""
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    """Make no progress any more."""
    os.kill(os.getpid(), signal.SIGSTOP)


def use_up_files() -> None:
    """Leave no file descriptor."""
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, free))


def use_up_tensors() -> None:
    """Ask torch for more memory than there is."""
    limit_memory()
    torch.empty(4 * ROOM, dtype=torch.uint8)


def use_up_bytes() -> None:
    """Ask Python for more memory than there is."""
    limit_memory()
    bytearray(4 * ROOM)


def limit_memory() -> None:
    """Leave little memory to this process."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, used + ROOM))


FAULTS: Mapping[str, Callable[[], None]] = {
    "killed": kill,
    "stopped": stop,
    "files": use_up_files,
    "tensors": use_up_tensors,
    "bytes": use_up_bytes,
}


class Faulty(nn.Linear):
    """A layer that brings about what the file says, once in a process."""

    done = False

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute, or fail."""
        fault = Path("fault")
        if self.training and not Faulty.done and fault.exists():
            kind, checkpoint = fault.read_text().split()
            if Path(checkpoint).exists():
                Faulty.done = True
                FAULTS[kind]()
        return super().forward(inputs)


def make(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The network, the same every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), Faulty(shape[0] * shape[1] * shape[2], classes))
