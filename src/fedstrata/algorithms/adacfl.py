"""Cluster once, early, by the weights of the smallest linear layer; give every newcomer the nearest cluster.

Gong, Xing, Liu, Wang, Liu, "Adaptive clustered federated learning for heterogeneous data in edge computing",
Mobile Networks and Applications 2022, Algorithm 1; Algorithm 2 is in `newcomers`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass

from fedstrata.algorithms.parts.keys import STRICT, Auto, Count, Linkage, Natural, Norm, Selectors, Share, names
from fedstrata.algorithms.parts.oneshot.grouping import Agglomeration, Groups, answering, divide
from fedstrata.algorithms.parts.oneshot.newcomers import incorporate, invite, nearest
from fedstrata.algorithms.parts.oneshot.snapshots import Snapshots, reach, snapshot, unclustered
from fedstrata.clustering import entropy_groups, euclidean
from fedstrata.core import (
    Decision,
    Diagnostics,
    Evaluation,
    Matrix,
    Plan,
    Problem,
    Report,
    Rows,
    State,
    assign_pending,
    cluster_evaluation,
    fedavg_plan,
)
from fedstrata.lazy_torch import torch

TOLD = ("classes", "entropy")
"""What a client tells when it registers (Algorithm 1, lines 1 to 5)."""


@dataclasses.dataclass(frozen=True)
class Registered(Snapshots):
    """Adds what clients told about their data.

    Attributes:
        facts: number of classes, and their entropy in bits, of each client, (n, 2); -1 until it has told.
    """

    facts: torch.Tensor


@dataclass(frozen=True, config=STRICT)
class AdaCFL:
    """AdaCFL: one agglomerative clustering by the weights of some layers, among clients of alike label entropy.

    Attributes:
        layers: what is compared: by default the linear layer of fewest parameters.
        cut: distance up to which clusters merge (lambda); auto cuts at the largest step of the merge heights, if
            one is clear. The paper's 1.4 is for Adam at 0.01 in round 1.
        epsilon: distance beyond which a newcomer founds a cluster; spread is 1.3 times that of the farthest member from
            its cluster's others; auto is the largest between two clusters (for one: the cut, or spread).
        round: first round in which clients may be clustered (t_c); they are once.
        linkage: how far apart two groups are.
        precluster: whether only clients with equally many classes and alike entropy may be grouped.
        chained: whether the entropy's gap of 10 % is to the client just below instead of to the group's lowest.
        tolerance: number of classes by which the members of such a group may differ.
        reference: what a newcomer trains: the initial model, for as many rounds' epochs as the members had trained
            when they were clustered; or the parent, the one model that they shared in that round, for one round's,
            which is recommended where `round` is above 1.
        compare: whether a newcomer is compared with the clusters as they were when they were made, or as they are
            now (Algorithm 2, literally).
        quorum: share of the members asked in a round that must have answered for the clustering to take place; the
            others are then placed as newcomers are.
    """

    source: ClassVar[str] = "Gong et al., Mobile Networks and Applications 2022"

    layers: Selectors = "smallest_linear"
    cut: Norm | Auto = "auto"
    epsilon: Norm | Auto | Literal["spread"] = "auto"
    round: Count = 1
    linkage: Linkage = "average"
    precluster: bool = True
    chained: bool = False
    tolerance: Natural = 0
    reference: Literal["initial", "parent"] = "initial"
    compare: Literal["snapshot", "current"] = "snapshot"
    quorum: Share = 0.5

    def init(self, problem: Problem) -> Registered:
        """Everyone in one cluster, nothing told yet."""
        facts = torch.full((problem.clients, len(TOLD)), -1.0)
        return Registered(**vars(unclustered(problem, len(self._columns(problem)))), facts=facts)

    def plan(self, problem: Problem, state: Registered, cohort: torch.Tensor) -> Plan:
        """Everyone trains the model of its cluster, a newcomer the reference; the unknown register."""
        plan = fedavg_plan(problem, state, cohort)
        if state.clustered:
            return invite(problem, state, plan, problem.layout.select(*names(self.layers)))
        # A pending client's data may have changed since it told.
        unknown = (state.labels[cohort] < 0) | (state.facts[cohort] < 0).any(dim=1)
        return replace(plan, client_stats=dict.fromkeys(TOLD, unknown) if self.precluster else {})

    def update(self, problem: Problem, state: Registered, report: Report) -> tuple[Registered, Diagnostics]:
        """Algorithm 1 once, Algorithm 2 ever after, and FedAvg inside the clusters."""
        if state.clustered:
            return incorporate(problem, state, report, *self._near(problem, state))
        facts, columns, labels = state.facts.clone(), self._columns(problem), assign_pending(state, report)
        for place, name in enumerate(TOLD):
            if name in report.client_stats:
                facts[report.client_stats[name].clients, place] = report.client_stats[name].values[:, 0]
        known = (facts >= 0).all(dim=1) | (not self.precluster)
        fresh = report.results[0].only(report.results[0].updates.clients.argsort())
        fresh = fresh.only(known[fresh.updates.clients])
        weights = Rows(fresh.updates.clients, state.models[0, columns] + fresh.updates.values[:, columns])
        told, quorum = replace(state, facts=facts), answering(self.quorum, report, labels, first=self.round)
        group = partial(self._group, facts)
        moved, diagnostics = divide(problem, told, report, labels, weights, quorum, group)
        if not moved.clustered:
            return moved, diagnostics
        moved = snapshot(moved, columns, weights, fresh.sizes, self.epsilon, self.cut)
        return (replace(moved, reference=state.models[0], age=1) if self.reference == "parent" else moved), diagnostics

    def _group(self, facts: torch.Tensor, weights: Rows) -> Groups:
        """Algorithm 1, lines 6 to 8: pre-clusters, and within each the distances and what merges."""
        clients, alike = weights.clients, torch.zeros_like(weights.clients)
        if self.precluster:
            alike = entropy_groups(*facts[clients].T, chained=self.chained, tolerance=self.tolerance)
        groups, cuts, matrices = torch.empty_like(clients), dict[str, float](), list[Matrix]()
        layer = ", ".join(names(self.layers))
        agglomeration = Agglomeration(self.cut, self.linkage, euclidean, "l2", layer)  # Eq. 3
        for precluster in alike.unique().tolist():
            rows = alike == precluster
            merged, distance, cut = agglomeration.merge(weights.values[rows])
            groups[rows] = precluster * len(clients) + merged
            cuts |= {f"cut {precluster}": cut} if cut < torch.inf else {}
            matrices.append(Matrix(0, f"{layer} of pre-cluster {precluster}", "l2", clients[rows], distance))
        why = f"{len(clients)} clients, {len(matrices)} pre-clusters, {len(groups.unique())} clusters"
        return Groups(groups, Decision(why, layer, cuts), tuple(matrices))

    def place(self, problem: Problem, state: Registered, report: Report) -> torch.Tensor:
        """A pending client belongs to the nearest cluster within epsilon, before the clustering to the only one."""
        if not state.clustered:
            return assign_pending(state, report)
        return nearest(state, report, *self._near(problem, state))[0].clamp(max=len(state.models))

    def evaluations(self, problem: Problem, state: State, clients: torch.Tensor) -> tuple[Evaluation, ...]:
        """Everyone uses the model of its cluster, a pending client the one of lowest loss on its training data."""
        return cluster_evaluation(problem, state, clients)

    def _columns(self, problem: Problem) -> torch.Tensor:
        return problem.layout.columns(problem.layout.select(*names(self.layers)))

    def _near(self, problem: Problem, state: Registered) -> tuple[torch.Tensor, torch.Tensor, float]:
        """What newcomers are compared by (q,) and with (k, q), and epsilon."""
        columns = self._columns(problem)
        if self.compare == "snapshot":
            return columns, state.centroids, state.epsilon
        now = state.models[:, columns]
        return columns, now, reach(now, state.epsilon) if self.epsilon == "auto" else state.epsilon
