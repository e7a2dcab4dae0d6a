"""The first Ctrl-C lets the round be finished and saved; the second one stops at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any


class Stopped(KeyboardInterrupt):
    """A run or comparison was stopped by Ctrl-C, and can be resumed.

    Attributes:
        where: The place where it has stopped, in words.
        folder: The folder of the run or comparison.
    """

    def __init__(self, where: str, folder: Path) -> None:
        """Say how to resume from Python; the command line prints its own command."""
        super().__init__(f"{where}; go on with resume=True and out={str(folder)!r}")
        self.where = where
        self.folder = folder


class Interrupt(AbstractContextManager["Interrupt"]):
    """A context in which the first Ctrl-C only asks for a stop, and the second one interrupts at once.

    Args:
        tell: Is called with a line for the user after the first Ctrl-C.

    Attributes:
        asked: Whether a stop was asked for.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        """Listen to nothing yet."""
        self.asked = False
        self._tell = tell
        self._told = False
        self._pressed = 0
        self._before: Any = None

    def __enter__(self) -> Interrupt:
        """Listen to Ctrl-C; only the main thread receives signals."""
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Handle Ctrl-C as before."""
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._pressed += 1
        if not self.asked:
            self.asked = True
            # The signal may have come in the middle of a line to the same stream, which no second one may enter then; a
            # thread waits for its turn.
            threading.Thread(target=self._tell, args=["finishing the round; Ctrl-C again stops at once"]).start()
            self._told = True
        # A second signal may come while the thread starts. An exception at that moment leaves the locks of the thread
        # in disorder, and a RuntimeError takes its place; the interrupt waits until the thread has started.
        if self._told and self._pressed > 1:
            raise KeyboardInterrupt
