"""FedAvg whose clients are held back from moving far away from the received model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated optimization in heterogeneous networks", MLSys 2020,
Algorithm 2.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedstrata.algorithms.parts.keys import STRICT, Norm
from fedstrata.core import Notes, Plan, Problem, Report, State, Use, advance, begin, broadcast, serve, settle
from fedstrata.lazy_torch import torch


@dataclass(frozen=True, config=STRICT)
class FedProx:
    """FedProx: FedAvg with a proximal term in every client's objective.

    Needs nothing but mu, sends what FedAvg sends, decides nothing. Whoever is absent is left out of the mean.

    Attributes:
        mu: weight of half the squared distance from the received model; 0 is FedAvg.
    """

    source: ClassVar[str] = "Li et al., MLSys 2020"

    mu: Norm = 0.01

    def init(self, problem: Problem) -> State:
        """Everyone in one cluster."""
        return begin(problem)

    def plan(self, problem: Problem, state: State, cohort: torch.Tensor) -> Plan:
        """Everyone trains the one model on F_i(w) + mu / 2 * ||w - w^t||^2."""
        plan = broadcast(problem, state, cohort)
        return replace(plan, work=(replace(plan.work[0], pull=self.mu),))

    def update(self, problem: Problem, state: State, report: Report) -> tuple[State, Notes]:
        """Average; nothing is decided."""
        return advance(problem, state, report, self.place(problem, state, report))

    def place(self, problem: Problem, state: State, report: Report) -> torch.Tensor:
        """A client that joins belongs to the one cluster."""
        return settle(state, report)

    def serve(self, problem: Problem, state: State, clients: torch.Tensor) -> tuple[Use, ...]:
        """Everyone uses the one model."""
        return serve(problem, state, clients)
