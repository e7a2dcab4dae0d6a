"""A shared base, and layers on top of it that never leave the client.

Arivazhagan, Aggarwal, Singh, Choudhary, "Federated learning with personalization layers", arXiv 1912.00818, 2019,
Algorithms 1 and 2.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedstrata import core
from fedstrata.algorithms.keys import STRICT
from fedstrata.algorithms.personal_layers import Personal, personal_evaluation, personal_mask, personal_plan
from fedstrata.base.lazy_torch import torch


@dataclass(frozen=True, config=STRICT)
class FedPer(core.Algorithm[core.State]):
    """FedPer: FedAvg on the base; the personal layers are trained along and stay on the client.

    The personal layers must be named. The others are sent in every round, and all of them once, so that all heads start
    equal. Nothing is decided. An absent client keeps its personal layers as they were. A client that takes part for the
    first time starts them from theta^0.

    Attributes:
        personal: The layers that stay on the client; none is FedAvg, all is training alone.
    """

    source: ClassVar[str] = "Arivazhagan et al., arXiv 1912.00818, 2019"

    personal: Personal = "head"

    def plan(self, problem: core.Problem, state: core.State, cohort: torch.Tensor) -> core.Plan:
        """Everyone trains the shared base and its personal layers together."""
        return personal_plan(problem, state, cohort, personal_mask(problem.layout, self.personal))

    def evaluations(
        self, problem: core.Problem, state: core.State, clients: torch.Tensor
    ) -> dict[str, core.Evaluation]:
        """Everyone uses its personal layers on the shared base."""
        return personal_evaluation(problem, state, clients, personal_mask(problem.layout, self.personal))
