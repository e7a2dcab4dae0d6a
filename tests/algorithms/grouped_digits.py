"""A real federation whose groups are easy to find: digits in three rotations, or of three sets of classes."""

from typing import Any

from baseline_federation import train

from fedstrata.build.build import build_run
from fedstrata.clustering import ari
from fedstrata.config import load_experiment

ROTATIONS = {"scheme": "rotation", "groups": 3}
CLASSES = {"scheme": "label_groups", "labels": [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]}
STEEP = {"lr": 0.5, "batch": 0, "epochs": 3}
PATIENT = {"lr": 0.1, "batch": 10, "epochs": 3}


def agreement(name: str, partition: dict[str, Any], local: dict[str, Any], rounds: int, **keys: Any) -> float:
    """Adjusted Rand index of the clusters that an algorithm finds."""
    data = {"name": "digits", "clients": 12, "samples": 60, "test": 0.2, "public": 100}
    algorithm = {"name": name, **keys}
    setup = build_run(load_experiment({"data": data, "partition": partition, "local": local, "algorithm": algorithm}))
    state, _, _ = train(setup, rounds)
    truth = setup.server.problem.truth
    assert truth is not None
    return ari(state.labels, truth)
