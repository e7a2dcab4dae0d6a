"""Recursive bipartition: in every round each cluster is examined, and it may split in two.

Sattler, Müller, Samek, "Clustered federated learning", IEEE TNNLS 2020, Algorithms 1 to 3. LayerCFL (Algorithm 2) and
HiCFL (section IV-B) walk over the clusters in the same way; they differ in how a cluster is examined.

A round has three steps. `collect_answers` says which clusters are examined, and by which answers. The algorithm makes a
`SplitDecision` about each of them. `apply_decisions` splits clusters and averages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fedstrata.base.lazy_torch import torch
from fedstrata.clustering import CLIENT_MEASURES, bipartition
from fedstrata.clustering.hierarchy import Linkage
from fedstrata.clustering.separation import theorem_1_bound
from fedstrata.clustering.similarity import STILL
from fedstrata.core import (
    TRAIN,
    Decision,
    Diagnostics,
    Matrix,
    Metric,
    Problem,
    Report,
    Result,
    State,
    aggregate,
    assign_pending,
    members_in_cohort,
)
from fedstrata.core.aggregation import plain_mean, weighted_mean
from fedstrata.core.state import StateT

EPS1_SHARE = 0.1
"""The automatic eps1 is this share of the largest update norm of the cluster (Sattler et al. 2020, section V)."""

EPS2_SHARE = 0.4
"""The automatic eps2. The authors' own experiments use 4 times eps1 (0.4 and 1.6)."""

MAY_SPLIT = "may_split"
"""The kind of a trigger's decision when the cluster may split now."""


@dataclass(frozen=True)
class BipartitionState:
    """What is remembered of every cluster.

    Attributes:
        max_norms: The largest norm of any member's update so far, over all conv and linear layers, (k,).
        max_compared_norms: The same over the compared layers, (k,).
        final: The clusters that are not examined again, (k,) bool. A client that joins one reopens it.
        labels: The cluster of each client after the last round, (n,), which tells who has been moved since; None in
            checkpoints of earlier versions, before their next round.
    """

    max_norms: torch.Tensor
    max_compared_norms: torch.Tensor
    final: torch.Tensor
    labels: torch.Tensor | None = None


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


@dataclass(frozen=True)
class RoundAnswers:
    """A round before anything is decided.

    Attributes:
        labels: The cluster of each client, (n,), after the pending clients that answered have joined one.
        remembered: What is remembered of the clusters, with the norms of this round.
        usable: The usable answers of each cluster that is to be examined, in the order of the client ids.
        too_few: The decision about each cluster with too few usable answers.
    """

    labels: torch.Tensor
    remembered: BipartitionState
    usable: Mapping[int, Result]
    too_few: Mapping[int, Decision]


@dataclass(frozen=True)
class SplitDecision:
    """What came of the examination of one cluster.

    Attributes:
        reason: Why the cluster is split or stays whole, as data.
        parts: The client ids of the two new clusters; None when the cluster stays whole.
        matrix: What the members were compared by, if they were.
        final: Whether the cluster is never examined again.
    """

    reason: Decision
    parts: tuple[torch.Tensor, torch.Tensor] | None = None
    matrix: Matrix | None = None
    final: bool = False


def one_cluster(clients: int) -> BipartitionState:
    """So many clients in one cluster, no update seen yet."""
    labels = torch.zeros(clients, dtype=torch.int64)
    return BipartitionState(torch.zeros(1), torch.zeros(1), torch.zeros(1, dtype=torch.bool), labels)


