import sys
from types import SimpleNamespace
from typing import Any

import pytest

from fedstrata.play.progress import StatusLine, notebook_output


class Display:
    """Stands in for IPython: one output, and every version of it."""

    def __init__(self) -> None:
        self.versions: list[str] = []

    def display(self, data: dict[str, str], **_: Any) -> "Display":
        self.versions.append(data["text/plain"])
        return self

    def update(self, data: dict[str, str], **_: Any) -> None:
        self.versions.append(data["text/plain"])


def test_outside_of_a_notebook_there_is_no_such_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert notebook_output() is None
    # IPython in a terminal has no kernel.
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: object()))
    assert notebook_output() is None


def test_progress_is_one_output_that_is_replaced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    display = Display()
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display.display))
    with StatusLine() as line:
        line.show("round 1")
        line.keep("split")
        line.show("round 2")
    assert display.versions == ["round 1", "split\nround 1", "split\nround 2"]
    assert capsys.readouterr().err == ""
    with StatusLine(quiet=True) as line:
        line.keep("nothing")
    assert len(display.versions) == 3
