"""The page on sweeps, as somebody would follow it: every block in order, in an empty folder."""

from pathlib import Path

import pytest
from blocks import agree, blocks, run


@pytest.mark.slow
def test_every_block_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks("sweeps.md"):
        if block.file:
            (tmp_path / block.file).write_text(block.text)
            continue
        for command, shown in block.commands:
            status, printed = run(command, capsys)
            assert status == 0 and agree(shown, printed), f"{command} printed\n" + "\n".join(printed)
