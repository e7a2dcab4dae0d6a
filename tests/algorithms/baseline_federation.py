"""A small real federation: digits turned in two ways, six clients, a network of three linear layers."""

from pathlib import Path
from typing import Any

import torch

import fedstrata as fs
from fedstrata.config import load
from fedstrata.core import Diagnostics, Score, State
from fedstrata.runner.build import Setting, prepare
from fedstrata.runner.sampling import draw

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


def federation(name: str, local: dict[str, Any] | None = None, /, **keys: Any) -> Setting:
    return prepare(load(experiment(name, local, **keys)))


def train(
    setting: Setting, rounds: int = 3, fraction: float = 1.0
) -> tuple[State, list[Diagnostics], tuple[Score, ...]]:
    """The last state, the notes of all rounds, and the scores of the last models."""
    state, diagnostics = setting.algorithm.init(setting.problem), list[Diagnostics]()
    for _ in range(rounds):
        cohort, _absent = draw(0, state.round + 1, setting.everyone, fraction, 0.0)
        report = setting.clients.run(setting.algorithm.plan(setting.problem, state, cohort))
        state, note = setting.algorithm.update(setting.problem, state, report)
        diagnostics.append(note)
    return state, diagnostics, score(setting, state)


def score(setting: Setting, state: State) -> tuple[Score, ...]:
    plan = setting.algorithm.plan(setting.problem, state, setting.everyone[:0])
    nobody = torch.zeros(len(plan.cohort), dtype=torch.bool)
    evaluations = setting.algorithm.evaluations(setting.problem, state, setting.everyone)
    return setting.clients.run(
        type(plan)(plan.round, plan.seed, plan.cohort[nobody], plan.models, (), evaluations)
    ).scores


def device(setting: Setting, client: int, round: int = 99) -> torch.Tensor:
    """All that a client keeps to itself, before a round, in the order of the tensors."""
    kept = setting.clients.store.read(client, before=round)
    return torch.cat([kept[tensor] for tensor in sorted(kept)]) if kept else torch.empty(0)


def recorded(folder: Path, name: str, **keys: Any) -> fs.Run:
    """A whole run with its records."""
    return fs.run(experiment(name, **keys), folder, quiet=True)
