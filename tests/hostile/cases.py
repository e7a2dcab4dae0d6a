"""What a case of hostile input is."""

from __future__ import annotations

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
