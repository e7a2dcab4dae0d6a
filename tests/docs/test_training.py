"""The recipes of the page on training: each is short, complete, and learns something."""

from pathlib import Path

import pytest
from blocks import Block, blocks

RECIPES = [block for block in blocks("training.md") if block.language == "python"]
MOST_LINES = 15


def name(block: Block) -> str:
    """The run folder that a recipe writes."""
    return block.text.split('"runs/')[1].split('"')[0]


@pytest.mark.parametrize("recipe", RECIPES, ids=name)
def test_a_recipe_does_what_it_says(
    recipe: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(recipe.text, name(recipe), "exec"), {"__name__": "recipe"})
    assert float(capsys.readouterr().out.splitlines()[-1]) > 0.3
    assert (tmp_path / "runs" / name(recipe) / "report.html").exists()


@pytest.mark.parametrize("recipe", RECIPES, ids=name)
def test_a_recipe_is_short(recipe: Block) -> None:
    assert len([line for line in recipe.text.splitlines() if line]) <= MOST_LINES
