"""One model on the union of all data: what a federation gives up for privacy."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass

from fedstrata.algorithms.parts.keys import STRICT
from fedstrata.core import (
    Diagnostics,
    Evaluation,
    Plan,
    Problem,
    Report,
    State,
    aggregate,
    cluster_evaluation,
    fedavg_plan,
    initial_state,
)
from fedstrata.lazy_torch import torch


@dataclass(frozen=True, config=STRICT)
class Centralized:
    """Centralized training: one model on all clients' training data together.

    Needs what only a simulation has: the reserved client id n, which holds the union of the training data. Sends no
    model; that all data would have to be sent once is recorded as `bytes_data`. Decides nothing. The cohort
    does not matter: the data of absent clients, and of those that join late, are in the union.

    Attributes:
        steps: of a round: epoch is the local epochs over the union; equal is as many steps as one client makes,
            with batches n times as large.
    """

    source: ClassVar[str] = "baseline: the union of all data"

    steps: Literal["epoch", "equal"] = "epoch"

    def init(self, problem: Problem) -> State:
        """Everyone in one cluster."""
        return initial_state(problem)

    def plan(self, problem: Problem, state: State, cohort: torch.Tensor) -> Plan:
        """The holder of the union trains the one model, whoever takes part."""
        plan = fedavg_plan(problem, state, cohort[:1])
        (task,) = plan.tasks
        batch = task.training.batch * (problem.clients if self.steps == "equal" else 1)
        union = replace(
            task, candidates=torch.zeros(1, 1, dtype=torch.int64), training=replace(task.training, batch=batch)
        )
        return replace(plan, cohort=torch.tensor([problem.clients]), tasks=(union,))

    def update(self, problem: Problem, state: State, report: Report) -> tuple[State, Diagnostics]:
        """Take over what the holder of the union trained."""
        (result,) = report.results
        # Labels have no place for the reserved id; in one cluster any client can stand for it.
        stand_in = replace(result.updates, clients=torch.zeros_like(result.updates.clients))
        union = replace(report, results=(replace(result, updates=stand_in),))
        return aggregate(problem, state, union, self.place(problem, state, report))

    def place(self, problem: Problem, state: State, report: Report) -> torch.Tensor:
        """Everyone belongs to the one cluster."""
        return torch.zeros_like(state.labels)

    def evaluations(self, problem: Problem, state: State, clients: torch.Tensor) -> tuple[Evaluation, ...]:
        """Everyone uses the one model."""
        return cluster_evaluation(problem, state, clients)
