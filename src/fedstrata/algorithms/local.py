"""Everyone for itself: what a federation has to beat."""

from __future__ import annotations

from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedstrata.algorithms.parts.keys import STRICT
from fedstrata.algorithms.parts.personal import keep_local, serve_personal
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
from fedstrata.lazy_torch import torch


@dataclass(frozen=True, config=STRICT)
class Local:
    """Local: every client trains a model of its own from the common start, and shares nothing.

    Needs nothing, sends the start down once and nothing up, decides nothing; the one cluster of its records is
    only where all start from. A client trains in the rounds it takes part in, and rests in the others.
    """

    source: ClassVar[str] = "baseline: no federation"

    def init(self, problem: Problem) -> State:
        """Everyone has the same start."""
        return initial_state(problem)

    def plan(self, problem: Problem, state: State, cohort: torch.Tensor) -> Plan:
        """Everyone goes on with the model on its own device."""
        return keep_local(problem, state, cohort, problem.layout.everything)

    def update(self, problem: Problem, state: State, report: Report) -> tuple[State, Diagnostics]:
        """Count the round; nothing has arrived, so the start stays as it is."""
        return aggregate(problem, state, report, self.place(problem, state, report))

    def place(self, problem: Problem, state: State, report: Report) -> torch.Tensor:
        """A client that joins has the same start."""
        return assign_pending(state, report)

    def evaluations(self, problem: Problem, state: State, clients: torch.Tensor) -> tuple[Evaluation, ...]:
        """Everyone uses its own model."""
        return serve_personal(problem, state, clients, problem.layout.everything)
