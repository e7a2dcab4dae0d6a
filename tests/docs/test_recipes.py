"""Every recipe leads to blocks on a page whose blocks a test runs."""

import ast
import re

import pytest

from blocks import ROOT

RUN_BY = {
    "data.md": "test_data.py::test_the_recipe_runs",
    "training.md": "test_training.py::test_a_recipe_does_what_it_says",
    "results.md": "test_walkthroughs.py::test_every_block_does_what_it_says",
    "sweeps.md": "test_walkthroughs.py::test_every_block_does_what_it_says",
    "adding.md": "test_adding.py::test_it_runs_from_outside_of_the_library",
    "adapters.md": "test_adapters_page.py::test_every_block_does_what_it_says",
    "recordings.md": "test_recordings_page.py::test_every_block_does_what_it_says",
}
"""The pages of recipes, and the test of ``tests/docs`` that runs the blocks of each."""

ROWS = re.findall(r"^\| .*?\| \[.*?\]\(([^)#]+)#?([^)]*)\)", (ROOT / "docs/start/recipes.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize(("path", "anchor"), ROWS)
def test_a_recipe_leads_to_blocks_that_a_test_runs(path: str, anchor: str) -> None:
    page = (ROOT / "docs" / "start" / path).resolve()
    if page.suffix == ".ipynb":
        assert page.exists()
        return
    assert page.name in RUN_BY
    title = anchor.replace("-", "[^a-z0-9\n]+")
    section = re.split(rf"^#+ {title}$", page.read_text(), maxsplit=1, flags=re.MULTILINE | re.IGNORECASE)[-1]
    assert "```" in (section.split("\n## ")[0] if anchor else section)


@pytest.mark.parametrize("test", RUN_BY.values())
def test_the_test_that_runs_a_page_exists(test: str) -> None:
    file, name = test.split("::")
    tree = ast.parse((ROOT / "tests" / "docs" / file).read_text(encoding="utf-8"))
    assert name in [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
