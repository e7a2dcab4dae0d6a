from pathlib import Path

import pytest

from hostile.cases import Case
from hostile.datasets import datasets
from hostile.experiments import experiments
from hostile.runner import Runner, complaints
from imported import strangers


@pytest.mark.parametrize("case", [*experiments(), *datasets()], ids=lambda case: case.name)
def test_hostile_input_is_refused_in_one_line_and_makes_nothing(case: Case, warm: Runner, tmp_path: Path) -> None:
    """Or it is valid after all, and makes its run."""
    here, cache = tmp_path / "here", tmp_path / "cache"
    here.mkdir()
    outcome = warm.call(
        "fedstrata.cli:main",
        [case.command(tmp_path)],
        folder=here,
        surroundings=tmp_path,
        writable=[here / "runs", cache] if case.accepted else [cache],
        environment={"FEDSTRATA_DATA": None, "FEDSTRATA_CACHE": str(cache)},
    )
    assert complaints(outcome, accepted=case.accepted) == [], outcome
    assert case.names in outcome.err
    assert strangers(outcome.looked_for, case.imports) == []
