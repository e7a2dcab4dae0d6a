"""The algorithm of the page on adding one: its own tests, a run, and what every registered algorithm must hold."""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from blocks import agree, blocks, run

import fedstrata
import test_every_algorithm as conformance
from fedstrata.algorithms import ALGORITHMS
from turns import Case

BLOCKS = blocks("adding.md")
FILES = {block.file: block.text for block in BLOCKS if block.file}
COMMANDS = dict(command for block in BLOCKS if not block.file for command in block.commands)
NAME = "headmeans"

CHECKS = [
    name
    for name, check in vars(conformance).items()
    if name.startswith("test_") and "case" in inspect.signature(check).parameters
]
"""What is asked of every algorithm, case by case."""


@pytest.fixture(scope="module")
def registered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder with the files of the page, in which the algorithm is registered as its one line would do it."""
    folder = tmp_path_factory.mktemp("adding")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setitem(ALGORITHMS._targets, NAME, f"{NAME}:HeadMeans")
        yield folder
    sys.modules.pop(NAME, None)


@pytest.fixture(scope="module")
def case(registered: Path) -> Case:
    """A federation that the algorithm divides; of the module, so that the checks share its runs."""
    return Case(NAME, {"k": 3})


def test_every_block_is_a_file_or_a_command_on_one() -> None:
    assert list(COMMANDS) == ["pytest test_headmeans.py", "python digits.py"]
    assert list(FILES) == ["headmeans.py", "test_headmeans.py", "digits.py"]


def test_its_scripted_tests_hold(registered: Path) -> None:
    found: dict[str, Any] = {}
    exec(compile(FILES["test_headmeans.py"], "test_headmeans.py", "exec"), found)
    tests = [test for name, test in found.items() if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        test()


def test_it_runs_from_outside_of_the_library(
    registered: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(registered)
    _, printed = run("python digits.py", capsys)
    assert agree(COMMANDS["python digits.py"], printed), printed
    assert (registered / "runs" / NAME / "report.html").exists()
    assert (registered / "runs" / NAME / "matrices" / "00002.npz").exists()


def test_registered_it_is_run_by_name(registered: Path, tmp_path: Path) -> None:
    keys = {"rounds": 3, "data": {"clients": 4, "samples": 40}, "algorithm": {"name": NAME, "k": 2}}
    done = fedstrata.run(keys, tmp_path / "run", quiet=True)
    assert done.summary["algorithm"] == NAME and done.summary["clusters"] == 2
    with pytest.raises(fedstrata.InputError, match=r"algorithm.k = 1"):
        fedstrata.run({"algorithm": {"name": NAME, "k": 1}}, tmp_path / "other")


@pytest.mark.parametrize("check", CHECKS)
def test_it_holds_what_every_algorithm_must(check: str, case: Case, tmp_path: Path) -> None:
    function = getattr(conformance, check)
    given = {"label": NAME, "case": case, "tmp_path": tmp_path}
    function(**{name: given[name] for name in inspect.signature(function).parameters})


def test_the_checks_are_those_of_the_suite() -> None:
    assert {"test_recorded_reports_replay_to_the_same_bits", "test_permuting_the_clients_permutes_their_labels"} <= set(
        CHECKS
    )


def test_it_groups_the_clients_of_the_checks(case: Case) -> None:
    assert case.eventful[-1].after.tree[0].split is not None
