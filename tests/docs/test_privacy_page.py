"""The examples of the page on privacy: a least size of clusters, and the epsilon that is asked for."""

from pathlib import Path
from typing import Any

import pytest

from blocks import blocks


def run_of(word: str) -> Any:
    """The run of the example with a word."""
    (example,) = [block for block in blocks("methods/privacy.md") if block.language == "python" and word in block.text]
    namespace: dict[str, object] = {}
    exec(compile(example.text, "privacy.md", "exec"), namespace)
    return namespace["run"]


def test_the_example_reaches_its_epsilon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    private = run_of("epsilon").summary["privacy"]
    assert 7.99 <= private["epsilon"] <= 8.0 and private["sums"] == 4


def test_the_example_has_the_size_that_it_asks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert all(len(node.members) >= 5 for node in run_of("min_cluster").tree)
