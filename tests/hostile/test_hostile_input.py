from pathlib import Path

import pytest

from hostile.cases import Case
from hostile.datasets import datasets
from hostile.experiments import experiments
from hostile.runner import Runner, complaints
from imported import strangers

pytestmark = pytest.mark.slow

ALL_EXPERIMENTS = experiments()
ALL_DATASETS = datasets()
EXPERIMENTS = {case.name: case for case in ALL_EXPERIMENTS}
DATASETS = {case.name: case for case in ALL_DATASETS}


def meet(case: Case, runner: Runner, folder: Path) -> None:
    """Run the command of a case: it is refused in one line and makes nothing, or it is valid and makes its run."""
    here = folder / "here"
    here.mkdir()
    outcome = runner.call(
        "fedstrata.cli:main",
        [case.command(folder)],
        folder=here,
        surroundings=folder,
        writable=[here / "runs", folder / "cache"] if case.accepted else [folder / "cache"],
        environment={"FEDSTRATA_DATA": None, "FEDSTRATA_CACHE": str(folder / "cache")},
    )
    assert complaints(outcome, accepted=case.accepted) == [], outcome
    assert case.names in outcome.err
    assert strangers(outcome.looked_for, case.imports) == []


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_hostile_experiment_is_refused_in_one_line(name: str, warm: Runner, tmp_path: Path) -> None:
    meet(EXPERIMENTS[name], warm, tmp_path)


@pytest.mark.parametrize("name", DATASETS)
def test_hostile_data_are_refused_in_one_line(name: str, warm: Runner, tmp_path: Path) -> None:
    meet(DATASETS[name], warm, tmp_path)


def test_there_are_as_many_cases_as_an_audit_needs_and_no_name_twice() -> None:
    assert len(EXPERIMENTS) == len(ALL_EXPERIMENTS) >= 150
    assert len(DATASETS) == len(ALL_DATASETS) >= 80
