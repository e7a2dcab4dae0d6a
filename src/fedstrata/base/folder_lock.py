"""One process at a time in a folder.

The lock is the system's own (flock), so it is gone as soon as the process that held it is gone, however it ended. The
file ``lock`` stays and means nothing by itself. A process that is forked off does not hold it, nor do workers, which
are started anew. On a network file system it holds between machines where that file system passes flock on to its
server, as NFS does with a lock daemon; where it does not implement locks, the folder is refused.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from fedstrata.base.errors import InputError, RecordError
from fedstrata.base.files import read_file
from fedstrata.base.resources import SHORTAGES

LOCK_FILE = "lock"
"""The file of the lock, in its folder."""


@contextmanager
def folder_lock(folder: Path, wait: Callable[[], object] | None = None) -> Iterator[None]:
    """Keep other processes out of a folder while they and this one ask for its lock.

    Args:
        folder: The folder, which is made if need be.
        wait: It is called when another process has the lock, before that process is waited for. None refuses at once.

    Raises:
        InputError: When the folder cannot be made.
        RecordError: When another process has the lock, which the line names, or no lock can be had there.
        OSError: When the machine fails, such as by a full disk.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in SHORTAGES:
            raise
        raise InputError(f"{str(folder)!r}: expected a folder that can be made: {error.strerror}") from None
    lock = FileLock(folder / LOCK_FILE, timeout=0, thread_local=False, fallback_to_soft=False, on_acquired=_sign)
    try:
        _acquire(lock, folder, wait)
    except OSError as error:
        if error.errno in SHORTAGES:
            raise  # A full disk says nothing against this folder.
        raise RecordError(
            f"{folder / LOCK_FILE}: expected a file that can be locked, found: {error.strerror or error}; "
            "remove it, or take a folder on another file system"
        ) from None
    try:
        yield
    finally:
        lock.release()


def _acquire(lock: FileLock, folder: Path, wait: Callable[[], object] | None) -> None:
    try:
        lock.acquire()
    except Timeout:
        if wait is None:
            raise RecordError(
                f"'{folder}': expected that no other process works in this folder, found {_holder(folder)}; "
                "wait until it has ended, or end it"
            ) from None
        wait()
        lock.acquire(timeout=-1)


def _sign(handle: int) -> None:
    """Write into the lock's file who has it."""
    if os.fstat(handle).st_nlink > 1:
        raise OSError("it has another name elsewhere")
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)


def _holder(folder: Path) -> str:
    """Name the process that has the lock, by what it wrote."""
    try:
        text = read_file(folder / LOCK_FILE, limit=1000).decode(errors="replace")
    except (OSError, RecordError):
        text = ""
    found = re.fullmatch(r"(\d{1,10}) ([\w.-]{1,255})\n", text)
    return f"process {found[1]} on {found[2]}" if found else "one that has not said its name"
