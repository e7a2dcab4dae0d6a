"""A global model by FedAvg, and a personal model for every client that a proximal term keeps near to it.

Li, Hu, Beirami, Smith, "Ditto: fair and robust federated learning through personalization", ICML 2021, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedstrata.algorithms.shared.ditto_task import ditto_task
from fedstrata.algorithms.shared.keys import STRICT, Auto, Norm, PositiveInteger
from fedstrata.base.lazy_torch import torch
from fedstrata.core import (
    CLIENT,
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
class Ditto:
    """Ditto: every client also trains a model of its own, pulled towards the global one.

    Every device has room for a second model and trains a second time; what is sent is that of FedAvg. Nothing is
    decided. A personal model starts from the first global model that its client receives. It stays as it is while the
    client is absent. A client that never took part uses the global model. Accuracy is that of the personal models; the
    global one is recorded as `acc_global` (FedTSDP's tables seem to report that one).

    Attributes:
        lam: The weight of the pull towards the global model (lambda); 0 is training alone.
        epochs: The local epochs of the personal model. "auto" is as many as the global one gets.
    """

    source: ClassVar[str] = "Li et al., ICML 2021"

    lam: Norm = 1.0
    epochs: PositiveInteger | Auto = "auto"

    def init(self, problem: Problem) -> State:
        """Everyone in one cluster."""
        return initial_state(problem)

    def plan(self, problem: Problem, state: State, cohort: torch.Tensor) -> Plan:
        """Everyone trains the global model, then its own."""
        plan = fedavg_plan(problem, state, cohort)
        shared = plan.tasks[TRAIN]
        personal = ditto_task(problem, plan.round, shared.candidates, self.lam, self.epochs)
        return replace(plan, tasks={TRAIN: shared, "personal": personal})

    def update(self, problem: Problem, state: State, report: Report) -> tuple[State, Diagnostics]:
        """Average the global updates; nothing is decided."""
        return aggregate(problem, state, report, self.assign(problem, state, report))

    def assign(self, problem: Problem, state: State, report: Report) -> torch.Tensor:
        """A client that joins belongs to the one cluster."""
        return assign_pending(state, report)

    def evaluations(self, problem: Problem, state: State, clients: torch.Tensor) -> dict[str, Evaluation]:
        """Everyone uses its personal model; the global one is recorded beside it."""
        shared = cluster_evaluation(problem, state, clients)[CLIENT]
        return {CLIENT: replace(shared, load_local=problem.layout.everything), "global": shared}