def collect_answers(
    problem: Problem,
    state: State,
    remembered: BipartitionState,
    report: Report,
    compared: torch.Tensor,
    rules: SplitRules,
    usable: torch.Tensor | None = None,
) -> RoundAnswers:
    """Find the clusters that are to be examined, and the answers by which they are.

    An answer is usable if its client trained the model of its own cluster and is one of `usable`.

    Args:
        problem: What is fixed for the run.
        state: The state before the round.
        remembered: What is remembered of its clusters.
        report: The report of the round.
        compared: The columns that the algorithm compares, (q,).
        rules: Which clusters are examined.
        usable: The clients whose answers may be usable, bool (n,). None is everyone.
    """
    labels = assign_pending(state, report)
    result = report.results[TRAIN]
    result = result.only(result.updates.clients.argsort())  # Between equals, the lowest id decides.
    conv_and_linear = problem.layout.conv_and_linear
    max_norms = remembered.max_norms.clone()
    max_compared_norms = remembered.max_compared_norms.clone()
    final = remembered.final.clone()
    final[labels[_joined(state, remembered, labels)]] = False
    to_examine = dict[int, Result]()
    too_few = dict[int, Decision]()
    for cluster in range(len(state.models)):
        members = labels == cluster
        answers = result.only(members[result.updates.clients] & (result.chosen == cluster))
        for norms, columns in ((max_norms, conv_and_linear), (max_compared_norms, compared)):
            norms[cluster] = max(float(norms[cluster]), max_norm(answers.updates.take_columns(columns).values))
        if final[cluster]:
            continue
        asked = int(members_in_cohort(report, members).sum())
        examined = answers if usable is None else answers.only(usable[answers.updates.clients])
        if len(examined.sizes) < rules.min_split or len(examined.sizes) / asked < rules.quorum:
            too_few[cluster] = _too_few(asked, len(answers.sizes), len(examined.sizes), rules)
        elif state.round + 1 >= rules.first:
            to_examine[cluster] = examined
    return RoundAnswers(labels, BipartitionState(max_norms, max_compared_norms, final), to_examine, too_few)


def _joined(state: State, remembered: BipartitionState, labels: torch.Tensor) -> torch.Tensor:
    """Who is in another cluster than after the last round, or was pending, bool (n,)."""
    joined = labels != state.labels
    if remembered.labels is not None:
        joined |= labels != remembered.labels
    return joined & (labels >= 0)


def apply_decisions(
    problem: Problem, state: StateT, report: Report, answers: RoundAnswers, decisions: Mapping[int, SplitDecision]
) -> tuple[StateT, BipartitionState, Diagnostics]:
    """Split the clusters that should be split, and average inside the new clusters.

    Args:
        problem: What is fixed for the run.
        state: The state before the round.
        report: The report of the round.
        answers: What `collect_answers` made of it.
        decisions: The decision about each cluster that was to be examined.
    """
    new_labels, parents = _divide(answers.labels, decisions, len(state.models))
    reasons = {**answers.too_few, **{cluster: decision.reason for cluster, decision in decisions.items()}}
    moved, diagnostics = aggregate(problem, state, report, new_labels, parents, reasons)
    final = answers.remembered.final.clone()
    for cluster, decision in decisions.items():
        final[cluster] = decision.final
    whole = parents.bincount()[parents] == 1  # A new cluster begins with norms of its own.
    after = BipartitionState(
        max_norms=answers.remembered.max_norms[parents] * whole,
        max_compared_norms=answers.remembered.max_compared_norms[parents] * whole,
        final=final[parents] & whole,
        labels=moved.labels.clone(),
    )
    metrics = (*diagnostics.metrics, *_norm_metrics(state, reasons))
    matrices = tuple(decision.matrix for decision in decisions.values() if decision.matrix is not None)
    return moved, after, replace(diagnostics, metrics=metrics, matrices=matrices)


def _too_few(asked: int, answered: int, usable: int, rules: SplitRules) -> Decision:
    """A cluster of which too few members can be examined."""
    values = {
        "answered": answered,
        "asked": asked,
        "not_ready": answered - usable,
        "min_split": rules.min_split,
        "quorum": rules.quorum,
    }
    return Decision(kind="too_few_members", values={name: float(value) for name, value in values.items()})


