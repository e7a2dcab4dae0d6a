"""What Byzantine clients do to the honest ones, by attack and rule of aggregation.

    FEDSTRATA_DATA=DATA python -m experiments.trust.attacked_federations --federations 3 --jobs 2

Adds to ``experiments/results/attacked_federations.json`` the seeds that it does not hold yet. Twenty clients with
turned images of MNIST in four groups. Of the 20, 4 are Byzantine, or 2 of the 5 in one group. Of every run: the mean
accuracy of the honest clients, that of the worst one, the agreement of their clusters with the true groups (adjusted
Rand index), and the number of clusters that have honest clients. With a backdoor, also the attack success rate: over
all honest clients, over those in clusters with Byzantine ones, and over the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.strata.federations import outcomes_of, run_study
from fedstrata.uploads.attacks.updates import BACKDOOR, named_attacks

MANY = ("fedavg", "mean", "median", "trimmed_mean", "geometric_median", "multi_krum", "centered_clip")
"""The methods under attacks on updates."""

FEW = ("fedavg", "mean", "multi_krum", "norm_clip")
"""The methods under backdoors and lies."""

METHODS: Mapping[str, Mapping[str, Any]] = {
    "fedavg": {"algorithm": {"name": "fedavg"}},
    **{
        rule: {"algorithm": {"name": "strata"}, "server": {"aggregation": rule}}
        for rule in dict.fromkeys((*MANY[1:], *FEW[1:]))
    },
}
"""The tables of each method: FedAvg, and Strata with each rule."""

PLACES: Mapping[str, Mapping[str, Any]] = {
    "4 of 20": {"share": 0.2, "where": "spread"},
    "2 of the 5 of a group": {"share": 0.4, "where": "one_cluster"},
}
"""Who is Byzantine, in words, and the keys for it."""

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "scaling times 10": {"kind": "scaling", "strength": 10.0},
    "split, lies for splits": {"kind": "split", "losses": "for_splits"},
    "sign_flip, lies for splits": {"kind": "sign_flip", "losses": "for_splits"},
    "merge, lies against splits": {"kind": "merge", "losses": "against_splits"},
    "backdoor times 5": {"kind": "backdoor", "strength": 5.0},
}
"""Attacks that have more keys than their kind."""


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
        f"{name}, {place}": case({**attack, **keys})
        for name, attack in {**{kind: {"kind": kind} for kind in named_attacks()}, **VARIANTS}.items()
        for place, keys in PLACES.items()
    },
}
"""Experiments, by the attack and who is Byzantine."""


def methods_of(name: str) -> dict[str, Mapping[str, Any]]:
    """The methods of a case."""
    attack = CASES[name]["attack"]
    few = attack.get("kind") == BACKDOOR or "losses" in attack
    return {method: METHODS[method] for method in (FEW if few else MANY)}


def one(name: str, seed: int) -> dict[str, Any]:
    """One federation of a case under each of its methods."""
    return outcomes_of(CASES, methods_of(name), name, seed)


def main() -> None:
    """Compute what is missing."""
    conditions = {name: {"keys": keys, "methods": methods_of(name)} for name, keys in CASES.items()}
    run_study("attacked_federations", __doc__, conditions, one, federations=3)


if __name__ == "__main__":
    main()
