"""The examples of the page on privacy: a least size of clusters, and the epsilon that is asked for."""

from pathlib import Path
from typing import Any

import pytest

import fedstrata as fs
from blocks import blocks


def test_the_examples_have_the_size_and_the_epsilon_that_they_ask_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sized, noisy = [_run(block.text) for block in blocks("privacy.md") if block.language == "python"]
    assert all(len(node.members) >= 5 for node in sized.tree)
    private = noisy.summary["privacy"]
    assert 7.99 <= private["epsilon"] <= 8.0 and private["sums"] == 4


def _run(text: str) -> fs.Run:
    namespace: dict[str, Any] = {}
    exec(compile(text, "privacy.md", "exec"), namespace)
    run: fs.Run = namespace["run"]
    return run
