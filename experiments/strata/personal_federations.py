"""What Strata with personal models comes to where groups are weak, hidden under other differences, or none at all.

    FEDSTRATA_DATA=DATA python -m experiments.strata.personal_federations --federations 5 --jobs 2

Adds to ``experiments/results/personal_federations.json`` the seeds that it does not hold yet. What is kept of a
federation is as in ``outlier_federations.py``. Strata and the personal models have no keys.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.strata.championship import PEOPLE
from experiments.strata.federations import outcomes_of, run_study
from experiments.strata.outlier_federations import case

METHODS: Mapping[str, Mapping[str, Any]] = {
    "local": {"algorithm": {"name": "local"}},
    "fedavg": {"algorithm": {"name": "fedavg"}},
    "strata": {"algorithm": {"name": "strata"}},
    "strata_best": {"algorithm": {"name": "strata"}, "personal": {"method": "best"}},
}
"""The tables of the methods, by name."""

WITH_GROUPS: Mapping[str, Mapping[str, Any]] = {**METHODS, "oracle": {"algorithm": {"name": "oracle"}}}
"""The same for federations whose true groups are known."""


def _fashion(partition: Mapping[str, Any]) -> dict[str, Any]:
    """Twenty clients with 300 images of Fashion-MNIST each, and the network of the papers."""
    return {
        "rounds": 20,
        "data": {"name": "fashion_mnist", "clients": 20, "samples": 300},
        "partition": dict(partition),
        "model": {"name": "fmnist_cnn"},
        "local": {"epochs": 1, "batch": 20, "lr": 0.05},
        "engine": {"name": "batched"},
    }


def _swapped_pair(one: int, other: int) -> dict[str, Any]:
    """Two groups of ten that call two digits by each other's name."""
    return {
        **case((10, 10), "concept", 200),
        "partition": {"scheme": "concept", "sizes": [10, 10], "classes": [one, other]},
    }


def _weak_groups() -> dict[str, Any]:
    """The experiment of late_split.toml."""
    return tomllib.loads((Path(__file__).parent / "late_split.toml").read_text())


CASES: Mapping[str, Mapping[str, Any]] = {
    "Fashion-MNIST, Dirichlet 0.3": _fashion({"scheme": "dirichlet", "alpha": 0.3}),
    "USC-HAD, 14 people": PEOPLE,
    "Fashion-MNIST, four rotations": _fashion({"scheme": "rotation", "groups": 4}),
    "MNIST, four majorities of 0.35": _weak_groups(),
    "MNIST, two rotations, each of Dirichlet 0.5": {
        **case((10, 10), "rotation", 400),
        "partition": {"scheme": "rotation", "groups": 2, "inside": {"scheme": "dirichlet", "alpha": 0.5}},
    },
    "MNIST, digits 0 and 1 swapped": _swapped_pair(0, 1),
    "MNIST, digits 3 and 8 swapped": _swapped_pair(3, 8),
}
"""Experiments, by what they are."""

WITHOUT_GROUPS = ("Fashion-MNIST, Dirichlet 0.3", "USC-HAD, 14 people")
"""Those whose clients all differ."""


def methods_of(name: str) -> Mapping[str, Mapping[str, Any]]:
    """The methods of a case."""
    return METHODS if name in WITHOUT_GROUPS else WITH_GROUPS


def one(name: str, seed: int) -> dict[str, Any]:
    """One federation of a case under each of its methods."""
    return outcomes_of(CASES, methods_of(name), name, seed)


def main() -> None:
    """Compute what is missing."""
    conditions = {name: {"keys": keys, "methods": methods_of(name)} for name, keys in CASES.items()}
    run_study("personal_federations", __doc__, conditions, one, federations=5)


if __name__ == "__main__":
    main()
