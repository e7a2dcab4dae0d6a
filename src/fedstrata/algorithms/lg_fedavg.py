"""Shallow layers that never leave the client, and shared layers on top of them.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency, "Think locally, act globally: federated learning
with local and global representations", arXiv 2001.01523, 2020, Algorithm 1.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedstrata import core
from fedstrata.algorithms.keys import STRICT, Auto
from fedstrata.algorithms.personal_layers import Personal, personal_evaluation, personal_mask, personal_plan
from fedstrata.base.lazy_torch import torch

_SHARED_LAYERS = 2
"""The deepest layers, so many, are shared with "auto", as in PACFL's experiments. At least one layer stays local."""


@dataclass(frozen=True, config=STRICT)
class LGFedAvg(core.Algorithm[core.State]):
    """LG-FedAvg: FedAvg on the deep layers; the shallow ones are trained along and stay on the client.

    This is the opposite of FedPer (some code shares the shallow layers instead). The personal layers must be named. The
    others are sent in every round, and all of them once, so that all start equal. Nothing is decided. An absent client
    keeps its layers as they were. A client that takes part for the first time starts them from theta^0.

    Attributes:
        personal: The layers that stay on the client. "auto" is all but the last two.
    """

    source: ClassVar[str] = "Liang et al., arXiv 2001.01523, 2020"

    personal: Auto | Personal = "auto"

    def plan(self, problem: core.Problem, state: core.State, cohort: torch.Tensor) -> core.Plan:
        """Everyone trains its own shallow and the shared deep layers together."""
        return personal_plan(problem, state, cohort, self._mask(problem))

    def evaluations(
        self, problem: core.Problem, state: core.State, clients: torch.Tensor
    ) -> dict[str, core.Evaluation]:
        """Everyone uses the shared layers on its own ones."""
        return personal_evaluation(problem, state, clients, self._mask(problem))

    def _mask(self, problem: core.Problem) -> core.Mask:
        """The personal tensors, (l,)."""
        layers = problem.layout.layers
        shallow = list(layers[: max(1, len(layers) - _SHARED_LAYERS)])
        return personal_mask(problem.layout, shallow if self.personal == "auto" else self.personal)
