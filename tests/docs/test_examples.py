"""Examples of pages of which the other blocks are no programs."""

from pathlib import Path

import pytest

from blocks import ROOT, blocks, example
from fedstrata.uploads.attacks.updates import named_attacks
from fedstrata.uploads.rules import AGGREGATIONS


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory."""
    monkeypatch.chdir(tmp_path)


def test_the_examples_on_privacy_reach_their_epsilon_and_their_size() -> None:
    private = example("methods/privacy.md", "epsilon")["run"].summary["privacy"]
    assert 7.99 <= private["epsilon"] <= 8.0 and private["sums"] == 4
    assert all(len(node.members) >= 5 for node in example("methods/privacy.md", "min_cluster")["run"].tree)


def test_the_example_on_attacks_learns_under_attack_and_the_page_has_every_rule_and_attack() -> None:
    attack = example("methods/attacks.md")["run"].summary["attack"]
    assert attack["acc_honest"] > 0.6 and len(attack["clients"]) == 2
    page = (ROOT / "docs/methods/attacks.md").read_text()
    assert all(f"\n| `{name}` |" in page for name in (*AGGREGATIONS, *named_attacks()))


def test_the_example_of_clustering_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    example("reference/clustering.md")
    said = [block.text for block in blocks("reference/clustering.md") if block.language == "python"]
    assert capsys.readouterr().out.strip() == said[0].split("# ")[-1].strip()
