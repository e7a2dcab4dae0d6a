"""The first Ctrl-C lets the round be finished and saved; the second one stops at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType


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


@dataclass
class Interrupt:
    """How often Ctrl-C was pressed: the first time only asks for a stop, and the second one interrupts at once.

    Attributes:
        tell: Is called with a line for the user after the first Ctrl-C.
        asked: Whether a stop was asked for.
        told: Whether the user was told.
        pressed: How often Ctrl-C was pressed.
    """

    tell: Callable[[str], None]
    asked: bool = False
    told: bool = False
    pressed: int = 0

    def note(self, number: int, frame: FrameType | None) -> None:
        """Handle Ctrl-C."""
        self.pressed += 1
        if not self.asked:
            self.asked = True
            # The signal may have come in the middle of a line to the same stream, which no second one may enter then; a
            # thread waits for its turn.
            threading.Thread(target=self.tell, args=["finishing the round; Ctrl-C again stops at once"]).start()
            self.told = True
        # A second signal may come while the thread starts. An exception at that moment leaves the locks of the thread
        # in disorder, and a RuntimeError takes its place; the interrupt waits until the thread has started.
        if self.told and self.pressed > 1:
            raise KeyboardInterrupt


@contextmanager
def interruptible(tell: Callable[[str], None]) -> Iterator[Interrupt]:
    """Listen to Ctrl-C; only the main thread receives signals.

    Args:
        tell: As in `Interrupt`.
    """
    interrupt = Interrupt(tell)
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = signal.signal(signal.SIGINT, interrupt.note)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
