"""One model for everybody: the mean of what all clients trained, weighted by their samples.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-efficient learning of deep networks from
decentralized data", AISTATS 2017, Algorithm 1.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedstrata.algorithms.keys import STRICT
from fedstrata.base.lazy_torch import torch
from fedstrata.core import (
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
class FedAvg:
    """FedAvg: one model, the sample-weighted mean of what all clients trained.

    In round t every client k of the cohort receives w_t and trains it to w^k_{t+1} (ClientUpdate). The server averages,
    with n_k training samples on client k:

        w_{t+1} = sum_k n_k / n * w^k_{t+1} = w_t + sum_k n_k / n * (w^k_{t+1} - w_t),  n = sum_k n_k

    Clients send the difference. `fedstrata.core.aggregate` adds the mean to the model of each cluster, of which there
    is one here; `fedstrata.core.weighted_mean` computes the mean, unless the experiment names a robust one.
    """

    source: ClassVar[str] = "McMahan et al., AISTATS 2017"

    def init(self, problem: Problem) -> State:
        """Everyone in one cluster."""
        return initial_state(problem)

    def plan(self, problem: Problem, state: State, cohort: torch.Tensor) -> Plan:
        """Everyone receives w_t and trains it (ClientUpdate)."""
        return fedavg_plan(problem, state, cohort)

    def update(self, problem: Problem, state: State, report: Report) -> tuple[State, Diagnostics]:
        """w_{t+1} = w_t + sum_k n_k / n * (w^k_{t+1} - w_t)."""
        return aggregate(problem, state, report, self.assign(problem, state, report))

    def assign(self, problem: Problem, state: State, report: Report) -> torch.Tensor:
        """A pending client belongs to the leaf whose model has the lowest loss on its training data."""
        return assign_pending(state, report)

    def evaluations(self, problem: Problem, state: State, clients: torch.Tensor) -> dict[str, Evaluation]:
        """Everyone uses the one model."""
        return cluster_evaluation(problem, state, clients)
