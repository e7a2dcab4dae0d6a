"""FedAvg with a proximal term, which keeps every client near the received model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated optimization in heterogeneous networks", MLSys 2020,
Algorithm 2.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedstrata.algorithms.keys import STRICT, Norm
from fedstrata.base.lazy_torch import torch
from fedstrata.core import (
    TRAIN,
    Diagnostics,
    Evaluation,
    Plan,
    Problem,
    Report,
    State,
    aggregate,
    assign_pending,
    cluster_evaluation,
    fedavg_plan,
    initial_state,
)


@dataclass(frozen=True, config=STRICT)
class FedProx:
    """FedProx: FedAvg with a proximal term in every client's objective.

    What is sent is that of FedAvg. Nothing is decided. An absent client is left out of the mean.

    Attributes:
        mu: The weight of half the squared distance from the received model; 0 is FedAvg.
    """

    source: ClassVar[str] = "Li et al., MLSys 2020"

    mu: Norm = 0.01

    def init(self, problem: Problem) -> State:
        """Everyone in one cluster."""
        return initial_state(problem)

    def plan(self, problem: Problem, state: State, cohort: torch.Tensor) -> Plan:
        """Everyone trains the one model on F_i(w) + mu / 2 * ||w - w^t||^2."""
        plan = fedavg_plan(problem, state, cohort)
        return replace(plan, tasks={TRAIN: replace(plan.tasks[TRAIN], prox_weight=self.mu)})

    def update(self, problem: Problem, state: State, report: Report) -> tuple[State, Diagnostics]:
        """Average; nothing is decided."""
        return aggregate(problem, state, report, self.assign(problem, state, report))

    def assign(self, problem: Problem, state: State, report: Report) -> torch.Tensor:
        """A client that joins belongs to the one cluster."""
        return assign_pending(state, report)

    def evaluations(self, problem: Problem, state: State, clients: torch.Tensor) -> dict[str, Evaluation]:
        """Everyone uses the one model."""
        return cluster_evaluation(problem, state, clients)
