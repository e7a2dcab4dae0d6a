"""A round of recursive bipartition: which clusters are examined, by which answers, and what becomes of them.

`collect_answers` finds the clusters that are to be examined. The algorithm makes a `SplitDecision` about each of them.
`split_and_average` splits clusters and averages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from fedstrata.base.lazy_torch import torch
from fedstrata.core import (
    TRAIN,
    Decision,
    Diagnostics,
    Matrix,
    Metric,
    Problem,
    ProposedSplit,
    Report,
    Result,
    State,
    aggregate,
    assign_pending,
    members_in_cohort,
)
from fedstrata.core.aggregation import plain_mean, weighted_mean


@dataclass(frozen=True)
class ClusterHistory:
    """What is remembered of every cluster.

    Attributes:
        max_norms: The largest norm of any member's update so far, over all conv and linear layers, (k,).
        max_compared_norms: The same over the compared layers, (k,).
        final: The clusters that are not examined again, (k,) bool. A client that joins one reopens it.
        labels: The cluster of each client after the last round, (n,), which tells who has been moved since.
    """

    max_norms: torch.Tensor
    max_compared_norms: torch.Tensor
    final: torch.Tensor
    labels: torch.Tensor

    def of_clusters(self, parents: torch.Tensor, labels: torch.Tensor) -> ClusterHistory:
        """What is remembered of clusters (k',) after a round. One that goes on keeps it; parts of one begin anew."""
        whole = parents.bincount()[parents] == 1
        return ClusterHistory(
            max_norms=self.max_norms[parents] * whole,
            max_compared_norms=self.max_compared_norms[parents] * whole,
            final=self.final[parents] & whole,
            labels=labels.clone(),
        )


@dataclass(frozen=True)
class BipartitionState(State):
    """The state of a recursive bipartition.

    Attributes:
        bipartition: What is remembered of every cluster.
    """

    bipartition: ClusterHistory


BipartitionStateT = TypeVar("BipartitionStateT", bound=BipartitionState)


@dataclass(frozen=True)
class SplitRules:
    """Which clusters are examined.

    Attributes:
        first: The first round in which a cluster is examined.
        quorum: The share of the members asked in a round whose answers must be usable.
        min_split: The least number of usable answers.
    """

    first: int
    quorum: float
    min_split: int


EVERY_PAIR = SplitRules(first=1, quorum=0.0, min_split=2)
"""Every cluster is examined of which two members can be compared."""

NEVER_REACHED = 1e30
"""A threshold that no norm and no stability reaches."""


@dataclass(frozen=True)
class RoundAnswers:
    """A round before anything is decided.

    Attributes:
        labels: The cluster of each client, (n,), after the pending clients that answered have joined one.
        history: What is remembered of the clusters, with the norms of this round.
        usable: The usable answers of each cluster that is to be examined, in the order of the client ids.
        too_few: The decision about each cluster with too few usable answers.
    """

    labels: torch.Tensor
    history: ClusterHistory
    usable: Mapping[int, Result]
    too_few: Mapping[int, Decision]


@dataclass(frozen=True)
class SplitDecision:
    """What came of the examination of one cluster.

    Attributes:
        reason: Why the cluster is split or stays whole, as data.
        parts: The client ids of the two new clusters; None when the cluster stays whole.
        matrix: What the members were compared by, if they were.
        final: Whether the cluster is final (see `ClusterHistory`).
    """

    reason: Decision
    parts: tuple[torch.Tensor, torch.Tensor] | None = None
    matrix: Matrix | None = None
    final: bool = False


def one_cluster(clients: int) -> ClusterHistory:
    """So many clients in one cluster, no update seen yet."""
    labels = torch.zeros(clients, dtype=torch.int64)
    return ClusterHistory(torch.zeros(1), torch.zeros(1), torch.zeros(1, dtype=torch.bool), labels)


def reopened(state: BipartitionStateT) -> BipartitionStateT:
    """The state in which no cluster is final."""
    history = state.bipartition
    return replace(state, bipartition=replace(history, final=torch.zeros_like(history.final)))


def max_norm(rows: torch.Tensor) -> float:
    """The largest norm of a row (LayerCFL Eq. 28); 0 without rows."""
    if not len(rows):
        return 0.0
    return float(rows.double().norm(dim=1).max())  # Squares of float32 overflow long before their roots.


def mean_norm(problem: Problem, usable: Result) -> float:
    """The norm of the mean update of some clients, over all conv and linear layers (LayerCFL Eq. 27: all tensors)."""
    updates = usable.updates.take_columns(problem.layout.conv_and_linear)
    together = torch.zeros(len(usable.sizes), dtype=torch.int64)
    # Not by a robust rule: of two groups it follows the larger one, so that no cluster would be stationary.
    mean = plain_mean if problem.aggregation.rule is plain_mean else weighted_mean
    return float(mean(updates, usable.sizes, together, 1).double().norm())


def collect_answers(
    problem: Problem,
    state: BipartitionState,
    report: Report,
    compared: torch.Tensor,
    rules: SplitRules,
    ready: torch.Tensor | None = None,
) -> RoundAnswers:
    """Find the clusters that are to be examined, and the answers by which they are.

    An answer is usable if its client trained the model of its own cluster and is one of `ready`.

    Args:
        problem: What is fixed for the run.
        state: The state before the round.
        report: The report of the round.
        compared: The columns that the algorithm compares, (q,).
        rules: Which clusters are examined.
        ready: The clients whose answers may be usable, bool (n,). None is everyone.
    """
    labels = assign_pending(state, report)
    result = report.results[TRAIN]
    result = result.only(result.updates.clients.argsort())  # Between equals, the lowest id decides.
    conv_and_linear = problem.layout.conv_and_linear
    remembered = state.bipartition
    max_norms = remembered.max_norms.clone()
    max_compared_norms = remembered.max_compared_norms.clone()
    final = remembered.final.clone()
    # By `assign_pending`, or moved between rounds.
    joined = ((labels != state.labels) | (labels != remembered.labels)) & (labels >= 0)
    final[labels[joined]] = False
    to_examine = dict[int, Result]()
    too_few = dict[int, Decision]()
    for cluster in range(len(state.models)):
        members = labels == cluster
        of_cluster = result.only(members[result.updates.clients] & (result.chosen == cluster))
        for norms, columns in ((max_norms, conv_and_linear), (max_compared_norms, compared)):
            norms[cluster] = max(float(norms[cluster]), max_norm(of_cluster.updates.take_columns(columns).values))
        if final[cluster]:
            continue
        asked = int(members_in_cohort(report, members).sum())
        examined = of_cluster if ready is None else of_cluster.only(ready[of_cluster.updates.clients])
        if len(examined.sizes) < rules.min_split or len(examined.sizes) / asked < rules.quorum:
            values = {
                "answered": len(of_cluster.sizes),
                "asked": asked,
                "not_ready": len(of_cluster.sizes) - len(examined.sizes),
                "min_split": rules.min_split,
                "quorum": rules.quorum,
            }
            too_few[cluster] = Decision("too_few_members", values={name: float(values[name]) for name in values})
        elif state.round + 1 >= rules.first:
            to_examine[cluster] = examined
    return RoundAnswers(labels, ClusterHistory(max_norms, max_compared_norms, final, labels), to_examine, too_few)


def split_and_average(
    problem: Problem,
    state: BipartitionStateT,
    report: Report,
    answers: RoundAnswers,
    decisions: Mapping[int, SplitDecision],
) -> tuple[BipartitionStateT, Diagnostics]:
    """Split the clusters that should be split, and average inside the new clusters.

    Args:
        problem: What is fixed for the run.
        state: The state before the round.
        report: The report of the round.
        answers: What `collect_answers` made of it.
        decisions: The decision about each cluster that was to be examined.

    Returns:
        The state after the round, and what is noted of it.
    """
    labels = torch.full_like(answers.labels, -1)  # Members of a split cluster that are in neither part become pending.
    origins = list[int]()
    for cluster in range(len(state.models)):
        parts = decisions[cluster].parts if cluster in decisions else None
        for clients in parts or ((answers.labels == cluster).nonzero().flatten(),):
            labels[clients] = len(origins)
            origins.append(cluster)
    parents = torch.tensor(origins)
    reasons = {**answers.too_few, **{cluster: decision.reason for cluster, decision in decisions.items()}}
    moved, diagnostics = aggregate(problem, state, report, labels, parents, reasons)
    final = answers.history.final.clone()
    for cluster, decision in decisions.items():
        final[cluster] = decision.final
    history = replace(answers.history, final=final).of_clusters(parents, moved.labels)
    norms = [
        Metric(name, reason.values[name], node=int(state.nodes[cluster]))
        for cluster, reason in reasons.items()
        for name in ("mean_norm", "max_norm")
        if name in reason.values
    ]
    matrices = tuple(decision.matrix for decision in decisions.values() if decision.matrix is not None)
    diagnostics = replace(diagnostics, metrics=(*diagnostics.metrics, *norms), matrices=matrices)
    return replace(moved, bipartition=history), diagnostics


def proposed_splits(
    state: State, answers: RoundAnswers, decisions: Mapping[int, SplitDecision]
) -> tuple[ProposedSplit, ...]:
    """How clusters would be divided in a round, whether or not a split is due. It is recorded, and changes no state.

    HiCFL compares bipartitions from before and after the model is stable (Table IV).

    Args:
        state: The state before the round.
        answers: The answers of the round, with `EVERY_PAIR`.
        decisions: The decision about each cluster, with thresholds that let every split be made.
    """
    found = list[ProposedSplit]()
    for cluster, decision in decisions.items():
        if decision.reason.kind in ("split", "same_direction"):
            clients = answers.usable[cluster].updates.clients
            first, second = decision.parts or (clients, clients[:0])
            found.append(ProposedSplit(int(state.nodes[cluster]), first, second))
    return tuple(found)
