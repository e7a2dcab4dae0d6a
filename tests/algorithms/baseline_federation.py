"""A small real federation: digits turned in two ways, six clients, a network of three linear layers."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import fedstrata as fs
from builders import with_tree_events
from fedstrata.build.build import build_run
from fedstrata.build.participation import Participation
from fedstrata.build.run_setup import RunSetup
from fedstrata.config import load_experiment
from fedstrata.core import Diagnostics, Score, State

CLIENTS, SAMPLES = 6, 40
PARAMETERS = (64 * 12 + 12) + (12 * 8 + 8) + (8 * 10 + 10)
HEAD = 8 * 10 + 10


def experiment(name: str, local: dict[str, Any] | None = None, /, **keys: Any) -> dict[str, Any]:
    return {
        "rounds": 3,
        "data": {"name": "digits", "clients": CLIENTS, "samples": SAMPLES, "test": 0.2},
        "partition": {"scheme": "rotation", "groups": 2},
        "model": {"name": "mlp", "hidden": [12, 8]},
        "local": {"lr": 0.2, "batch": 10, **(local or {})},
        "algorithm": {"name": name, **keys},
    }


def federation(name: str, local: dict[str, Any] | None = None, /, **keys: Any) -> RunSetup:
    return build_run(load_experiment(experiment(name, local, **keys)))


def train(
    setup: RunSetup, rounds: int = 3, fraction: float = 1.0
) -> tuple[State, list[Diagnostics], Mapping[str, Score]]:
    """The last state, the notes of all rounds, and the scores of the last models by evaluation."""
    state, diagnostics = setup.server.algorithm.init(setup.server.problem), list[Diagnostics]()
    for _ in range(rounds):
        cohort, _absent = Participation(len(setup.everyone), seed=0, fraction=fraction).sample(state.round + 1)
        report = setup.clients.run(setup.server.algorithm.plan(setup.server.problem, state, cohort))
        state, note = with_tree_events(state, *setup.server.algorithm.update(setup.server.problem, state, report))
        diagnostics.append(note)
    return state, diagnostics, score(setup, state)


def score(setup: RunSetup, state: State) -> Mapping[str, Score]:
    plan = setup.server.algorithm.plan(setup.server.problem, state, setup.everyone[:0])
    nobody = torch.zeros(len(plan.cohort), dtype=torch.bool)
    evaluations = setup.server.algorithm.evaluations(setup.server.problem, state, setup.everyone)
    return setup.clients.run(replace(plan.only(nobody), tasks={}, evaluations=evaluations)).scores


def metrics_of(note: Diagnostics) -> dict[str, float]:
    """The metrics of a round by name."""
    return {metric.name: metric.value for metric in note.metrics}


def device(setup: RunSetup, client: int, round: int = 99) -> torch.Tensor:
    """All that a client keeps to itself, before a round, in the order of the tensors."""
    kept = setup.clients.store.read(client, before=round)
    return torch.cat([kept[tensor] for tensor in sorted(kept)]) if kept else torch.empty(0)


def recorded(folder: Path, name: str, **keys: Any) -> fs.Run:
    """A whole run with its records."""
    return fs.run(experiment(name, **keys), folder, quiet=True)
