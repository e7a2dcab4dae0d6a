"""The two sides of a round: the algorithm that decides, and the clients that hold the data."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, cast, runtime_checkable

from fedstrata.base.lazy_torch import torch
from fedstrata.core.messages import Diagnostics, Evaluation, Plan, ProposedSplit, Report
from fedstrata.core.problem import Problem
from fedstrata.core.standard_round import aggregate, assign_pending, cluster_evaluation, fedavg_plan, initial_state
from fedstrata.core.state import StateT


class Algorithm(Protocol[StateT]):
    """Pure functions on a frozen state. The fields of an algorithm are its hyper-parameters.

    Whoever inherits from this class writes only what the algorithm does differently from FedAvg inside clusters. A
    class that inherits nothing is an algorithm too if it has all five functions.
    """

    source: ClassVar[str]

    def init(self, problem: Problem) -> StateT:
        """The state before round 1: everyone in one cluster. An algorithm with a state of its own says otherwise."""
        return cast(StateT, initial_state(problem))

    def plan(self, problem: Problem, state: StateT, cohort: torch.Tensor) -> Plan:
        """What the cohort is asked to do in round ``state.round + 1``: everyone trains the model of its cluster."""
        return fedavg_plan(problem, state, cohort)

    def update(self, problem: Problem, state: StateT, report: Report) -> tuple[StateT, Diagnostics]:
        """Cluster the clients, then average inside the new clusters. Here, the clusters stay as they are."""
        return aggregate(problem, state, report, self.assign(problem, state, report))

    def assign(self, problem: Problem, state: StateT, report: Report) -> torch.Tensor:
        """The cluster of each client, (n,), after the pending clients that answered were assigned.

        A pending client belongs to the leaf whose model has the lowest loss on its training data. The label k, the
        number of clusters, would say that a client fits none of them.
        """
        return assign_pending(state, report)

    def evaluations(self, problem: Problem, state: StateT, clients: torch.Tensor) -> dict[str, Evaluation]:
        """Which models the clients would use, by name: that of their cluster.

        The evaluation `CLIENT` is what the measures are of.
        """
        return cluster_evaluation(problem, state, clients)


@runtime_checkable
class ProposesSplits(Protocol):
    """An algorithm that splits clusters in two, and says how it would do so in any round."""

    def proposed_split(self, problem: Problem, state: Any, report: Report) -> tuple[ProposedSplit, ...]:
        """The bipartition of every cluster that it can compare by a report, whether or not a split is due."""


class Clients(Protocol):
    """Whoever holds the data: an engine, a network of devices, or a script in a test."""

    def run(self, plan: Plan) -> Report:
        """Score the evaluations of a plan, then do its tasks."""
