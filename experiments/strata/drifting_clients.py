"""How long it takes until a client whose data changed is in the right group, if the run is told.

    FEDSTRATA_DATA=DATA python -m experiments.strata.drifting_clients --federations 5 --jobs 1

Adds to ``experiments/results/drifting_clients.json`` the seeds that it does not hold yet. Twenty clients with turned
images of MNIST in four groups of five. Before round 21 of 50, the images of two clients are turned otherwise from then
on: one of the first group is then one of the second, and one of the third one of the fourth. Their new data are new
samples. The run is told (`events.change`), so they are placed like newcomers. A client is in the right group when most
of the others in its cluster are of its true group.

Of every run and changed client: the rounds from the change to the round after which it is in the right group for good
(none where it never is), whether it ends alone, and its accuracy over the rounds. Of the other clients: those that were
in the right group before the change and are not in the end, and all moves from one cluster to another that no split
made. Of the run: splits after the change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.parquet as pq

from experiments.strata.federations import run_study
from fedstrata.build.build import build_run
from fedstrata.build.run_setup import RunSetup
from fedstrata.config import load_experiment
from fedstrata.engine.device import one_thread
from fedstrata.play.rounds import answer_plans, timed_reply
from fedstrata.play.steps import run_steps

ROUNDS = 50
CHANGE = 21
"""The first round with other data."""

GROUP = 6
"""Clients of each group: five that take part, and one whose data another one gets, or nobody."""

GIVERS = tuple(range(GROUP - 1, 4 * GROUP, GROUP))
"""They take no part."""

CHANGED = {0: GIVERS[1], 2 * GROUP: GIVERS[3]}
"""Whose data change, and whose data they get."""

CASES: Mapping[str, bool] = {"nobody changes": False, "the run is told": True}
"""Whether data change."""


def keys(changes: bool) -> dict[str, Any]:
    """The experiment."""
    changed = [{"round": CHANGE, "client": client, "takes_data_of": giver} for client, giver in CHANGED.items()]
    return {
        "rounds": ROUNDS,
        "data": {"name": "mnist", "clients": 4 * GROUP, "samples": 200},
        "partition": {"scheme": "rotation", "groups": 4},
        "model": {"name": "mlp", "hidden": [32]},
        "local": {"epochs": 1, "batch": 20, "lr": 0.1},
        "algorithm": {"name": "strata"},
        "engine": {"name": "loop"},
        "events": {"change": changed if changes else []},
    }


def without_givers(setup: RunSetup) -> RunSetup:
    """A run in which givers never take part."""
    participation = replace(setup.server.participation, joins=dict.fromkeys(GIVERS, ROUNDS + 1))
    return replace(setup, server=replace(setup.server, participation=participation))


def right(labels: Sequence[int], truth: Sequence[int], client: int) -> bool:
    """Whether most of the others in a client's cluster are of its true group."""
    others = [truth[each] for each, label in enumerate(labels) if label == labels[client] and each != client]
    return labels[client] >= 0 and 2 * others.count(truth[client]) > len(others)


def outcome(name: str, seed: int) -> dict[str, Any]:
    """One run of a case."""
    experiment = load_experiment({**keys(CASES[name]), "seed": seed})
    with TemporaryDirectory() as folder, one_thread():
        setup = without_givers(build_run(experiment))
        run = answer_plans(run_steps(experiment, setup, Path(folder) / "run"), partial(timed_reply, setup.clients))
        tables = [pq.read_table(path).to_pylist() for path in sorted(Path(folder).glob("run/clients/*"))]
    truths = [truth.tolist() for each in run.rounds if (truth := setup.truth(each["round"])) is not None]
    placed = [
        [-1 if client in each["pending"] else label for client, label in enumerate(each["labels"])]
        for each in run.rounds
    ]
    correct = [
        {client: right(labels, truth, client) for client in range(4 * GROUP) if client not in GIVERS}
        for labels, truth in zip(placed, truths, strict=True)
    ]
    others = [client for client in correct[0] if client not in CHANGED]
    scores = [{row["client"]: row["accuracy"] for row in table} for table in tables]
    return {
        "seed": seed,
        "clusters": [each["clusters"] for each in run.rounds],
        "changed": {
            str(client): {
                "rounds": rounds_until([each[client] for each in correct[CHANGE - 1 :]]),
                "alone": placed[-1].count(placed[-1][client]) == 1,
                "accuracy": [round(each[client], 4) for each in scores],
            }
            for client in CHANGED
        },
        "accuracy_of_others": [round(sum(each[client] for client in others) / len(others), 4) for each in scores],
        "right_before": sum(correct[CHANGE - 2][client] for client in others),
        "lost": [client for client in others if correct[CHANGE - 2][client] and not correct[-1][client]],
        "moves": [
            {"round": each["round"], "client": event["client"]}
            for each in run.rounds[CHANGE - 1 :]
            for event in each["events"]
            if event["kind"] == "reassign" and event["client"] not in CHANGED
        ],
        "splits": [each["round"] for each in run.rounds if any(event["kind"] == "split" for event in each["events"])],
    }


def rounds_until(right: Sequence[bool]) -> int | None:
    """After how many rounds something is so for good; None where it is not in the end."""
    wrong = [round for round, each in enumerate(right, start=1) if not each]
    last = max(wrong, default=0)
    return None if last == len(right) else last + 1


def main() -> None:
    """Compute what is missing."""
    conditions = {name: {"keys": keys(changes)} for name, changes in CASES.items()}
    run_study("drifting_clients", __doc__, conditions, outcome, federations=5)


if __name__ == "__main__":
    main()
