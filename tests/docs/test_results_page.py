"""The page on taking the result home, as somebody would follow it: every block in order, in an empty folder."""

import subprocess
import sys
from pathlib import Path

import pytest
from blocks import agree, blocks, run

BLOCKS = blocks("results.md")


@pytest.mark.slow
def test_every_block_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for block in BLOCKS:
        if block.file:
            (tmp_path / block.file).write_text(block.text)
            continue
        for command, shown in block.commands:
            _, printed = run(command, capsys)
            assert agree(shown, printed), f"{command} printed\n" + "\n".join(printed)
    alone = "import sys; sys.modules['fedstrata'] = None; exec(open('elsewhere.py').read())"
    done = subprocess.run([sys.executable, "-c", alone], capture_output=True, text=True, check=True)
    _, printed = run("python elsewhere.py", capsys)
    assert done.stdout.splitlines() == printed
