"""One model for everybody: the mean of what all clients trained, weighted by their samples.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-efficient learning of deep networks from
decentralized data", AISTATS 2017, Algorithm 1.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedstrata import core
from fedstrata.algorithms.keys import STRICT
from fedstrata.base.lazy_torch import torch


@dataclass(frozen=True, config=STRICT)
class FedAvg(core.Algorithm[core.State]):
    """FedAvg: one model, the sample-weighted mean of what all clients trained.

    In round t every client k of the cohort receives w_t and trains it to w^k_{t+1} (ClientUpdate). The server averages,
    with n_k training samples on client k:

        w_{t+1} = sum_k n_k / n * w^k_{t+1} = w_t + sum_k n_k / n * (w^k_{t+1} - w_t),  n = sum_k n_k

    Clients send the difference. `fedstrata.core.aggregate` adds the mean to the model of each cluster, of which there
    is one here; `fedstrata.core.weighted_mean` computes the mean, unless the experiment names a robust one.
    """

    source: ClassVar[str] = "McMahan et al., AISTATS 2017"

    def plan(self, problem: core.Problem, state: core.State, cohort: torch.Tensor) -> core.Plan:
        """Everyone receives w_t and trains it (ClientUpdate)."""
        return core.fedavg_plan(problem, state, cohort)

    def update(
        self, problem: core.Problem, state: core.State, report: core.Report
    ) -> tuple[core.State, core.Diagnostics]:
        """w_{t+1} = w_t + sum_k n_k / n * (w^k_{t+1} - w_t)."""
        return core.aggregate(problem, state, report, self.assign(problem, state, report))
