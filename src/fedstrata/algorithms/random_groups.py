"""FedAvg inside groups that were drawn at random: what having several models is worth without knowing anything."""

from __future__ import annotations

from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedstrata.algorithms.parts.keys import STRICT, Count
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
    fixed_clusters,
)
from fedstrata.errors import ExperimentError
from fedstrata.lazy_torch import torch


def draw_groups(problem: Problem, groups: int) -> torch.Tensor:
    """Groups of equal size (within one client), a function of the seed, (n,)."""
    places = torch.randperm(problem.clients, generator=problem.generator("random groups"))
    return places % groups


@dataclass(frozen=True, config=STRICT)
class RandomGroups:
    """Random groups: FedAvg inside equal groups that the seed draws, the floor for every clustering.

    Needs to be told how many, sends what FedAvg sends, decides nothing after the first draw. Whoever is absent is
    left out of its group's mean; a client that joins late takes the group of lowest training loss.

    Attributes:
        groups: how many.
    """

    source: ClassVar[str] = "baseline: groups drawn by the seed"

    groups: Count = 4

    def init(self, problem: Problem) -> State:
        """One cluster per random group, all from the same start.

        Raises:
            ExperimentError: when there are more groups than clients.
        """
        if self.groups > problem.clients:
            raise ExperimentError(f"algorithm.groups = {self.groups}: expected at most the {problem.clients} clients")
        return fixed_clusters(
            problem, draw_groups(problem, self.groups), self.groups, "the groups were drawn at random"
        )

    def plan(self, problem: Problem, state: State, cohort: torch.Tensor) -> Plan:
        """Everyone trains the model of its group."""
        return fedavg_plan(problem, state, cohort)

    def update(self, problem: Problem, state: State, report: Report) -> tuple[State, Diagnostics]:
        """Average inside the groups."""
        return aggregate(problem, state, report, self.place(problem, state, report))

    def place(self, problem: Problem, state: State, report: Report) -> torch.Tensor:
        """A pending client belongs to the leaf whose model has the lowest loss on its training data."""
        return assign_pending(state, report)

    def evaluations(self, problem: Problem, state: State, clients: torch.Tensor) -> tuple[Evaluation, ...]:
        """Everyone uses the model of its group."""
        return cluster_evaluation(problem, state, clients)
