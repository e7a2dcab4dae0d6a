"""The page on sweeps, as somebody would follow it: every block in order, in an empty folder."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from blocks import agree, blocks, run


@pytest.mark.pages
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_every_block_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks("start/sweeps.md"):
        if block.file:
            (tmp_path / block.file).write_text(block.text)
            continue
        if "tune.py" in block.text and find_spec("optuna") is None:
            continue  # needs optuna
        for command, shown in block.commands if block.language == "console" else ():
            status, printed = run(command, capsys)
            assert status == 0 and agree(shown, printed), f"{command} printed\n" + "\n".join(printed)
