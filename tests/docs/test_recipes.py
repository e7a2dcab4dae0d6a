"""Every recipe is on a page, in a block of at most 15 lines that a test runs."""

import ast
import re
from typing import NamedTuple

import pytest

from blocks import ROOT, Block, blocks

MOST_LINES = 15
PAGES = ("data.md", "training.md", "results.md", "sweeps.md", "adding.md", "recordings.md")
NO_RECIPES = {
    "headmeans.py": "the algorithm that the rest of its page is about",
    "test_headmeans.py": "the tests of that algorithm",
}
"""Blocks of these pages that may be longer, by their files."""


class Recipe(NamedTuple):
    """Where a recipe is, and what runs it.

    Attributes:
        page: The page with its block.
        part: A text that the block has, and no other block of this page.
        test: The file of the test that runs this very block, and the name of the test.
    """

    page: str
    part: str
    test: str


_DATA = "docs/test_data.py::test_the_recipe_runs"
_TRAINING = "docs/test_training.py::test_a_recipe_does_what_it_says"
_RESULTS = "docs/test_results_page.py::test_every_block_does_what_it_says"
_SWEEPS = "docs/test_sweeps_page.py::test_every_block_does_what_it_says"
_ADDING = "docs/test_adding.py::test_it_runs_from_outside_of_the_library"
_DEVICES = "flower/test_own_algorithm.py::test_it_ends_with_the_models_of_the_simulator"

RECIPES: dict[str, tuple[Recipe, ...]] = {
    "list of arrays": (Recipe("data.md", "# arrays.py", _DATA),),
    "folder of CSV files": (Recipe("data.md", "# sites.toml", _DATA),),
    "data frame": (Recipe("data.md", "# frame.py", _DATA),),
    "images in folders": (Recipe("data.md", "# photos.toml", _DATA),),
    "test split of your own": (Recipe("data.md", "# own_split.toml", _DATA),),
    "torch `Dataset`": (Recipe("data.md", "# torch_datasets.py", _DATA),),
    "more data than memory": (Recipe("data.md", "# large.toml", _DATA),),
    "numbers": (Recipe("training.md", '"runs/regression"', _TRAINING),),
    "several labels": (Recipe("training.md", '"runs/labels"', _TRAINING),),
    "texts with embeddings": (
        Recipe("training.md", "# networks.py", _TRAINING),
        Recipe("training.md", '"runs/texts"', _TRAINING),
    ),
    "GRU on recordings": (
        Recipe("training.md", "# recurrent.py", _TRAINING),
        Recipe("training.md", '"runs/signals"', _TRAINING),
    ),
    "transformer": (
        Recipe("training.md", "# attention.py", _TRAINING),
        Recipe("training.md", '"runs/tokens"', _TRAINING),
    ),
    "loss of your own": (
        Recipe("training.md", "# focal.py", _TRAINING),
        Recipe("training.md", '"runs/focal"', _TRAINING),
    ),
    "augment": (Recipe("training.md", '"runs/augmented"', _TRAINING),),
    "algorithm of your own": (
        Recipe("adding.md", "# known_groups.py", _ADDING),
        Recipe("adding.md", "# known_groups.toml", _ADDING),
        Recipe("adding.md", "fedstrata compare known_groups.toml", _ADDING),
        Recipe("adding.md", "fedstrata deploy init federation known_groups.toml", _DEVICES),
    ),
    "FedAdam": (Recipe("training.md", '"runs/fedadam"', _TRAINING),),
    "cosine": (Recipe("training.md", '"runs/cosine"', _TRAINING),),
    "sweep": (
        Recipe("sweeps.md", "# mine.toml", _SWEEPS),
        Recipe("sweeps.md", "fedstrata sweep mine.toml", _SWEEPS),
    ),
    "Optuna": (Recipe("sweeps.md", "# tune.py", _SWEEPS),),
    "torch alone": (
        Recipe("results.md", "fedstrata export runs/digits", _RESULTS),
        Recipe("results.md", "# elsewhere.py", _RESULTS),
    ),
    "extend": (Recipe("results.md", "--set rounds=32", _RESULTS),),
    "notebook": (),
}
"""The recipes, by a text in their row of ``docs/start/recipes.md``. The notebook is a file of its own."""


def test_every_recipe_is_in_the_list() -> None:
    rows = re.findall(r"^\| (.*?) \| .* \|$", (ROOT / "docs/start/recipes.md").read_text(), re.MULTILINE)[2:]
    assert len(rows) == len(RECIPES)
    for row, name in zip(rows, RECIPES, strict=True):
        assert name in row


@pytest.mark.parametrize(
    "recipe", [recipe for parts in RECIPES.values() for recipe in parts], ids=lambda each: each.part
)
def test_a_recipe_is_one_block_and_the_test_that_runs_it_exists(recipe: Recipe) -> None:
    assert len([block for block in blocks(recipe.page) if recipe.part in block.text]) == 1
    file, test = recipe.test.split("::")
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    assert test in [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]


def code_lines(block: Block) -> list[str]:
    """The lines of a block but empty ones and the one that names its file."""
    return [line for line in block.text.splitlines()[bool(block.file) :] if line.strip()]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_on_a_page_of_recipes_has_at_most_fifteen_lines(page: str) -> None:
    for block in blocks(page):
        if block.file not in NO_RECIPES:
            assert len(code_lines(block)) <= MOST_LINES, block.text
