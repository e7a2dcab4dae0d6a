"""One model for everybody.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-efficient learning of deep networks from
decentralized data", AISTATS 2017, Algorithm 1.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedstrata.algorithms.parts.keys import STRICT
from fedstrata.core import Notes, Plan, Problem, Report, State, Use, advance, begin, broadcast, serve, settle
from fedstrata.lazy_torch import torch


@dataclass(frozen=True, config=STRICT)
class FedAvg:
    """FedAvg: one model, the sample-weighted mean of what all clients trained."""

    source: ClassVar[str] = "McMahan et al., AISTATS 2017"

    def init(self, problem: Problem) -> State:
        """Everyone in one cluster."""
        return begin(problem)

    def plan(self, problem: Problem, state: State, cohort: torch.Tensor) -> Plan:
        """Everyone trains the one model."""
        return broadcast(problem, state, cohort)

    def update(self, problem: Problem, state: State, report: Report) -> tuple[State, Notes]:
        """Average; nothing is decided."""
        return advance(problem, state, report, self.place(problem, state, report))

    def place(self, problem: Problem, state: State, report: Report) -> torch.Tensor:
        """A pending client belongs to the leaf whose model has the lowest loss on its training data."""
        return settle(state, report)

    def serve(self, problem: Problem, state: State, clients: torch.Tensor) -> tuple[Use, ...]:
        """Everyone uses the one model."""
        return serve(problem, state, clients)
