"""What becomes of an algorithm when its keys take away what is special about it, and whether it finds easy groups."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from baseline_federation import CLIENTS, PARAMETERS, device, federation, recorded, train

from fedstrata.build.build import build_run
from fedstrata.clustering import ari
from fedstrata.config import load_experiment
from fedstrata.core import Score, State

ROTATIONS = {"scheme": "rotation", "groups": 3}
CLASSES = {"scheme": "label_groups", "labels": [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]}
STEEP = {"lr": 0.5, "batch": 0, "epochs": 3}
PATIENT = {"lr": 0.1, "batch": 10, "epochs": 3}


@cache
def plain() -> tuple[State, Score]:
    """The last state of FedAvg, and the scores of its model."""
    state, _, scores = train(federation("fedavg"), fraction=0.5)
    return state, scores["client"]


@pytest.mark.parametrize(
    ("name", "keys", "evaluation"),
    [
        pytest.param("fedprox", {"mu": 0.0}, "client", id="no proximal term"),
        pytest.param("ditto", {}, "global", id="the global model of ditto"),
        pytest.param("finetune", {}, "global", id="the model before fine-tuning"),
        pytest.param("fedper", {"personal": []}, "client", id="no personal layers"),
        pytest.param("fedrep", {"personal": []}, "client", id="no head"),
        pytest.param("ifca", {"k": 1}, "client", id="one model to choose"),
        pytest.param("fesem", {"k": 1, "weighted": True}, "client", id="one center"),
        pytest.param("fl_hc", {"round": 9}, "client", id="no round of clustering"),
        pytest.param("fl_hc", {"round": 1, "cut": 1e9}, "client", id="one group of updates"),
        pytest.param("pacfl", {"cut": 90.0}, "client", id="one group of data"),
        pytest.param("hicfl", {"epsilon": 0.0}, "client", id="no stable layer"),
        pytest.param("random_groups", {"groups": 1}, "client", id="one random group"),
        pytest.param("adacfl", {"cut": 1e9, "precluster": False}, "client", id="one group of weights"),
    ],
)
def test_it_is_fedavg_bit_for_bit(name: str, keys: dict[str, Any], evaluation: str) -> None:
    ours, _, scores = train(federation(name, **keys), fraction=0.5)
    state, score = plain()
    assert torch.equal(ours.models, state.models) and torch.equal(scores[evaluation].loss, score.loss)


@pytest.mark.parametrize(
    ("name", "keys", "fraction"), [("ditto", {"lam": 0.0}, 1.0), ("fedper", {"personal": "all"}, 0.5)]
)
def test_it_is_training_alone_bit_for_bit(name: str, keys: dict[str, Any], fraction: float) -> None:
    ours, alone = federation(name, **keys), federation("local")
    _, _, scores = train(ours, fraction=fraction)
    _, _, expected = train(alone, fraction=fraction)
    assert torch.equal(scores["client"].loss, expected["client"].loss)
    assert all(torch.equal(device(ours, client), device(alone, client)) for client in range(CLIENTS))


@pytest.mark.parametrize("name", ["ditto", "finetune"])
def test_a_personal_model_costs_no_byte_and_both_accuracies_are_recorded(name: str, tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", name)
    once = CLIENTS * 4 * PARAMETERS
    assert [(record["bytes_down"], record["bytes_up"]) for record in run.rounds] == [(once, once)] * 3
    assert all("acc_global" in record for record in run.rounds)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "partition", "local", "rounds", "keys"),
    [
        ("fesem", ROTATIONS, STEEP, 3, {"k": 3}),
        ("fl_hc", ROTATIONS, STEEP, 3, {"round": 3}),
        ("fedclust", ROTATIONS, STEEP, 2, {}),
        ("pacfl", CLASSES, STEEP, 1, {}),
        ("flis", CLASSES, PATIENT, 2, {}),
        ("strata", ROTATIONS, STEEP, 7, {}),
    ],
)
def test_it_finds_the_groups_of_digits(
    name: str, partition: dict[str, Any], local: dict[str, Any], rounds: int, keys: dict[str, Any]
) -> None:
    data = {"name": "digits", "clients": 12, "samples": 60, "test": 0.2, "public": 100}
    algorithm = {"name": name, **keys}
    setup = build_run(load_experiment({"data": data, "partition": partition, "local": local, "algorithm": algorithm}))
    state, _, _ = train(setup, rounds)
    truth = setup.server.problem.truth
    assert truth is not None and ari(state.labels, truth) == 1
