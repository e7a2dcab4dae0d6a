"""One client that sends something else than it has trained: what the tests of validation attack runs with."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow.parquet as pq
import torch

from fedstrata.build.build import build_run
from fedstrata.config import load_experiment
from fedstrata.core import Plan, Report, Result, Rows
from fedstrata.engine import Engine
from fedstrata.engine.device import one_thread
from fedstrata.play.rounds import answer_plans, timed_reply
from fedstrata.play.steps import run_steps
from fedstrata.results.run import Run

ATTACKER = 0
"""The id of the client that attacks."""


@dataclass(frozen=True)
class Attack:
    """What one client sends.

    Attributes:
        constant: The number in every column of its update; None sends 100 times the update that it has trained.
        rounds: The rounds in which it attacks.
        folds: The parts of the data on which it replaces updates; None is all.
        absent: Whether it does not answer at all in these rounds, as the other attacks are compared with.
    """

    constant: float | None = None
    rounds: Collection[int] = (3,)
    folds: Collection[str] | None = None
    absent: bool = False

    def on(self, result: Result) -> Result:
        """A result with the row of the client replaced."""
        values = result.updates.values.clone()
        own = result.updates.clients == ATTACKER
        values[own] = values[own] * 100 if self.constant is None else torch.full_like(values[own], self.constant)
        return replace(result, updates=Rows(result.updates.clients, values))


class Attacked:
    """Clients of whom one attacks.

    Args:
        clients: The clients, all honest.
        attack: The attack of one of them.
    """

    def __init__(self, clients: Engine, attack: Attack) -> None:
        """Attack nobody yet."""
        self._clients, self._attack = clients, attack
        self.store, self.outputs = clients.store, clients.outputs

    def run(self, plan: Plan) -> Report:
        """The honest answers, but for those of the attacker."""
        attack = self._attack
        if plan.round not in attack.rounds:
            return self._clients.run(plan)
        if attack.absent:
            return self._clients.run(plan.only(plan.cohort != ATTACKER))
        report = self._clients.run(plan)
        results = {
            name: attack.on(result) if attack.folds is None or plan.tasks[name].fold in attack.folds else result
            for name, result in report.results.items()
        }
        return replace(report, results=results)


def attacked(
    tables: dict[str, Any], out: Path, attack: Attack, *, stop: int | None = None, resume: bool = False
) -> Run:
    """A run under attack.

    Args:
        tables: The tables of the experiment.
        out: The run folder.
        attack: The attack.
        stop: The round after which the run is interrupted.
        resume: Whether to go on with the run in the folder.

    Raises:
        Stopped: When it was interrupted.
    """
    experiment, rounds = load_experiment(tables), count()
    with one_thread():
        setup = build_run(experiment)
        setup = replace(setup, clients=Attacked(setup.clients, attack))
        steps = run_steps(experiment, setup, out, resume=resume, stop=lambda: stop is not None and next(rounds) >= stop)
        return answer_plans(steps, partial(timed_reply, setup.clients))


def honest_accuracy(run: Run) -> float:
    """Mean accuracy of all clients but the attacker after the last round."""
    table = pq.read_table(run.folder / "clients" / f"{run.summary['rounds']:05d}.parquet").to_pydict()
    pairs = zip(table["client"], table["accuracy"], strict=True)
    return fmean(accuracy for client, accuracy in pairs if client != ATTACKER)
