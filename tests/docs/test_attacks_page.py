"""The example of the page on Byzantine clients learns something, and the page has every rule and attack."""

from pathlib import Path

import pytest

from blocks import blocks
from fedstrata.uploads.attacks.updates import named_attacks
from fedstrata.uploads.rules import AGGREGATIONS

PAGE = Path(__file__).parents[2] / "docs" / "methods" / "attacks.md"


def test_the_example_learns_under_attack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = [block for block in blocks("methods/attacks.md") if block.language == "python"]
    namespace: dict[str, object] = {}
    exec(compile(example.text, "attacks.md", "exec"), namespace)
    summary = namespace["run"].summary  # type: ignore[attr-defined]
    assert summary["attack"]["acc_honest"] > 0.6 and len(summary["attack"]["clients"]) == 2


@pytest.mark.parametrize("name", [*AGGREGATIONS, *named_attacks()])
def test_the_page_has_every_rule_and_attack(name: str) -> None:
    assert f"\n| `{name}` |" in PAGE.read_text()
