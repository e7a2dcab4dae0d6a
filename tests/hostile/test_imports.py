"""A module that an experiment names is imported where docs/reference/keys.md says so, and nowhere else."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from experiments.tools.descriptions import keys_of
from experiments.tools.pages import TABLES

from fedstrata.algorithms import ALGORITHMS
from fedstrata.base.errors import FedstrataError
from fedstrata.build.build import build_run
from fedstrata.config import load_experiment
from fedstrata.models import MODELS
from fedstrata.partition import PARTITIONS
from fedstrata.personal import PERSONAL
from imported import looked_for, strangers

SMALL: dict[str, Any] = {
    "rounds": 1,
    "data": {"name": "digits", "clients": 4, "samples": 16},
    "model": {"name": "mlp", "hidden": [4]},
    "engine": {"name": "loop", "device": "cpu"},
}
CHOICES: dict[tuple[str, str], Mapping[str, Any]] = {
    ("partition", "scheme"): PARTITIONS,
    ("model", "name"): MODELS,
    ("algorithm", "name"): ALGORITHMS,
    ("personal", "method"): PERSONAL,
}
IMPORTING = {"model.name", "algorithm.name", "local.loss", "local.metric", "local.transform", "attack.kind"}
"""The keys that take ``package.module:name``."""


def places() -> list[tuple[str, str, dict[str, Any]]]:
    """Every table and key of an experiment, with the other keys of the table that make it one of them."""
    found = list[tuple[str, str, dict[str, Any]]]()
    found += [(name, key.name, {}) for name, table in TABLES.items() for key in keys_of(table)]
    for (table, selector), registry in CHOICES.items():
        found.append((table, selector, {}))
        for name in registry:
            found += [(table, key.name, {selector: name}) for key in keys_of(registry[name])]
    return found


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module in the working directory that can be imported, and has not been."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "canary.py").write_text("def thing(*given, **named):\n    raise RuntimeError('it was called')\n")
    yield "canary"
    sys.modules.pop("canary", None)


def imported(experiment: dict[str, Any]) -> list[str]:
    """What is imported that only the experiment names, until it is refused or its run could begin."""
    with looked_for() as names, suppress(FedstrataError):
        build_run(load_experiment({**SMALL, **experiment}))
    return strangers(names)


def test_a_module_is_imported_by_the_keys_that_take_one_and_by_no_other(canary: str) -> None:
    found = set()
    tried = places()
    for table, key, others in tried:
        for value in (f"{canary}:thing", [f"{canary}:thing"], canary):
            if imported({table: {**SMALL.get(table, {}), **others, key: value}}):
                assert value == f"{canary}:thing"
                found.add(f"{table}.{key}")
            sys.modules.pop(canary, None)
    assert found == IMPORTING
    assert len(tried) > 150


@pytest.mark.parametrize("module", ["canary", "antigravity", "this", "no_such_package.inside"])
def test_an_experiment_that_is_wrong_elsewhere_imports_nothing_that_it_names(module: str, canary: str) -> None:
    named: dict[str, Any] = {}
    for place in sorted(IMPORTING):
        table, _, key = place.partition(".")
        named[table] = {**named.get(table, {}), key: f"{module}:thing"}
    assert imported({**named, "seed": -1}) == []
    assert imported({**named, "partition": {"scheme": "iid", "groups": 2}}) == []


def test_a_path_is_no_name_of_a_module(canary: str) -> None:
    for name in (f"../{canary}:thing", f"./{canary}.py:thing", f".{canary}:thing", f"{canary}:", canary):
        imported({"model": {"name": name}})
        assert canary not in sys.modules
