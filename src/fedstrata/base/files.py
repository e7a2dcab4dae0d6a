"""The only place that writes files of a run or comparison folder, and that opens them to be read.

A folder that came from somebody else can hold links, pipes, devices and huge files in the place of records. Nothing
here follows a link inside the folder. A link that leads to the folder itself is the user's choice. Resolve it once,
before the first call.

One process at a time writes to a folder. The lock is the system's own (flock), so it is gone as soon as the process
that held it is gone, however it ended. The file ``lock`` stays and means nothing by itself. A process that is forked
off does not hold it, nor do workers, which are started anew. On a network file system it holds between machines where
that file system passes flock on to its server, as NFS does with a lock daemon; where it does not implement locks, the
folder is refused.
"""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import stat
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from secrets import token_hex
from typing import Any

from filelock import FileLock, Timeout
from pydantic_core import from_json, to_jsonable_python

from fedstrata.base.errors import RecordError
from fedstrata.base.resources import SHORTAGES

_PIECE_BYTES = 2**20
"""The number of bytes that are read of a file at first, and then as many as there are."""

FILE_BYTES = 2**30
"""A larger file is not read into memory."""

MOST_BYTES_OF_EXPERIMENT = 4 * 2**20
"""A larger ``experiment.toml`` is not read."""

_DRAFT = ".draft"
"""The end of the names of files that are not whole yet. A process that dies while it writes leaves one behind."""

_MOST_DOTS = 100
"""The dots in a key or a value of TOML."""

_REMEDY = "remove it, or take another folder"

_FOUND = {
    errno.ELOOP: "a link",
    errno.EISDIR: "a folder",
    errno.ENOTDIR: "something else than a folder on the way to it",
    errno.ENXIO: "a pipe or a device",
    errno.ENOTEMPTY: "a folder",
    errno.EEXIST: "something else in its place",
}
"""What stands in the place of a file, by the error of the system. A full disk is not among them."""


def root_folder(path: Path) -> Path:
    """Make the folder of a run or comparison if need be, and return where it is; it may be a link.

    Raises:
        RecordError: When something else than a folder has its name, or no folder can be made there.
        OSError: When the machine fails, such as by a full disk.
    """
    with _in_words(path, "a folder that can be made", passing=()):
        path.mkdir(parents=True, exist_ok=True)
    return path.resolve()


def replace_file(path: Path, content: bytes, *, private: bool = False) -> None:
    """Write a file that is either the old or the new one, whenever the process or the machine dies.

    The content goes to a new file with a random name, reaches the disk, and then takes the place of what was there. A
    link in that place is replaced; what it leads to stays as it is.

    Args:
        path: The path of the file, in a folder that exists.
        content: The whole content of the file.
        private: Whether only the user may read the file.

    Raises:
        RecordError: When a folder stands in its place.
    """
    draft = path.with_name(f".{path.name[:200]}.{token_hex(8)}{_DRAFT}")
    with _in_words(path):
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600 if private else 0o666)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


def append_line(path: Path, line: str, *, private: bool = False) -> None:
    """Write a line to the end of a file, which is made if need be; it is on the disk afterwards.

    Args:
        path: The path of the file.
        line: The line, with its end of line.
        private: Whether only the user may read a file that is made.

    Raises:
        RecordError: When something else than a file stands in its place, or the file has another name elsewhere.
    """
    made = not path.exists()
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    with _in_words(path), _regular(os.open(path, flags, 0o600 if private else 0o666), path) as handle:
        status = os.fstat(handle)
        rest = line.encode()
        if status.st_nlink > 1:
            raise RecordError(f"{path}: expected a file of this folder alone, found one with another name; {_REMEDY}")
        try:
            while rest:
                rest = rest[os.write(handle, rest) :]
            os.fsync(handle)
        except OSError:
            with suppress(OSError):
                os.ftruncate(handle, status.st_size)  # half a line must not stand before the next one
            raise
    if made:
        _sync_folder(path.parent)


def subfolder(folder: Path, name: str, *, private: bool = False) -> Path:
    """Make a folder inside a folder that exists, unless it is there.

    Args:
        folder: The outer folder.
        name: The name of the inner folder.
        private: Whether only the user may look into a folder that is made.

    Raises:
        RecordError: When something else, such as a link, has that name.
    """
    path = folder / name
    with _in_words(path, "a folder"):
        try:
            path.mkdir(mode=0o700 if private else 0o777)
        except FileExistsError:
            if not stat.S_ISDIR(path.lstat().st_mode):
                raise
        else:
            _sync_folder(folder)
    return path


def remove_file(path: Path) -> None:
    """Remove a file or a link, if it is there.

    Raises:
        RecordError: When a folder has its name.
    """
    with _in_words(path):
        path.unlink(missing_ok=True)


