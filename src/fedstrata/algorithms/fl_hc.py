"""Some rounds of FedAvg, one hierarchical clustering of the updates, then FedAvg inside the clusters.

Briggs, Fan, Andras, "Federated learning with hierarchical clustering of local updates to improve training on non-IID
data", IJCNN 2020, Algorithm 1 (FL+HC).
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass

from fedstrata.algorithms.parts.keys import STRICT, Auto, Count, Linkage, Norm, Share
from fedstrata.algorithms.parts.oneshot.grouping import Agglomeration, Clustered, answering, divide
from fedstrata.clustering import cosine, euclidean
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
from fedstrata.lazy_torch import torch


@dataclass(frozen=True, config=STRICT)
class FLHC:
    """FL+HC: one hierarchical clustering of whole updates after some rounds of FedAvg.

    Clients that did not answer in the round of the clustering wait for it to be over, and then take the cluster of
    lowest training loss, as newcomers do: their updates of other rounds are not comparable.

    Attributes:
        round: of the clustering (n + 1); until then all train one model. It is put off until enough clients answer.
        cut: distance up to which clusters merge; auto cuts at the largest step of the merge heights, if it is clear.
        linkage: how far apart two groups are.
        metric: how far apart two updates are: l2, l1, or 1 minus their cosine.
        quorum: share of the clients asked in the round of the clustering that must have answered.
    """

    source: ClassVar[str] = "Briggs et al., IJCNN 2020"

    round: Count = 10
    cut: Norm | Auto = "auto"
    linkage: Linkage = "average"
    metric: Literal["l2", "l1", "cosine"] = "l2"
    quorum: Share = 0.5

    def init(self, problem: Problem) -> Clustered:
        """Everyone in one cluster."""
        return Clustered(**vars(initial_state(problem)), clustered=0)

    def plan(self, problem: Problem, state: State, cohort: torch.Tensor) -> Plan:
        """Everyone trains the model of its cluster."""
        return fedavg_plan(problem, state, cohort)

    def update(self, problem: Problem, state: Clustered, report: Report) -> tuple[Clustered, Diagnostics]:
        """Group the clients once, then average."""
        labels = self.place(problem, state, report)
        if state.clustered:
            return aggregate(problem, state, report, labels)
        columns = problem.layout.columns(problem.layout.select("all"))
        updates = report.results[0].updates.only(columns)
        quorum = answering(self.quorum, report, labels, first=self.round)
        agglomeration = Agglomeration(self.cut, self.linkage, self._distance, f"d{self.metric}", "all")
        return divide(problem, state, report, labels, updates, quorum, agglomeration.groups)

    def place(self, problem: Problem, state: State, report: Report) -> torch.Tensor:
        """A pending client belongs to the leaf whose model has the lowest loss on its training data."""
        return assign_pending(state, report)

    def evaluations(self, problem: Problem, state: State, clients: torch.Tensor) -> tuple[Evaluation, ...]:
        """Everyone uses the model of its cluster."""
        return cluster_evaluation(problem, state, clients)

    def _distance(self, updates: torch.Tensor) -> torch.Tensor:
        if self.metric == "l1":
            return torch.cdist(updates, updates, p=1)
        return euclidean(updates) if self.metric == "l2" else 1 - cosine(updates)
