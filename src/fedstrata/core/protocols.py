"""The two sides of a round: who decides, and who holds the data."""

from __future__ import annotations

from typing import ClassVar, Protocol, TypeVar

from fedstrata.core.messages import Diagnostics, Evaluation, Plan, Report
from fedstrata.core.problem import Problem
from fedstrata.core.state import State
from fedstrata.lazy_torch import torch

S = TypeVar("S", bound=State)


class Algorithm(Protocol[S]):
    """Pure functions on a frozen state; its own frozen fields are its hyper-parameters."""

    source: ClassVar[str]

    def init(self, problem: Problem) -> S:
        """The state before round 1."""

    def plan(self, problem: Problem, state: S, cohort: torch.Tensor) -> Plan:
        """What the cohort does in round ``state.round + 1``."""

    def update(self, problem: Problem, state: S, report: Report) -> tuple[S, Diagnostics]:
        """Cluster, then average inside the new clusters."""

    def place(self, problem: Problem, state: S, report: Report) -> torch.Tensor:
        """The cluster of each client, (n,), once the pending ones that answered have found theirs.

        A label of k, the number of clusters, says that a client belongs to none of them.
        """

    def evaluations(self, problem: Problem, state: S, clients: torch.Tensor) -> tuple[Evaluation, ...]:
        """Which model each client would use; the first evaluation is what accuracy means."""


class Clients(Protocol):
    """Whoever holds the data: a simulator, processes, a network, a script."""

    def run(self, plan: Plan) -> Report:
        """Score, then work."""
