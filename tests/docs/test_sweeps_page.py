"""The page on sweeps, as somebody would follow it: every block in order, in an empty folder."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from blocks import follow


@pytest.mark.pages
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_every_block_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    follow("start/sweeps.md", tmp_path, capsys, but="nothing" if find_spec("optuna") else "tune.py")
