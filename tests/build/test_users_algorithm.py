import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import fedstrata as fs
from fedstrata.algorithms.fedavg import FedAvg
from fedstrata.core import Plan, Problem, State

KEYS: dict[str, Any] = {"rounds": 3, "data": {"clients": 4, "samples": 20}, "engine": {"name": "loop"}}


@dataclass(frozen=True)
class Failing(FedAvg):
    """FedAvg that makes a mistake in the second round."""

    def plan(self, problem: Problem, state: State, cohort: torch.Tensor) -> Plan:
        if state.round == 1:
            raise KeyError("no such cluster")
        return super().plan(problem, state, cohort)


def test_a_mistake_in_an_algorithm_is_raised_where_it_was_made(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="no such cluster") as failed:
        fs.run({**KEYS, "algorithm": Failing()}, tmp_path / "run", quiet=True)
    assert failed.traceback[-1].path == Path(__file__)


def test_a_comparison_tells_it_and_shows_where_to_whom_asks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "fedstrata"):
        compared = fs.compare(KEYS, ["fedavg", Failing()], out=tmp_path / "compared", quiet=True)
    (line,) = compared.troubles
    assert "KeyError: 'no such cluster'" in line
    assert any(record.exc_info and "no such cluster" in str(record.exc_info[1]) for record in caplog.records)
