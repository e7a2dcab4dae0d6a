"""Failures of the machine in one line each: what was expected, what was found, and what to do.

Python, torch, NumPy and Arrow report a full disk or a lack of memory as many kinds of exceptions. Here they become one,
`ResourceError`. All other exceptions pass: they are errors of the input, or bugs whose traceback is needed.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fedstrata.base.errors import MachineError, ResourceError

_DISK = ("a disk that can be read and written", "check the disk and the system log")
_PERMISSION = ("permission to read and write", "give this user the permission")
_FILES = ("to open another file", "raise the limit on open files (ulimit -n), or lower engine.workers")

_OF_DISKS: Mapping[int, tuple[str, str]] = {
    errno.ENOSPC: ("free space on the disk", "free some"),
    errno.EDQUOT: ("room in the disk quota", "delete files, or have the quota raised"),
    errno.EFBIG: ("to write a file of this size", "raise the limit on file sizes (ulimit -f)"),
    errno.EIO: _DISK,
    errno.ESTALE: _DISK,
    errno.EROFS: ("a file system that can be written", "make it writable"),
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
}

SHORTAGES: Mapping[int, tuple[str, str]] = {
    **_OF_DISKS,
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
    errno.ENOMEM: ("enough memory", "free some, raise the limit on it, or lower engine.workers"),
    errno.EAGAIN: ("to start another process or thread", "end others, or raise the limit on them (ulimit -u)"),
}
"""What was needed and what the user can do, by the number of an OSError."""

_OUT_OF_MEMORY = re.compile(
    r"can't allocate memory|cannot allocate memory|out of memory|bad_alloc|unable to mmap"
    r"|could not create a (?:primitive|memory)|failed to map segment from shared object$",
    re.IGNORECASE,
)
"""The message of an exception without a number, as torch, oneDNN and CUDA raise them."""


@contextmanager
def resource_errors(folder: Path | None = None, record: str = "experiment.toml") -> Iterator[None]:
    """Turn what the machine's failures raise into `ResourceError`.

    Args:
        folder: The folder of the run or comparison that is worked on. The error carries it once there is something to
            resume in it.
        record: The path inside the folder, with wildcards, of a file that exists as soon as it can be resumed.

    Raises:
        ResourceError: When the machine failed in one of the ways listed in this module.
        MachineError: When the code inside raised it; it carries the folder then.
    """
    try:
        yield
    except (OSError, MemoryError, RuntimeError, ImportError, MachineError) as error:
        found = resource_error(error, folder)
        if found is None:
            raise
        if folder is not None and _begun(folder, record):
            found.folder = folder
        if found is error:
            raise
        raise found from error


def resource_error(error: BaseException, folder: Path | None = None) -> MachineError | None:
    """What an exception says about the machine, in one line; None when it is not about the machine.

    A `MachineError` says it itself.

    Args:
        error: Any exception.
        folder: Where files are written. It is named when the exception itself names no file.
    """
    if isinstance(error, MachineError):
        return error
    number = _number(error)
    if number is None:
        return None
    expected, remedy = SHORTAGES[number]
    place = getattr(error, "filename", None)
    if place is None and isinstance(error, OSError) and number in _OF_DISKS:
        place = folder
    where = "" if place is None else f"{str(place)!r}: "
    return ResourceError(f"{where}expected {expected}, found: {_found(error)}; {remedy}")


def disk_error(error: OSError, folder: Path) -> MachineError | None:
    """What an exception says about the disk, in one line; None when it is about something else.

    The arguments are those of `resource_error`.
    """
    return resource_error(error, folder) if _number(error) in _OF_DISKS else None


def _begun(folder: Path, record: str) -> bool:
    try:
        return any(folder.glob(record))
    except OSError:
        # To list a folder takes an open file, of which there may be none left.
        return folder.is_dir()


def _number(error: BaseException) -> int | None:
    """Return the number in `SHORTAGES` that stands for an exception; None when it is about something else."""
    if isinstance(error, MemoryError):
        return errno.ENOMEM
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno if error.errno in SHORTAGES else None
    if isinstance(error, OSError | RuntimeError | ImportError):
        line = _first_line(error)
        if _OUT_OF_MEMORY.search(line):
            return errno.ENOMEM
        return errno.EAGAIN if "can't start new thread" in line else None
    return None


def _found(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)  # Arrow puts more around it.
    # What torch puts before it is the place in its own source.
    return _first_line(error).rpartition("DefaultCPUAllocator: ")[2] or "no memory left"


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
