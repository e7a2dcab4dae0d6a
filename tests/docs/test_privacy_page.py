"""The example of the page on privacy reaches the epsilon that it asks for."""

from pathlib import Path

import pytest

from blocks import blocks


def test_the_example_reaches_its_epsilon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = [block for block in blocks("privacy.md") if block.language == "python"]
    namespace: dict[str, object] = {}
    exec(compile(example.text, "privacy.md", "exec"), namespace)
    private = namespace["run"].summary["privacy"]  # type: ignore[attr-defined]
    assert 7.99 <= private["epsilon"] <= 8.0 and private["sums"] == 4
