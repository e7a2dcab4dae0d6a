"""What Byzantine clients do to the honest ones, by attack and rule of aggregation.

    FEDSTRATA_DATA=DATA python experiments/attacked_federations.py --federations 3 --jobs 2

Adds to ``experiments/results/attacked_federations.json`` the seeds that it does not hold yet. Twenty clients with
turned images of MNIST in four groups. Of the 20, 4 are Byzantine, or 2 of the 5 in one group. Of every run: the mean
accuracy of the honest clients, that of the worst one, the agreement of their clusters with the true groups (adjusted
Rand index), and the number of clusters.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from federations import outcomes_of, run_study

from fedstrata.attacks import ATTACKS, LABEL_FLIP

RULES = ("mean", "median", "trimmed_mean", "geometric_median", "multi_krum", "centered_clip")

METHODS: Mapping[str, Mapping[str, Any]] = {
    "fedavg": {"algorithm": {"name": "fedavg"}},
    **{rule: {"algorithm": {"name": "strata"}, "server": {"aggregation": rule}} for rule in RULES},
}
"""The tables of each method: FedAvg, and Strata with each rule."""

PLACES: Mapping[str, Mapping[str, Any]] = {
    "4 of 20": {"share": 0.2, "where": "spread"},
    "2 of the 5 of a group": {"share": 0.4, "where": "one_cluster"},
}
"""Who is Byzantine, in words, and the keys for it."""


def case(attack: Mapping[str, Any]) -> dict[str, Any]:
    """An experiment of 20 rounds."""
    return {
        "rounds": 20,
        "data": {"name": "mnist", "clients": 20, "samples": 200},
        "partition": {"scheme": "rotation", "groups": 4},
        "model": {"name": "mlp", "hidden": [32]},
        "local": {"epochs": 1, "batch": 20, "lr": 0.1},
        "engine": {"name": "loop"},
        "attack": dict(attack),
    }


CASES: Mapping[str, Mapping[str, Any]] = {
    "nobody": case({}),
    **{
        f"{kind}, {place}": case({"kind": kind, **keys})
        for kind in (*ATTACKS, LABEL_FLIP)
        for place, keys in PLACES.items()
    },
}
"""Experiments, by the attack and who is Byzantine."""


def main() -> None:
    """Compute what is missing."""
    conditions = {name: {"keys": keys, "methods": METHODS} for name, keys in CASES.items()}
    one = partial(outcomes_of, CASES, METHODS)
    run_study("attacked_federations", __doc__, conditions, one, federations=3)


if __name__ == "__main__":
    main()
