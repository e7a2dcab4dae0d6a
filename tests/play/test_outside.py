"""A run whose clients are those of another framework, here a regression in numpy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import fedstrata as fs
from fedstrata.base.errors import ContractError, InputError
from fedstrata.core import FOLDS, Plan, Report
from fedstrata.engine import Answer, Ask, Work, report_of
from fedstrata.engine.work import TEST
from fedstrata.models import arrays_of_row, layout_of_arrays, row_of_arrays
from fedstrata.play.outside import OutsideModel, no_outputs, play_clients

NAMES = tuple("abcdefgh")
INPUTS, LABELS = (each[: 8 * 160] for each in load_digits(return_X_y=True))
FIRST = {"weight": np.zeros((10, 64)), "bias": np.zeros(10)}
LAYOUT = layout_of_arrays(FIRST)


def samples(client: int, part: str) -> tuple[Any, Any]:
    """What a client has: every second one names the digits otherwise."""
    own = np.arange(client, len(LABELS), len(NAMES))
    train = own[: len(own) // 4 * 3]
    own = own[len(train) :] if part == TEST else train
    for half in "" if part == "all" else part if part in FOLDS else "":
        own = own[::2] if half in "A1" else own[1::2]
    labels = LABELS[own]
    return INPUTS[own] / 16, (labels + 3) % 10 if client % 2 else labels


def answered(client: int, ask: Ask) -> Answer:
    """Train by gradient descent, or evaluate."""
    inputs, labels = samples(client, ask.fold)
    arrays = {name: values.astype(float) for name, values in arrays_of_row(ask.model, LAYOUT).items()}

    def probabilities() -> Any:
        outputs = np.exp(inputs @ arrays["weight"].T + arrays["bias"])
        return outputs / outputs.sum(axis=1, keepdims=True)

    if ask.kind == "evaluate":
        found = probabilities()
        right = found.argmax(axis=1) == labels
        loss = -np.log(found[np.arange(len(labels)), labels]).mean()
        return Answer(len(labels), loss=float(loss), accuracy=float(right.mean()))
    for _ in range(20):
        errors = probabilities() - np.eye(10)[labels]
        arrays["weight"] -= 0.5 * errors.T @ inputs / len(labels)
        arrays["bias"] -= 0.5 * errors.mean(axis=0)
    return Answer(len(labels), row_of_arrays(arrays, LAYOUT))


def answer(plan: Plan, absent: int = -1) -> Report:
    """The report of all clients that are there."""
    asked = {*plan.cohort.tolist(), *(id for each in plan.evaluations.values() for id in each.clients.tolist())}
    works = [Work(plan, client, LAYOUT) for client in sorted(asked - {absent})]
    for work in works:
        work.do(lambda ask, client=work.client: answered(client, ask))  # type: ignore[misc]
    return report_of(plan, works, LAYOUT)


@pytest.mark.parametrize("algorithm", ["strata", {"name": "fesem", "k": 2}])
def test_clients_of_another_framework_leave_a_run_folder(algorithm: Any, tmp_path: Path) -> None:
    def random() -> dict[str, Any]:
        return {"weight": np.random.normal(size=(10, 64)), "bias": np.zeros(10)}  # noqa: NPY002  # which is seeded

    run = play_clients(answer, FIRST, algorithm, names=NAMES, rounds=6, model=random, out=tmp_path / "run")
    assert [run.labels[name] for name in NAMES] == [run.labels["a"], run.labels["b"]] * 4
    assert run.labels["a"] != run.labels["b"] and run.summary["acc_client"] > 0.9
    assert (tmp_path / "run/report.html").is_file()
    assert dict(fs.load(tmp_path / "run").labels) == dict(run.labels)


def test_a_resumed_run_has_the_bits_of_a_whole_one_and_the_absent_are_absent(tmp_path: Path) -> None:
    def play(out: str, rounds: int, *, resume: bool = False) -> Any:
        return play_clients(
            lambda plan: answer(plan, absent=3),
            FIRST,
            "cfl",
            names=NAMES,
            rounds=rounds,
            out=tmp_path / out,
            resume=resume,
        )

    whole = play("whole", 3)
    play("parts", 1)
    parts = play("parts", 3, resume=True)
    files = sorted(path.name for path in (whole.folder / "models").glob("cluster*"))
    assert files and all(
        (whole.folder / "models" / n).read_bytes() == (parts.folder / "models" / n).read_bytes() for n in files
    )
    with pytest.raises(InputError, match=r"network=\.\.\."):
        whole.model("a")
    assert all(record["absent"] == [3] for record in whole.rounds)


@pytest.mark.parametrize(
    ("algorithm", "more", "error"),
    [
        ("ifca", {}, "begins with several different models"),
        ("centralized", {}, "expected one whose clients keep their data"),
        ("nothing", {}, "nothing"),
        ("fedavg", {"model": nn.Linear(64, 10)}, r"expected what makes a model, .*; leave out \(\)"),
        (
            "fedavg",
            {"model": lambda: nn.Linear(32, 10)},
            r"the first arrays: expected weight \(10, 32\), found \(10, 64\)",
        ),
        ("fedavg", {"model": lambda: nn.Linear(64, 10, bias=False)}, "expected the tensors of the model, found 'bias'"),
    ],
)
def test_what_cannot_be_played_is_said_before_anybody_is_asked(
    algorithm: str, more: dict[str, Any], error: str, tmp_path: Path
) -> None:
    def never(plan: Plan) -> Report:
        raise AssertionError(plan)

    with pytest.raises(InputError, match=error):
        play_clients(never, FIRST, algorithm, names=NAMES, rounds=2, out=tmp_path / "run", **more)
    assert not (tmp_path / "run").exists()


def test_weights_that_two_layers_share_have_the_arrays_of_both() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.second = nn.Linear(4, 4)
            self.second.weight = self.first.weight

    first = {name: values.numpy() for name, values in Tied().state_dict().items()}
    assert [spec.name for spec in OutsideModel(first, Tied).layout().tensors] == [*first]


def test_an_algorithm_that_asks_for_outputs_on_the_server_has_none() -> None:
    with pytest.raises(ContractError, match="the network is the clients'"):
        no_outputs(torch.zeros(1, LAYOUT.p), torch.zeros(1, 64))
