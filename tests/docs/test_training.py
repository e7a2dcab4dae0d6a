"""The recipes of the page on training: each is short, complete, and learns something."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from blocks import Block, blocks

BLOCKS = [block for block in blocks("data/training.md") if block.language == "python"]
FILES = [block for block in BLOCKS if block.file]
RECIPES = [block for block in BLOCKS if not block.file]
LEARNED = 0.3
"""What every recipe's metric exceeds; a network that learned nothing stays below."""
LEARNED_ERRORS = {"perplexity": 2.0}
"""What the metric of a recipe stays below, where less is better."""


def name(block: Block) -> str:
    """The run folder that a recipe writes."""
    return re.split('["{]', block.text.split('"runs/')[1])[0].strip("-")


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the files of the page; its modules are forgotten afterwards, and hide others of their names."""
    for block in FILES:
        assert block.file
        (tmp_path / block.file).write_text(block.text)
        # Another test may have imported a module of this name from elsewhere.
        monkeypatch.delitem(sys.modules, block.file.removesuffix(".py"), raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for block in FILES:
        sys.modules.pop(str(block.file).removesuffix(".py"), None)


@pytest.mark.parametrize("recipe", RECIPES, ids=name)
def test_a_recipe_does_what_it_says(recipe: Block, desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(recipe.text, name(recipe), "exec"), {"__name__": "recipe"})
    said = capsys.readouterr()
    value = float(said.out.split()[-1])
    least = LEARNED_ERRORS.get(name(recipe))
    assert value > LEARNED if least is None else value < least
    assert "WARNING" not in said.err, "no recipe teaches a reader to live with a warning"
    assert list((desk / "runs").glob(f"{name(recipe)}*/report.html"))


def test_every_file_of_the_page_serves_a_recipe() -> None:
    for block in FILES:
        module = str(block.file).removesuffix(".py")
        assert any(f'"{module}:' in recipe.text for recipe in RECIPES), module
