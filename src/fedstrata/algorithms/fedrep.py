"""A shared representation, and a head for every client that is trained first, on top of it.

Collins, Hassani, Mokhtari, Shakkottai, "Exploiting shared representations for personalized federated learning",
ICML 2021, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedstrata.algorithms.parts.keys import STRICT, Count
from fedstrata.algorithms.parts.personal import Personal, keep_local, others, personal_mask, serve_personal
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
class FedRep:
    """FedRep: each client first fits its own head to the received body, then the body to that head.

    Needs to be told which layers are the head, sends the others (and all of them once, so that all heads start
    equal), decides nothing. Whoever is absent keeps its head as it was; whoever takes part for the first time
    starts it from theta^0.

    Attributes:
        personal: the head, which stays on the client; none is FedAvg.
        head_epochs: local epochs of the head, before those of the body.
    """

    source: ClassVar[str] = "Collins et al., ICML 2021"

    personal: Personal = "head"
    head_epochs: Count = 1

    def init(self, problem: Problem) -> State:
        """Everyone in one cluster."""
        return initial_state(problem)

    def plan(self, problem: Problem, state: State, cohort: torch.Tensor) -> Plan:
        """Everyone trains its head with the body frozen, then the body with its head frozen."""
        personal = personal_mask(problem.layout, self.personal)
        plan = keep_local(problem, state, cohort, personal)
        (both,) = plan.tasks
        training = replace(both.training, epochs=self.head_epochs)
        head = replace(both, training=training, trainable=personal, upload=problem.layout.nothing, stream="head")
        body = replace(both, trainable=others(personal), save_local=problem.layout.nothing)
        return replace(plan, tasks=(head, body))

    def update(self, problem: Problem, state: State, report: Report) -> tuple[State, Diagnostics]:
        """Average the bodies; nothing is decided."""
        labels = self.place(problem, state, report)
        bodies = replace(report, results=report.results[1:])
        return aggregate(problem, state, bodies, labels)

    def place(self, problem: Problem, state: State, report: Report) -> torch.Tensor:
        """A client that joins belongs to the one cluster."""
        return assign_pending(state, report)

    def evaluations(self, problem: Problem, state: State, clients: torch.Tensor) -> tuple[Evaluation, ...]:
        """Everyone uses its own head on the shared body."""
        return serve_personal(problem, state, clients, personal_mask(problem.layout, self.personal))
