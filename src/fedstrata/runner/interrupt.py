"""Ctrl-C: the first one lets what has begun be finished and saved, the second one stops at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any


class Stopped(KeyboardInterrupt):
    """What was asked to stop has done so, and can go on.

    Attributes:
        where: it has stopped, in words.
        folder: that holds what there is of it.
    """

    def __init__(self, where: str, folder: Path) -> None:
        """Say how to go on from Python; the command line knows its own words."""
        super().__init__(f"{where}; go on with resume=True and out={str(folder)!r}")
        self.where, self.folder = where, folder


class Patience(AbstractContextManager["Patience"]):
    """Lets the first Ctrl-C only ask for a stop; the second one interrupts at once.

    Args:
        tell: told once what the first one has led to.

    Attributes:
        asked: whether a stop was asked for.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        """Nobody has asked yet."""
        self.asked, self._tell = False, tell
        self._before: Any = None

    def __enter__(self) -> Patience:
        """Listen; only the main thread is told of signals."""
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let Ctrl-C be what it was."""
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        # The signal may have come in the middle of a line to the same stream, which no second one may enter then; a
        # thread waits for its turn.
        threading.Thread(target=self._tell, args=["finishing the round; Ctrl-C again stops at once"]).start()
