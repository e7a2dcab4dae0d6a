"""The algorithms of the page on adding one: their tests, runs, and what every registered algorithm must hold.

Real devices are in ``tests/flower/test_own_algorithm.py``.
"""

import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedstrata
import test_every_algorithm as conformance
from blocks import agree, blocks, run
from fedstrata.algorithms import ALGORITHMS
from fedstrata.build.build import build_run
from fedstrata.config import load_experiment
from fedstrata.data import load_dataset
from fedstrata.results.assign import assign
from turns import Case

BLOCKS = blocks("methods/adding.md")
FILES = {block.file: block.text for block in BLOCKS if block.file}
COMMANDS = dict(command for block in BLOCKS if block.language == "console" for command in block.commands)
NAME = "headmeans"
ELSEWHERE = ("pytest", "fedstrata deploy")
"""What commands begin with that other tests run."""

CHECKS = [
    name
    for name, check in vars(conformance).items()
    if name.startswith("test_") and "case" in inspect.signature(check).parameters
]
"""What is asked of every algorithm, case by case."""


def written(folder: Path) -> Path:
    """A folder with the files of the page."""
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def registered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder with the files of the page, in which the algorithm is registered as its one line would do it."""
    folder = written(tmp_path_factory.mktemp("adding"))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setitem(ALGORITHMS._targets, NAME, f"{NAME}:HeadMeans")
        yield folder
    sys.modules.pop(NAME, None)


@pytest.fixture
def outside(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder with the files of the page, as the current directory; nothing is registered."""
    folder = written(tmp_path_factory.mktemp("outside"))
    monkeypatch.chdir(folder)
    monkeypatch.delitem(ALGORITHMS._targets, NAME, raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
    yield folder
    for name in FILES:
        sys.modules.pop(name.removesuffix(".py"), None)


@pytest.fixture(scope="module")
def case(registered: Path) -> Case:
    """A federation that the algorithm divides; of the module, so that the checks share its runs."""
    return Case(NAME, {"k": 3})


def test_its_scripted_tests_hold(registered: Path) -> None:
    found: dict[str, Any] = {}
    exec(compile(FILES["test_headmeans.py"], "test_headmeans.py", "exec"), found)
    tests = [test for name, test in found.items() if name.startswith("test_")]
    assert len(tests) == 3
    for test in tests:
        test()


def test_it_runs_from_outside_of_the_library(outside: Path) -> None:
    for command, shown in COMMANDS.items():
        if not command.startswith(ELSEWHERE):
            _, printed = run(command)
            assert agree(shown, printed), f"{command} printed\n" + "\n".join(printed)
    table = json.loads((outside / "runs/both/comparison.json").read_text())["table"]
    assert [row["algorithm"] for row in table] == ["fedavg", "known_groups:KnownGroups"]
    for name in ("headmeans", "object"):
        assert (outside / "runs" / name / "report.html").exists()
        assert (outside / "runs" / name / "matrices" / "00002.npz").exists()
        assert load_experiment(outside / "runs" / name / "experiment.toml").algorithm.name == "headmeans:HeadMeans"
    private = json.loads((outside / "runs/private/summary.json").read_text())["privacy"]
    assert private["decisions_covered"] and private["sums"] == 4
    table = json.loads((outside / "runs/compared/comparison.json").read_text())["table"]
    assert [row["algorithm"] for row in table] == ["fedavg", "headmeans:HeadMeans"]
    assert "headmeans:HeadMeans" in (outside / "runs/compared/comparison.html").read_text()


@pytest.mark.parametrize("file", ["headmeans.toml", "known_groups.toml"])
def test_new_clients_are_placed_by_its_run(file: str, outside: Path, tmp_path: Path) -> None:
    folder = outside / "runs" / "placing"
    fedstrata.run(outside / file, folder, sets=["rounds=3"], quiet=True)
    digits = load_dataset("digits")
    np.savez(tmp_path / "new.npz", x=digits.inputs[:60].numpy(), y=digits.labels[:60].numpy())
    (placed,) = assign(folder, [tmp_path / "new.npz"])
    assert placed["cluster"] in {node.id for node in fedstrata.load(folder).tree if node.split is None}


def test_a_sweep_varies_its_keys(outside: Path, tmp_path: Path) -> None:
    grid = {"algorithm.k": [2, 4]}
    swept = fedstrata.sweep(
        outside / "headmeans.toml", grid, out=tmp_path / "sweep", sets=["rounds=2", "data.validation=0.2"], quiet=True
    )
    assert [row.algorithm for row in swept.table] == ["k=2", "k=4"] and swept.best is not None
    assert {run.summary["algorithm"] for run in swept.runs if run.summary} == {"headmeans:HeadMeans"}


def test_its_statistics_are_those_of_the_clients(outside: Path) -> None:
    from class_shares import ask_for_shares  # type: ignore[import-not-found]  # a file of the page

    setup = build_run(load_experiment(outside / "headmeans.toml", ["engine.name=loop"]))
    algorithm = setup.server.algorithm
    plan = algorithm.plan(setup.server.problem, algorithm.init(setup.server.problem), torch.arange(4))
    rows = setup.clients.run(ask_for_shares(plan)).client_stats["class_shares:shares"]
    assert rows.clients.tolist() == [0, 1, 2, 3]
    _, labels = setup.client_data.samples(setup.client_data.train(2))
    assert rows.values[2].tolist() == pytest.approx((labels.bincount(minlength=10) / len(labels)).tolist())


def test_registered_it_is_run_by_name(registered: Path, tmp_path: Path) -> None:
    keys = {"rounds": 3, "data": {"clients": 4, "samples": 40}, "algorithm": {"name": NAME, "k": 2}}
    done = fedstrata.run(keys, tmp_path / "run", quiet=True)
    assert done.summary["algorithm"] == NAME and done.summary["clusters"] == 2
    with pytest.raises(fedstrata.InputError, match=r"algorithm.k = 1"):
        fedstrata.run({"algorithm": {"name": NAME, "k": 1}}, tmp_path / "other")


@pytest.mark.parametrize("check", CHECKS or ["there is no check"])
def test_it_holds_what_every_algorithm_must(check: str, case: Case, tmp_path: Path) -> None:
    function = getattr(conformance, check)
    given = {"label": NAME, "case": case, "tmp_path": tmp_path}
    function(**{name: given[name] for name in inspect.signature(function).parameters})


def test_it_groups_the_clients_of_the_checks(case: Case) -> None:
    assert case.eventful[-1].after.tree[0].split is not None
