"""FedAvg with a proximal term, which keeps every client near the received model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated optimization in heterogeneous networks", MLSys 2020,
Algorithm 2.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedstrata import core
from fedstrata.algorithms.keys import STRICT, NonNegative
from fedstrata.base.lazy_torch import torch


@dataclass(frozen=True, config=STRICT)
class FedProx(core.Algorithm[core.State]):
    """FedProx: FedAvg with a proximal term in every client's objective.

    What is sent is that of FedAvg. Nothing is decided. An absent client is left out of the mean.

    Attributes:
        mu: The weight of half the squared distance from the received model; 0 is FedAvg.
    """

    source: ClassVar[str] = "Li et al., MLSys 2020"

    mu: NonNegative = 0.01

    def plan(self, problem: core.Problem, state: core.State, cohort: torch.Tensor) -> core.Plan:
        """Everyone trains the one model on F_i(w) + mu / 2 * ||w - w^t||^2."""
        plan = core.fedavg_plan(problem, state, cohort)
        return replace(plan, tasks={core.TRAIN: replace(plan.tasks[core.TRAIN], prox_weight=self.mu)})
