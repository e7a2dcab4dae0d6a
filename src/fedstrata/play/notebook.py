"""The progress of a run in a notebook: one output below the cell, which is replaced instead of growing."""

from __future__ import annotations

import sys
from html import escape
from typing import Any


def notebook_output() -> NotebookOutput | None:
    """Return an output if this process is the kernel of a notebook, else None."""
    # Nobody is in a notebook without IPython being imported.
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return NotebookOutput() if getattr(shell, "kernel", None) is not None else None


class NotebookOutput:
    """An output of a cell: lines that stay, and below them one that is replaced."""

    def __init__(self) -> None:
        """Show nothing yet."""
        self._kept = list[str]()
        self._status = ""
        self._handle: Any = None

    def keep(self, text: str) -> None:
        """Show a line that stays."""
        self._kept.append(text)
        self._update()

    def show(self, text: str) -> None:
        """Show a line in the place of the last one."""
        self._status = text
        self._update()

    def _update(self) -> None:
        from IPython.display import display

        text = "\n".join([*self._kept, self._status]).strip()
        data = {"text/plain": text, "text/html": f"<pre>{escape(text)}</pre>"}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)
