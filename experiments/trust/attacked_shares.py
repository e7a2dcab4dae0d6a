"""What more or fewer Byzantine clients do to the honest ones, spread or in one group, by default and with one rule.

    FEDSTRATA_DATA=DATA python -m experiments.trust.attacked_shares --federations 3 --jobs 1

Adds to ``experiments/results/attacked_shares.json`` the seeds that it does not hold yet. The federations are those of
``attacked_federations.py``: twenty clients with turned images of MNIST in four groups. Strata has its default keys: the
mean, validated updates, and its check of directions; or the geometric median in place of the mean. Of every run: the
accuracy of each client, its cluster, its true group, and which clients are Byzantine. So the honest clients can be
compared with themselves without an attack.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.parquet as pq

import fedstrata
from experiments.strata.federations import run_study, runs_of
from experiments.trust.attacked_federations import METHODS, case

RULES = ("mean", "geometric_median")
"""That of the default, and the robust rule that loses least at worst in ``attacked_federations.py``."""

FEW = "2 of 20"
"""Who is Byzantine in federations that are for the default alone."""

ATTACKS: Mapping[str, Mapping[str, Any]] = {
    "sign_flip": {"kind": "sign_flip"},
    "scaling": {"kind": "scaling"},
    "scaling times 10": {"kind": "scaling", "strength": 10.0},
    "noise": {"kind": "noise"},
    "zero": {"kind": "zero"},
    "alie": {"kind": "alie"},
    "ipm": {"kind": "ipm"},
    "min_max": {"kind": "min_max"},
    "sybil": {"kind": "sybil"},
    "slow_poisoning": {"kind": "slow_poisoning"},
}
"""The attacks on models, by name."""

PLACES: Mapping[str, Mapping[str, Any]] = {
    "2 of 20": {"share": 0.1, "where": "spread"},
    "4 of 20": {"share": 0.2, "where": "spread"},
    "6 of 20": {"share": 0.3, "where": "spread"},
    "8 of 20": {"share": 0.4, "where": "spread"},
    "2 of the 5 of a group": {"share": 0.4, "where": "one_cluster"},
}
"""Who is Byzantine, in words, and the keys for it."""

WHO: Mapping[str, Mapping[str, Any]] = {
    "nobody": {},
    **{f"{name}, {place}": {**attack, **keys} for place, keys in PLACES.items() for name, attack in ATTACKS.items()},
}
"""The tables of attacks, by the attack and who is Byzantine."""


def case_name(who: str, rule: str) -> str:
    """What a federation with a rule is called."""
    return who if rule == RULES[0] else f"{who}, {rule}"


CASES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    case_name(who, rule): (rule, case(attack))
    for rule in RULES
    for who, attack in WHO.items()
    if rule == RULES[0] or not who.endswith(FEW)
}
"""The rule and the experiment of each federation."""


def one(name: str, seed: int) -> dict[str, Any]:
    """One federation of a case: of every client its accuracy, its cluster and its true group."""
    rule, keys = CASES[name]
    return clients_of({**keys, **METHODS[rule]}, seed)


def clients_of(keys: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """What clients come to in a run: their accuracies, clusters and true groups, and who is Byzantine.

    Args:
        keys: The experiment.
        seed: Its seed.
    """
    with TemporaryDirectory() as folder:
        run = fedstrata.run({**keys, "seed": seed}, Path(folder) / "run", quiet=True)
        last = pq.read_table(max((run.folder / "clients").glob("*"))).to_pylist()
    scores = {client["client"]: round(client["accuracy"], 6) for client in last}
    return {
        "seed": seed,
        "byzantine": run.summary.get("attack", {}).get("clients", []),
        "accuracy": [scores[client] for client in sorted(scores)],
        "labels": run.rounds[-1]["labels"],
        "truth": run.summary["truth"],
    }


def outcome(run: Mapping[str, Any], unharmed: Mapping[str, Any]) -> dict[str, float]:
    """What an attack did to the honest clients.

    Args:
        run: A run of some case.
        unharmed: The run of the same seed without an attack.

    Returns:
        The mean accuracy of the honest clients, and what they lost against themselves without an attack: the mean of
        all, and the mean of those of the true group that lost most. ``captured`` is the number of honest clients in
        clusters of which at least half is Byzantine, ``with attackers`` that in clusters with any Byzantine client,
        ``pure`` whether no cluster has honest clients of two groups, and ``exact`` whether each group also has one
        cluster. ``as unharmed`` is whether the groups are exact, or not exact without the attack either, and
        ``outvoted`` whether most clients of some true group are Byzantine.
    """
    clients = range(len(run["accuracy"]))
    honest = [client for client in clients if client not in run["byzantine"]]
    loss = {client: unharmed["accuracy"][client] - run["accuracy"][client] for client in honest}
    groups = {run["truth"][client] for client in honest}
    by_group = [mean(loss[client] for client in honest if run["truth"][client] == group) for group in groups]
    labels = run["labels"]
    hostile = {client: [labels[other] for other in run["byzantine"]].count(labels[client]) for client in honest}
    pure, exact = _pure_and_exact(run, honest)
    return {
        "accuracy": mean(run["accuracy"][client] for client in honest),
        "loss": mean(loss.values()),
        "worst group": max(by_group),
        "captured": sum(2 * hostile[client] >= labels.count(labels[client]) for client in honest),
        "with attackers": sum(hostile[client] > 0 for client in honest),
        "honest": len(honest),
        "pure": pure,
        "exact": exact,
        "as unharmed": exact or not _pure_and_exact(unharmed, honest)[1],
        "outvoted": any(
            2 * sum(run["truth"][client] == group for client in run["byzantine"]) > run["truth"].count(group)
            for group in set(run["truth"])
        ),
    }


def _pure_and_exact(run: Mapping[str, Any], clients: Sequence[int]) -> tuple[bool, bool]:
    """Whether no cluster has clients of two groups, and whether each group also has one cluster."""
    pairs = {(run["labels"][client], run["truth"][client]) for client in clients}
    clusters = {cluster for cluster, _ in pairs}
    groups = {group for _, group in pairs}
    pure = len(pairs) == len(clusters)
    return pure, pure and len(pairs) == len(groups)


def outcomes(known: Mapping[str, Any], who: str, rule: str) -> list[dict[str, float]]:
    """What an attack did under a rule, by seed; nothing where it was not run.

    Args:
        known: What the file of results holds.
        who: The attack, and who is Byzantine.
        rule: The rule of aggregation.
    """
    runs = {run["seed"]: run for run in runs_of(known, case_name(who, rule))}
    unharmed = {run["seed"]: run for run in runs_of(known, case_name("nobody", rule))}
    return [outcome(runs[seed], unharmed[seed]) for seed in sorted(runs.keys() & unharmed.keys())]


def main() -> None:
    """Compute what is missing."""
    conditions = {name: {"keys": keys, "methods": {rule: METHODS[rule]}} for name, (rule, keys) in CASES.items()}
    run_study("attacked_shares", __doc__, conditions, one, federations=3)


if __name__ == "__main__":
    main()
