"""A shared base, and layers on top of it that never leave the client.

Arivazhagan, Aggarwal, Singh, Choudhary, "Federated learning with personalization layers", arXiv 1912.00818, 2019,
Algorithms 1 and 2.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedstrata.algorithms.keys import STRICT
from fedstrata.algorithms.personal_layers import Personal, personal_evaluation, personal_mask, personal_plan
from fedstrata.base.lazy_torch import torch
from fedstrata.core import (
    Diagnostics,
    Evaluation,
    Plan,
    Problem,
    Report,
    State,
    aggregate,
    assign_pending,
    initial_state,
)


@dataclass(frozen=True, config=STRICT)
class FedPer:
    """FedPer: FedAvg on the base; the personal layers are trained along and stay on the client.

    The personal layers must be named. The others are sent in every round, and all of them once, so that all heads start
    equal. Nothing is decided. An absent client keeps its personal layers as they were. A client that takes part for the
    first time starts them from theta^0.

    Attributes:
        personal: The layers that stay on the client; none is FedAvg, all is training alone.
    """

    source: ClassVar[str] = "Arivazhagan et al., arXiv 1912.00818, 2019"

    personal: Personal = "head"

    def init(self, problem: Problem) -> State:
        """Everyone in one cluster."""
        return initial_state(problem)

    def plan(self, problem: Problem, state: State, cohort: torch.Tensor) -> Plan:
        """Everyone trains the shared base and its personal layers together."""
        return personal_plan(problem, state, cohort, personal_mask(problem.layout, self.personal))

    def update(self, problem: Problem, state: State, report: Report) -> tuple[State, Diagnostics]:
        """Average the base; nothing is decided."""
        return aggregate(problem, state, report, self.assign(problem, state, report))

    def assign(self, problem: Problem, state: State, report: Report) -> torch.Tensor:
        """A client that joins belongs to the one cluster."""
        return assign_pending(state, report)

    def evaluations(self, problem: Problem, state: State, clients: torch.Tensor) -> dict[str, Evaluation]:
        """Everyone uses its personal layers on the shared base."""
        return personal_evaluation(problem, state, clients, personal_mask(problem.layout, self.personal))
