"""A round of recursive bipartition: which clusters are examined, by which answers, and what becomes of them.

`collect_answers` finds the clusters that are to be examined. The algorithm makes a `SplitDecision` about each of them.
`split_and_average` splits clusters and averages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedstrata.base.lazy_torch import torch
from fedstrata.clustering import norms
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


@dataclass(frozen=True)
class RoundAnswers:
    """A round before anything is decided.

    Attributes:
        labels: The cluster of each client, (n,), after the pending clients that answered have joined one.
        own: The answers of each cluster's members that trained its model, (k) in the order of the client ids.
        usable: The answers by which each cluster is examined, of those that are to be.
        too_few: The decision about each cluster with too few usable answers.
    """

    labels: torch.Tensor
    own: Sequence[Result]
    usable: Mapping[int, Result]
    too_few: Mapping[int, Decision]


@dataclass(frozen=True)
class SplitDecision:
    """What came of the examination of one cluster.

    Attributes:
        reason: Why the cluster is split or stays whole, as data.
        parts: The client ids of the two new clusters; None when the cluster stays whole.
        matrix: What the members were compared by, if they were.
        final: Whether the cluster is not examined again; LayerCFL alone has such clusters.
    """

    reason: Decision
    parts: tuple[torch.Tensor, torch.Tensor] | None = None
    matrix: Matrix | None = None
    final: bool = False


def max_norm(rows: torch.Tensor) -> float:
    """The largest norm of a row (LayerCFL Eq. 28; HiCFL: Delta_max); 0 without rows."""
    if not len(rows):
        return 0.0
    return float(norms(rows).max())


def mean_norm(problem: Problem, usable: Result) -> float:
    """The norm of the mean update, over conv and linear layers (LayerCFL Eq. 27: all tensors; HiCFL: Delta_ave)."""
    updates = usable.updates.take_columns(problem.layout.conv_and_linear)
    together = torch.zeros(len(usable.sizes), dtype=torch.int64)
    return float(weighted_mean(updates, _weights(problem, usable), together, 1).double().norm())


def independent_norm(problem: Problem, usable: Result) -> float:
    """The norm that the mean update has on average if the updates have these norms and independent directions.

    With weights w_i of sum 1 it is sqrt(sum_i w_i^2 |d_i|^2), as the mean of d_i . d_j is 0 then. Over conv and linear
    layers, as `mean_norm`.
    """
    updates = usable.updates.take_columns(problem.layout.conv_and_linear).values
    weights = _weights(problem, usable).double()
    return float((weights / weights.sum() * norms(updates)).norm())


def _weights(problem: Problem, usable: Result) -> torch.Tensor:
    """How much each member counts in the mean that is looked at, (m,).

    Not by a robust rule: of two groups it follows the larger one, so that no cluster would be stationary.
    """
    return torch.ones_like(usable.sizes) if problem.aggregation.rule is plain_mean else usable.sizes


def collect_answers(
    state: State,
    report: Report,
    *,
    quorum: float = 0.0,
    min_split: int = 2,
    ready: torch.Tensor | None = None,
    final: torch.Tensor | None = None,
) -> RoundAnswers:
    """Find the clusters that are to be examined, and the answers by which they are.

    An answer is usable if its client trained the model of its own cluster and is one of `ready`. By default, every
    cluster is examined of which two members can be compared.

    Args:
        state: The state before the round.
        report: The report of the round.
        quorum: The share of the members asked in a round whose answers must be usable.
        min_split: The least number of usable answers.
        ready: The clients whose answers may be usable, bool (n,). None is everyone.
        final: The clusters that are not examined, bool (k,). None is no cluster.
    """
    labels = assign_pending(state, report)
    result = report.results[TRAIN]
    result = result.only(result.updates.clients.argsort())  # Between equals, the lowest id decides.
    own = list[Result]()
    usable = dict[int, Result]()
    too_few = dict[int, Decision]()
    for cluster in range(len(state.models)):
        members = labels == cluster
        own.append(result.only(members[result.updates.clients] & (result.chosen == cluster)))
        if final is not None and final[cluster]:
            continue
        asked = int(members_in_cohort(report, members).sum())
        examined = own[cluster] if ready is None else own[cluster].only(ready[own[cluster].updates.clients])
        if len(examined.sizes) >= min_split and len(examined.sizes) / asked >= quorum:
            usable[cluster] = examined
            continue
        values = {
            "answered": len(own[cluster].sizes),
            "asked": asked,
            "not_ready": len(own[cluster].sizes) - len(examined.sizes),
            "min_split": min_split,
            "quorum": quorum,
        }
        too_few[cluster] = Decision("too_few_members", values={name: float(values[name]) for name in values})
    return RoundAnswers(labels, own, usable, too_few)


def split_and_average(
    problem: Problem,
    state: StateT,
    report: Report,
    answers: RoundAnswers,
    decisions: Mapping[int, SplitDecision],
) -> tuple[StateT, Diagnostics]:
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
    norms = [
        Metric(name, reason.values[name], node=int(state.nodes[cluster]))
        for cluster, reason in reasons.items()
        for name in ("mean_norm", "max_norm")
        if name in reason.values
    ]
    matrices = tuple(decision.matrix for decision in decisions.values() if decision.matrix is not None)
    return moved, replace(diagnostics, metrics=(*diagnostics.metrics, *norms), matrices=matrices)
