"""A shared representation, and a head for every client that is trained first, on top of it.

Collins, Hassani, Mokhtari, Shakkottai, "Exploiting shared representations for personalized federated learning",
ICML 2021, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedstrata import core
from fedstrata.algorithms.keys import STRICT, PositiveInteger
from fedstrata.algorithms.personal_layers import (
    Personal,
    outside,
    personal_evaluation,
    personal_mask,
    personal_plan,
)
from fedstrata.base.lazy_torch import torch


@dataclass(frozen=True, config=STRICT)
class FedRep(core.Algorithm[core.State]):
    """FedRep: each client first fits its own head to the received body, then the body to that head.

    The layers of the head must be named. The others are sent in every round, and all of them once, so that all heads
    start equal. Nothing is decided. An absent client keeps its head as it was. A client that takes part for the first
    time starts it from theta^0.

    Attributes:
        personal: The head, which stays on the client; none is FedAvg.
        head_epochs: The local epochs of the head, before those of the body.
    """

    source: ClassVar[str] = "Collins et al., ICML 2021"

    personal: Personal = "head"
    head_epochs: PositiveInteger = 1

    def plan(self, problem: core.Problem, state: core.State, cohort: torch.Tensor) -> core.Plan:
        """Everyone trains its head with the body frozen, then the body with its head frozen."""
        personal = personal_mask(problem.layout, self.personal)
        plan = personal_plan(problem, state, cohort, personal)
        both = plan.tasks[core.TRAIN]
        training = both.training.with_epochs(self.head_epochs)
        head = replace(both, training=training, trainable=personal, upload=problem.layout.nothing, stream="head")
        body = replace(both, trainable=outside(personal), save_local=problem.layout.nothing)
        return replace(plan, tasks={"head": head, core.TRAIN: body})

    def evaluations(
        self, problem: core.Problem, state: core.State, clients: torch.Tensor
    ) -> dict[str, core.Evaluation]:
        """Everyone uses its own head on the shared body."""
        return personal_evaluation(problem, state, clients, personal_mask(problem.layout, self.personal))
