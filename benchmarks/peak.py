"""The most memory that a piece of work takes, watched by a thread."""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from threading import Event, Thread
from types import TracebackType

STATUS = Path("/proc/self/status")


class Peak:
    """Watches the process's own memory while its body runs.

    Attributes:
        anonymous: the most bytes that belong to no file; mapped rows do not count, for the system may drop them. Where
            it does not tell (outside Linux), the most resident bytes of the process so far.
    """

    def __init__(self, every: float = 0.005) -> None:
        """Look every so many seconds."""
        self.anonymous = 0
        self._every, self._over = every, Event()
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Peak:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Look once more, and end."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(self._every):
            self.anonymous = max(self.anonymous, _anonymous())
        self.anonymous = max(self.anonymous, _anonymous())


def _anonymous() -> int:
    if not STATUS.exists():
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else 1024 * most
    fields = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
    return 1024 * int(fields["RssAnon"].split()[0])
