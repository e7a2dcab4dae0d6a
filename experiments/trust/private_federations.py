"""What differential privacy costs in accuracy, with one model for all and with clusters.

    FEDSTRATA_DATA=DATA python -m experiments.trust.private_federations --federations 1 --jobs 1

Adds to ``experiments/results/private_federations.json`` the seeds that it does not hold yet. Clients with images of
MNIST, turned in four groups, train a network without hidden layers, whose few weights need the least noise. The server
adds noise for an epsilon of 8 or 2 of the whole run. Of every run: the mean accuracy of the clients, that of the worst
one, the agreement of the clusters with the true groups (adjusted Rand index), the number of clusters, and what was
accounted for.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from experiments.strata.federations import outcomes_of, run_study

EPSILONS = (8.0, 2.0)
"""The epsilons of a whole run, from the weaker promise to the stronger one."""

ALGORITHMS = ("fedavg", "strata")

CLIP_NORM = 0.5
"""The largest norm of an update. Most updates of the first rounds are longer."""


def _private(algorithm: str, epsilon: float | None) -> dict[str, Any]:
    """The tables of an algorithm with so much privacy, or none."""
    tables: dict[str, Any] = {"algorithm": {"name": algorithm}}
    if epsilon is not None:
        tables["privacy"] = {"kind": "central", "epsilon": epsilon, "clip_norm": CLIP_NORM}
    return tables


def method(algorithm: str, epsilon: float | None) -> str:
    """What an algorithm with so much privacy is called."""
    return algorithm if epsilon is None else f"{algorithm}, epsilon {epsilon:g}"


METHODS: Mapping[str, Mapping[str, Any]] = {
    method(algorithm, epsilon): _private(algorithm, epsilon)
    for algorithm in ALGORITHMS
    for epsilon in (None, *EPSILONS)
}
"""The tables of each method."""


def case(clients: int, samples: int) -> dict[str, Any]:
    """An experiment of 20 rounds."""
    return {
        "rounds": 20,
        "data": {"name": "mnist", "clients": clients, "samples": samples},
        "partition": {"scheme": "rotation", "groups": 4},
        "model": {"name": "mlp", "hidden": []},
        "local": {"epochs": 1, "batch": 20, "lr": 0.1},
        "engine": {"name": "batched", "device": "cpu"},
    }


CASES: Mapping[str, Mapping[str, Any]] = {
    "100 clients, four rotations": case(100, 200),
    "500 clients, four rotations": case(500, 80),
}
"""Experiments, by the federation."""


def main() -> None:
    """Compute what is missing."""
    conditions = {name: {"keys": keys, "methods": METHODS} for name, keys in CASES.items()}
    run_study("private_federations", __doc__, conditions, partial(outcomes_of, CASES, METHODS), federations=1)


if __name__ == "__main__":
    main()
