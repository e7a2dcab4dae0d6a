from pathlib import Path

import pytest
from experiments.tools import reading_cost

COUNTED = '''"""A module."""

from fedstrata import other as renamed
from fedstrata.other import Noun, Protocol, helper


class Paper(Protocol):
    """Nine lines count of this class: all but `assign`."""

    def init(self, noun: Noun) -> int:
        return self.step()

    def step(self) -> int:
        return renamed.LIMIT

    def assign(self) -> None:
        helper()
'''
OTHER = '''
LIMIT = 3
"""A constant of two lines with its docstring."""


class Noun:
    """A noun."""

    mean = LIMIT


class Protocol:
    """Seven lines count of this class: `init` is written anew, and nothing asks for `score`."""

    def init(self) -> int:
        return helper()

    def update(self) -> None:
        pass

    def score(self) -> None:
        helper()


def helper() -> None:
    """Reached by `assign`, by `score` and by an `init` that is not used."""
'''
REGISTRY = 'CLASSES = {"paper": "fedstrata.paper:Paper"}'


def test_a_definition_counts_whole_once_and_only_where_a_round_reaches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {"paper": COUNTED, "other": OTHER, "algorithms/__init__": REGISTRY, "__init__": ""}.items():
        path = tmp_path / "fedstrata" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(reading_cost, "SRC", tmp_path)
    reading_cost.read.cache_clear()
    found = reading_cost.definitions_of("paper")
    reading_cost.read.cache_clear()
    assert {each.name: lines for each, lines in found.items()} == {"Paper": 9, "Protocol": 7, "Noun": 4, "LIMIT": 2}
