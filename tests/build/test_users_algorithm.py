import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import fedstrata as fs
from fedstrata.algorithms.fedavg import FedAvg
from fedstrata.base.errors import UserCodeError
from fedstrata.core import Plan, Problem, Report, State

KEYS: dict[str, Any] = {"rounds": 3, "data": {"clients": 4, "samples": 20}, "engine": {"name": "loop"}}


@dataclass(frozen=True)
class Failing(FedAvg):
    """FedAvg that makes a mistake in the second round."""

    where: str = "update"

    def plan(self, problem: Problem, state: State, cohort: torch.Tensor) -> Plan:
        if state.round == 1 and self.where == "plan":
            raise KeyError("no such cluster")
        return super().plan(problem, state, cohort)

    def update(self, problem: Problem, state: State, report: Report) -> Any:
        after, told = super().update(problem, state, report)
        if state.round == 1 and self.where == "update":
            return after
        return after, told if self.where != "notes" else "fine"


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("plan", r":Failing: plan of round 2 failed: KeyError: 'no such cluster'"),
        ("update", r":Failing: update of round 2: expected a State and Diagnostics, found State"),
        ("notes", r":Failing: update of round 1: expected a State and Diagnostics, found \(State, str\)"),
    ],
)
def test_a_mistake_in_an_algorithm_names_the_function_and_the_round(where: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserCodeError, match=message) as failed:
        fs.run({**KEYS, "algorithm": Failing(where)}, tmp_path / "run", quiet=True)
    assert ('raise KeyError("no such cluster")' in failed.value.trace) == (where == "plan")


def test_a_comparison_tells_it_and_shows_where_to_whom_asks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "fedstrata"):
        compared = fs.compare(KEYS, ["fedavg", Failing("plan")], out=tmp_path / "compared", quiet=True)
    (line,) = compared.troubles
    assert "plan of round 2 failed: KeyError" in line
    assert any(record.exc_info and "no such cluster" in str(record.exc_info[1]) for record in caplog.records)
