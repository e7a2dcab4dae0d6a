"""One process at a time in a folder: one that was given up, and is not dead yet, is waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedstrata.errors import InputError
from fedstrata.folder_lock import folder_lock


@contextmanager
def alone(folder: Path, wait: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Keep other processes out of a folder; the system lets them in when this one ends, however it does.

    Args:
        folder: made if need be.
        wait: called when there is another one, before it is waited for.

    Raises:
        InputError: when the folder cannot be made or locked.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{str(folder)!r}: expected a folder that can be made: {error.strerror}") from None
    with folder_lock(folder, wait):
        yield
