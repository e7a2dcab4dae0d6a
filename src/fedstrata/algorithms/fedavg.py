"""One model for everybody.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-efficient learning of deep networks from
decentralized data", AISTATS 2017, Algorithm 1.
"""

from __future__ import annotations

from typing import ClassVar

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
    assign_pending,
    cluster_evaluation,
    fedavg_plan,
    initial_state,
)
from fedstrata.lazy_torch import torch


@dataclass(frozen=True, config=STRICT)
class FedAvg:
    """FedAvg: one model, the sample-weighted mean of what all clients trained."""

    source: ClassVar[str] = "McMahan et al., AISTATS 2017"

    def init(self, problem: Problem) -> State:
        """Everyone in one cluster."""
        return initial_state(problem)

    def plan(self, problem: Problem, state: State, cohort: torch.Tensor) -> Plan:
        """Everyone trains the one model."""
        return fedavg_plan(problem, state, cohort)

    def update(self, problem: Problem, state: State, report: Report) -> tuple[State, Diagnostics]:
        """Average; nothing is decided."""
        return aggregate(problem, state, report, self.place(problem, state, report))

    def place(self, problem: Problem, state: State, report: Report) -> torch.Tensor:
        """A pending client belongs to the leaf whose model has the lowest loss on its training data."""
        return assign_pending(state, report)

    def evaluations(self, problem: Problem, state: State, clients: torch.Tensor) -> tuple[Evaluation, ...]:
        """Everyone uses the one model."""
        return cluster_evaluation(problem, state, clients)
