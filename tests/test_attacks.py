"""What one hostile client out of six can do to a run."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

from builders import keys
from fedstrata.play.interrupt import Stopped
from one_attacker import Attack, attacked, honest_accuracy

ROUNDS = 6
TABLES = keys(
    rounds=ROUNDS,
    data={"samples": 100, "test": 0.25},
    partition={"scheme": "iid"},
    model={"hidden": [16]},
    local={"batch": 20},
)
CONSTANTS = (1.0, 1e20, 3.4e38)
"""The square of the second one is no float32 any more, and the third one is nearly none."""
WHEN = {"in round 2": (2,), "once": (3,), "every round": tuple(range(1, ROUNDS + 1))}


def tables(algorithm: str) -> dict[str, Any]:
    return keys(TABLES, algorithm={"name": algorithm})


@cache
def absent(algorithm: str, when: str) -> tuple[torch.Tensor, float]:
    """The last models and the honest clients' accuracy when the attacker does not answer in these rounds."""
    with TemporaryDirectory() as folder:
        run = attacked(tables(algorithm), Path(folder) / "run", Attack(rounds=WHEN[when], absent=True))
        return run.state.models, honest_accuracy(run)


@pytest.mark.parametrize(("algorithm", "when"), [("fedavg", "every round"), ("strata", "once")])
@pytest.mark.parametrize("constant", [*CONSTANTS, None])
def test_a_client_that_sends_a_constant_or_its_update_times_100_is_as_if_absent(
    algorithm: str, when: str, constant: float | None, tmp_path: Path
) -> None:
    attack = Attack(constant=constant, rounds=WHEN[when])
    with pytest.raises(Stopped):
        attacked(tables(algorithm), tmp_path / "run", attack, stop=4)
    run = attacked(tables(algorithm), tmp_path / "run", attack, resume=True)
    models, accuracy = absent(algorithm, when)
    assert accuracy > 0.7, "the clients learn nothing that an attack could spoil"
    assert abs(honest_accuracy(run) - accuracy) <= 0.03
    assert torch.equal(run.state.models, models)
    assert [record["round"] for record in run.rounds if record["rejected"] == [0]] == list(attack.rounds)
    told = [event for record in run.rounds for event in record["events"] if event["kind"] == "rejected"]
    assert len(told) == run.summary["rejected"] == len(attack.rounds)
    assert all(event["reason"] == "norm" and event["norm"] > event["limit"] for event in told)
    assert run.summary["diverged"] == {"rounds": [], "clients": 0}


@pytest.mark.parametrize("fold", ["all", "A"])
def test_a_client_that_attacks_one_of_several_tasks_is_rejected_in_all(fold: str, tmp_path: Path) -> None:
    """Round 2 of Strata has two tasks: the ordinary training, and one on half A of the data."""
    run = attacked(tables("strata"), tmp_path / "run", Attack(constant=1.0, rounds=(2,), folds={fold}))
    models, _ = absent("strata", "in round 2")
    assert torch.equal(run.state.models, models)
    (event,) = run.rounds[1]["events"]
    assert event["clients"] == [0] and (event["task"] == "train") == (fold == "all")


def test_of_two_clients_neither_can_be_rejected_but_the_divergence_is_told(tmp_path: Path) -> None:
    """Two norms cannot be compared. A model of one constant guesses; what is trained from it is far worse."""
    two = keys(TABLES, data={"clients": 2})
    run = attacked(two, tmp_path / "run", Attack(constant=1e17, rounds=(3,)))
    assert run.summary["diverged"] == {"rounds": [4, 5, 6], "clients": 0}
