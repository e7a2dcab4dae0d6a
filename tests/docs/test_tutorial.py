"""The tutorial as somebody would follow it: every file written, every command run, in order, in an empty folder."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from blocks import ROOT, agree, blocks, follow

BLOCKS = blocks("start/tutorial.md")


def test_the_demo_is_the_run_without_a_file() -> None:
    recipe = re.search(r"^demo:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe and recipe[1].strip() == "$(BIN)/fedstrata run"


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to work in; its modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("network", None)


@pytest.mark.pages
def test_every_block_of_the_tutorial_does_what_it_says(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert all(block.file for block in BLOCKS if block.language != "console")
    follow("start/tutorial.md", desk, capsys)


def test_a_file_of_the_tutorial_is_used_by_a_command_or_another_file() -> None:
    files = {block.file for block in BLOCKS if block.file}
    rest = "\n".join(line for block in BLOCKS for line in block.text.splitlines() if not line.startswith("# "))
    assert all(name in rest or f'"{name.removesuffix(".py")}:' in rest for name in files)


@pytest.mark.parametrize(
    ("shown", "printed", "expected"),
    [
        (["a 0.50"], ["a   0.52"], True),
        (["a 0.50"], ["a 0.60"], False),
        (["a 3"], ["a 4"], False),
        (["...", "b"], ["a", "a", "b"], True),
        (["a", "..."], ["a"], True),
        (["a"], ["a", "b"], False),
        (["round 1 clusters 2 ..."], ["round 1 clusters 2 accuracy 0.3"], True),
        (["round 1 clusters 2 ..."], ["round 1 clusters 3 accuracy 0.3"], False),
        (["took 0.6 s"], ["took 9.7 s"], True),
    ],
)
def test_shown_lines_are_held_against_printed_ones(shown: list[str], printed: list[str], expected: bool) -> None:
    assert agree(shown, printed) == expected