def remove_drafts(folder: Path) -> None:
    """Remove what processes that died left half written, in a folder and the folders right in it."""
    for place in (folder, *(path for path in folder.iterdir() if stat.S_ISDIR(path.lstat().st_mode))):
        for draft in place.glob(f".*{_DRAFT}"):
            remove_file(draft)


def refuse_links(folder: Path, names: Iterable[str]) -> None:
    """Refuse links of some names right in the folder of a run or comparison, which may be a link itself.

    Raises:
        RecordError: For the first link.
    """
    for name in names:
        path = folder / name
        if path.is_symlink():
            raise RecordError(
                f"{path}: expected a file or folder, found a link, and links inside a run folder are not followed; "
                "put what it leads to in its place"
            )


@contextmanager
def open_file(path: Path, limit: int | None = FILE_BYTES) -> Iterator[BufferedReader]:
    """Open a regular file to be read.

    Args:
        path: The path of the file.
        limit: The number of bytes that it may have; None is any number.

    Raises:
        FileNotFoundError: When there is none.
        RecordError: When something else has its name, it is too large, or it cannot be read.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    with _in_words(path), _regular(os.open(path, flags), path) as handle, open(handle, "rb", closefd=False) as file:
        size = os.fstat(handle).st_size
        if limit is not None and size > limit:
            raise RecordError(f"{path}: expected at most {limit:,} bytes, found {size:,}; restore the file")
        yield file


def read_file(path: Path, limit: int = FILE_BYTES) -> bytes:
    """Read the content of a regular file; the errors are those of `open_file`."""
    with open_file(path, limit) as file:
        # A file of the system's own says that it has no bytes. To ask for all that may be there makes room for it.
        content = file.read(_PIECE_BYTES)
        while len(content) <= limit and (piece := file.read(min(limit + 1 - len(content), len(content)))):
            content += piece
    if len(content) > limit:
        raise RecordError(f"{path}: expected at most {limit:,} bytes, found more; restore the file")
    return content


def json_text(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON that every reader accepts: a number that is not finite becomes null."""
    return json.dumps(to_jsonable_python(value, inf_nan_mode="null", fallback=dict), indent=indent, allow_nan=False)


def parse_json(content: bytes | str) -> Any:
    """Read JSON that is safe to work with: every number is finite, every text is Unicode, and nothing is too deep.

    Raises:
        ValueError: When it is not JSON, or not safe.
    """
    value = from_json(content, allow_inf_nan=False)
    json.dumps(value, allow_nan=False)  # A number such as 1e999 has become infinite.
    return value


def parse_toml(content: bytes | str) -> dict[str, Any]:
    """Read the keys and values of TOML.

    Raises:
        ValueError: When it is not TOML, or a key or value has too many levels.
    """
    text = content if isinstance(content, str) else content.decode("utf-8")
    # The parser's time grows with the square of the parts of a key.
    if any(part.count(".") > _MOST_DOTS for part in re.split(r"[=,\n]", text)):
        raise ValueError(f"a key or a value with more than {_MOST_DOTS} dots; expected a flatter one")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("a key or a value of too many levels; expected a flatter one") from None


@contextmanager
def _regular(handle: int, path: Path) -> Iterator[int]:
    """Refuse a handle that is not one of a regular file, and close it afterwards."""
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EEXIST, None)
        yield handle
    finally:
        os.close(handle)


@contextmanager
def _in_words(
    path: Path, expected: str = "a file", passing: tuple[type[OSError], ...] = (FileNotFoundError,)
) -> Iterator[None]:
    """Turn what the system says about something else in the place of a file or folder into one line.

    Shortages of the machine and the types `passing` stay as they are.
    """
    try:
        yield
    except OSError as error:
        if error.errno in SHORTAGES or isinstance(error, passing):
            raise
        found = _FOUND.get(error.errno or 0, error.strerror or error)
        raise RecordError(f"{path}: expected {expected}, found {found}; {_REMEDY}") from None


def _sync_folder(folder: Path) -> None:
    """Have the names in a folder reach the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems cannot
            raise
    finally:
        os.close(handle)


LOCK_FILE = "lock"
"""The file of the lock, in its folder."""


@contextmanager
def folder_lock(folder: Path, wait: Callable[[], object] | None = None) -> Iterator[None]:
    """Keep other processes out of a folder while they and this one ask for its lock.

    Args:
        folder: The folder, which is made if need be.
        wait: It is called when another process has the lock, before that process is waited for. None refuses at once.

    Raises:
        RecordError: When the folder cannot be made, another process has the lock, which the line names, or no lock
            can be had there.
        OSError: When the machine fails, such as by a full disk.
    """
    root_folder(folder)
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