def _divide(labels: torch.Tensor, decisions: Mapping[int, SplitDecision], k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The new label of every client (n,), and the old cluster of every new one (k')."""
    # Members of a split cluster that are in neither part become pending.
    new_labels = torch.full_like(labels, -1)
    parents = list[int]()
    for cluster in range(k):
        parts = decisions[cluster].parts if cluster in decisions else None
        for clients in parts or ((labels == cluster).nonzero().flatten(),):
            new_labels[clients] = len(parents)
            parents.append(cluster)
    return new_labels, torch.tensor(parents)


def _norm_metrics(state: State, reasons: Mapping[int, Decision]) -> list[Metric]:
    """The norms (LayerCFL Eq. 27 and 28) of every cluster that was examined."""
    return [
        Metric(name, reason.values[name], node=int(state.nodes[cluster]))
        for cluster, reason in reasons.items()
        for name in ("mean_norm", "max_norm")
        if name in reason.values
    ]


def max_norm(rows: torch.Tensor) -> float:
    """The largest norm of a row (LayerCFL Eq. 28); 0 without rows."""
    if not len(rows):
        return 0.0
    return float(rows.double().norm(dim=1).max())  # Squares of float32 overflow long before their roots.


def mean_norm(problem: Problem, usable: Result) -> float:
    """The norm of the mean update of some clients, over all conv and linear layers (LayerCFL Eq. 27)."""
    updates = usable.updates.take_columns(problem.layout.conv_and_linear)
    together = torch.zeros(len(usable.sizes), dtype=torch.int64)
    # Not by a robust rule: of two groups it follows the larger one, so that no cluster would be stationary.
    mean = plain_mean if problem.aggregation.rule is plain_mean else weighted_mean
    return float(mean(updates, usable.sizes, together, 1).double().norm())


def norm_threshold(value: float | str, largest: torch.Tensor, share: float) -> float:
    """A threshold as given, or a share of the largest norm seen where it is ``"auto"``."""
    return share * float(largest) if isinstance(value, str) else value


def norm_trigger(
    problem: Problem, usable: Result, scope: torch.Tensor, eps1: float, eps2: float, layer: str
) -> Decision:
    """Whether a cluster's model is stationary for the cluster, but not for its members.

    Args:
        problem: What is fixed for the run.
        usable: The usable answers of its members.
        scope: The columns in which eps2 looks at the norms, (q,).
        eps1: The norm of the mean update must be smaller.
        eps2: The largest norm of an update must be at least as large.
        layer: The layers that are compared.

    Returns:
        A decision of kind `MAY_SPLIT`, "not_stationary", "members_converged", or "layers_not_trained" where members
        move, but not in the compared layers.
    """
    mean = mean_norm(problem, usable)  # LayerCFL Eq. 27
    largest = max_norm(usable.updates.take_columns(scope).values)  # LayerCFL Eq. 28
    values = {"mean_norm": mean, "max_norm": largest, "eps1": eps1, "eps2": eps2}
    if mean >= eps1:
        return Decision(kind="not_stationary", layer=layer, values=values)
    if largest < eps2 or largest <= STILL:  # Updates of members that do not move have no directions to compare.
        everywhere = max_norm(usable.updates.take_columns(problem.layout.conv_and_linear).values)
        kind = "layers_not_trained" if largest <= STILL < everywhere else "members_converged"
        return Decision(kind=kind, layer=layer, values=values)
    return Decision(kind=MAY_SPLIT, layer=layer, values=values)


def find_cut(matrix: Matrix, linkage: Linkage) -> torch.Tensor:
    """The members in the second of two parts, bool (m,)."""
    similarity = matrix.values if CLIENT_MEASURES[matrix.measure].larger_is_closer else -matrix.values
    return bipartition(similarity, linkage=linkage).bool()


def apply_theorem_1(
    matrix: Matrix, second: torch.Tensor, cosines: torch.Tensor, gamma: float, values: Mapping[str, float]
) -> SplitDecision:
    """Split a cluster in two, if Theorem 1 says that the two parts are truly different.

    Args:
        matrix: What the two parts were found by.
        second: The members in the second part, bool (m,).
        cosines: The cosines of the updates that the theorem is about, (m, m).
        gamma: The largest approximation error that the theorem assumes.
        values: What the trigger measured.
    """
    parts = (matrix.clients[~second], matrix.clients[second])
    cross_max = float(cosines[~second][:, second].max())
    bound = theorem_1_bound(cross_max)
    sizes = {"first_part": float(len(parts[0])), "second_part": float(len(parts[1]))}
    seen = {**values, **sizes, "cross_max": cross_max, "bound": bound, "gamma": gamma}
    if bound <= gamma:  # Theorem 1
        return SplitDecision(Decision(kind="theorem_1_not_met", layer=matrix.layer, values=seen), matrix=matrix)
    return SplitDecision(Decision(kind="split", layer=matrix.layer, values=seen), parts, matrix)
