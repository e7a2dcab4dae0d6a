"""What a case of hostile input is, and what can stand in the place of a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Case:
    """One hostile input and the command that meets it.

    Attributes:
        name: what is hostile about it.
        command: makes the input in a folder, which is empty and the parent of the working directory, and returns the
            arguments of the command line.
        names: what the message must contain, such as the key that is wrong.
        accepted: whether the input is valid after all, so that the command succeeds.
        imports: the modules that it names where a user names what is imported, as ``package.module:name``.
    """

    name: str
    command: Callable[[Path], list[str]]
    names: str = ""
    accepted: bool = False
    imports: tuple[str, ...] = ()


def places() -> dict[str, Callable[[Path], object]]:
    """What can stand at a path in the place of a file, by its name."""

    def linked_pipe(path: Path) -> None:
        os.mkfifo(path.with_name("fifo"))
        path.symlink_to("fifo")

    return {
        "a pipe": os.mkfifo,
        "a link to a pipe": linked_pipe,
        "a folder": Path.mkdir,
        "a link to itself": lambda path: path.symlink_to(path.name),
        "a link to nothing": lambda path: path.symlink_to("nothing"),
        "a link to /dev/zero": lambda path: path.symlink_to("/dev/zero"),
        "a link to /proc/self/mem": lambda path: path.symlink_to("/proc/self/mem"),
        "a sparse file of 20 GiB": lambda path: sparse(path, 20 * 2**30),
    }


def sparse(path: Path, size: int) -> None:
    """Make a file of so many bytes that takes no space."""
    path.touch()
    os.truncate(path, size)
