"""What every attack does to the honest clients with the default keys, beside the Byzantine clients' absence.

    FEDSTRATA_DATA=DATA python -m experiments.trust.tolerated_attacks --federations 5 --jobs 2

Adds to ``experiments/results/tolerated_attacks.json`` the seeds that it does not hold yet; ten of MNIST come first with
``--federations 10``. Twenty clients with turned images of MNIST or CIFAR-10 in four groups, and as many images to test
as to train. Strata has its default keys; under the attacks that cost most on CIFAR-10, also the geometric median. Of
the 20 clients 2 or 4 are Byzantine, or 2 of the 5 in one group. Each run is compared with one in which the same clients
never answer. Without any attack, Strata runs with its checks of updates and without. Of every run: the accuracy of each
client, its cluster, its true group, and which clients are Byzantine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from experiments.strata.federations import run_study, runs_of
from experiments.trust.attacked_federations import VARIANTS, case
from experiments.trust.attacked_shares import PLACES, clients_of, outcome
from fedstrata.uploads.attacks.byzantine_clients import choose_byzantine
from fedstrata.uploads.attacks.updates import named_attacks

CLIENTS = 20
GROUPS = 4
WHERE = ("2 of 20", "4 of 20", "2 of the 5 of a group")
"""Who is Byzantine, in words."""

ABSENT = "absent"
"""The name of the runs in which these clients never answer."""

DATA: Mapping[str, Mapping[str, Any]] = {
    "mnist": {"name": "mnist", "samples": 400, "test": 0.5},
    "cifar10": {"name": "cifar10", "samples": 1000, "test": 0.5},
}
"""The tables of data sets, by name. CIFAR-10 needs more images for a network that learns something."""

ATTACKS: Mapping[str, Mapping[str, Any]] = {
    **{kind: {"kind": kind} for kind in named_attacks()},
    **{name: VARIANTS[name] for name in ("scaling times 10", "backdoor times 5")},
}
"""The tables of attacks, by name."""

ROBUST = "geometric_median"
"""The rule of the runs that do not have the default one."""

COSTLY = ("alie", "min_max", "slow_poisoning")
"""The attacks that cost most by default."""


def case_name(data: str, attack: str, where: str, rule: str) -> str:
    """What a case is called."""
    return f"{data}: {attack}, {where}" + (f", {rule}" if rule == ROBUST else "")


CASES: Mapping[str, tuple[str, str, str, str]] = {
    case_name(data, attack, where, rule): (data, attack, where, rule)
    for rule, sets, attacks in (("mean", tuple(DATA), tuple(ATTACKS)), (ROBUST, ("cifar10",), COSTLY))
    for data in sets
    for where in WHERE
    for attack in (ABSENT, *attacks)
}
"""The data set, the attack, the Byzantine clients and the rule of aggregation of each case."""


def unattacked_name(data: str, *, checked: bool) -> str:
    """What a run without an attack is called."""
    return f"{data}: nobody" + ("" if checked else ", without checks")


UNATTACKED: Mapping[str, tuple[str, bool]] = {
    unattacked_name(data, checked=checked): (data, checked) for data in DATA for checked in (True, False)
}
"""The data set of each case without an attack, and whether updates are checked."""


def unattacked_experiment(data: str, checked: bool = True) -> dict[str, Any]:
    """The keys of a run without an attack."""
    server: dict[str, Any] = {} if checked else {"server": {"checks": []}}
    return {**case({}), "algorithm": {"name": "strata"}, "data": {"clients": CLIENTS, **DATA[data]}, **server}


def experiment(data: str, attack: str, where: str, rule: str, seed: int) -> dict[str, Any]:
    """The keys of a run."""
    tables = unattacked_experiment(data)
    if rule == ROBUST:
        tables["server"] = {"aggregation": rule}
    if attack == ABSENT:
        absent = byzantine(where, seed)
        return {**tables, "cohort": {"weights": [float(client not in absent) for client in range(CLIENTS)]}}
    return {**tables, "attack": {**ATTACKS[attack], **PLACES[where]}}


def keys_of(name: str, seed: int) -> dict[str, Any]:
    """The keys of a case."""
    return unattacked_experiment(*UNATTACKED[name]) if name in UNATTACKED else experiment(*CASES[name], seed)


def byzantine(where: str, seed: int) -> tuple[int, ...]:
    """The clients that are Byzantine in all runs with a seed."""
    groups = torch.arange(CLIENTS) // (CLIENTS // GROUPS)
    one_cluster = PLACES[where]["where"] == "one_cluster"
    return choose_byzantine(CLIENTS, PLACES[where]["share"], groups if one_cluster else None, seed)


def one(name: str, seed: int) -> dict[str, Any]:
    """One run of a case."""
    return clients_of(keys_of(name, seed), seed)


def outcomes(
    known: Mapping[str, Any], data: str, attack: str, where: str, rule: str = "mean"
) -> list[dict[str, float]]:
    """What an attack did to the honest clients beside the absence of the others, by seed.

    Args:
        known: What the file of results holds.
        data: The data set.
        attack: The attack.
        where: Who is Byzantine.
        rule: The rule of aggregation.
    """
    found = [runs_of(known, case_name(data, kind, where, rule)) for kind in (attack, ABSENT)]
    runs, absent = ({run["seed"]: run for run in each} for each in found)
    return [outcome(runs[seed], absent[seed]) for seed in sorted(runs.keys() & absent.keys())]


def main() -> None:
    """Compute what is missing."""
    conditions = {name: {"keys": keys_of(name, seed=0)} for name in (*CASES, *UNATTACKED)}
    run_study("tolerated_attacks", __doc__, conditions, one, federations=5)


if __name__ == "__main__":
    main()
