"""FedAvg inside the true groups: what a clustering that makes no mistake from round 1 would reach."""

from __future__ import annotations

from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedstrata.algorithms.parts.keys import STRICT
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


@dataclass(frozen=True, config=STRICT)
class Oracle:
    """FedAvg inside the true groups, which only a simulation knows: the ceiling for every clustering."""

    source: ClassVar[str] = "baseline: the partition's hidden truth"

    def init(self, problem: Problem) -> State:
        """One cluster per true group, all from the same start.

        Raises:
            ExperimentError: when the partition has no hidden truth.
        """
        if problem.truth is None:
            raise ExperimentError(
                "algorithm.name = 'oracle' needs a partition with true groups, found one without; "
                "use rotation, majority, label_groups, class_pairs, concept or iid"
            )
        groups = sorted(set(problem.truth.tolist()))
        labels = torch.tensor([groups.index(group) for group in problem.truth.tolist()])
        return fixed_clusters(problem, labels, len(groups), "the true groups were given")

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
