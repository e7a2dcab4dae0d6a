"""The models of groups: that of a cluster plus the mean update of the members of each group on half A of their data."""

from __future__ import annotations

from collections.abc import Sequence

from fedstrata.algorithms.strata.group_tree import GroupTree
from fedstrata.algorithms.update_checks.norms import clipped_to_twice_median
from fedstrata.base.lazy_torch import torch
from fedstrata.core import Layout, Problem, Rows

_EXTRAPOLATION = 2.0
"""How far the models of groups lie from that of the whole cluster where personal models are compared: twice as far.

A model of few clients follows the noise of their data more than one of many, and a single round hardly shows it. At
twice the distance, what the clients of a group have in common counts twice, and the variance of the noise four times.
"""


def first_half_updates(sent: Sequence[Rows], clients: torch.Tensor) -> Rows:
    """The updates by half A of some clients. Whoever has sent none is left out.

    Args:
        sent: The updates by every fold. Those of half A come first.
        clients: The clients, ids (m,).
    """
    first_half = sent[: (len(sent) + 1) // 2]
    ids = clients[torch.isin(clients, first_half[0].clients)]
    return Rows(ids, torch.stack([fold.of(ids) for fold in first_half]).mean(dim=0))


def group_updates(
    problem: Problem, updates: Rows, clients: torch.Tensor, groups: GroupTree, *, node: int, round: int
) -> torch.Tensor:
    """The mean update of every group, as it may leave the server, (q, p). Every client has the same weight.

    No update counts as longer than twice the median one: a single long update would spoil the model of an honest group.
    Differential privacy has a bound of its own.

    Where a split would leave fewer than ``problem.min_cluster`` updates on one side, both sides have that of the group.
    So such a split gains nothing. Otherwise the mean update of the smaller side could be computed from the models of
    the group and of the larger side.

    Args:
        problem: What is fixed for the run.
        updates: The updates of those of the clients that sent one, (m', p).
        clients: Who was compared, ids (m,).
        groups: Their groups.
        node: The tree node of the cluster.
        round: The round of the updates.
    """
    places = torch.searchsorted(clients, updates.clients)
    if problem.privacy is None:
        bounded = clipped_to_twice_median(problem.layout, updates)
        return _means_without_noise(problem, bounded, groups, groups.inside[:, places])
    # The clients that are in the same groups are a subset.
    contained, subsets = groups.inside.unique(dim=1, return_inverse=True)
    # Nobody else than those who were compared was asked, so that all of them are expected in every cohort.
    members = groups.inside.sum(dim=1)
    purpose = f"holdout of node {node}"
    return problem.privacy.means_of_groups(updates, subsets[places], contained, members, purpose, round)


def _means_without_noise(problem: Problem, updates: Rows, groups: GroupTree, inside: torch.Tensor) -> torch.Tensor:
    """The mean update of every group without differential privacy, (q, p).

    Args:
        problem: What is fixed for the run.
        updates: The updates of those of the clients that sent one, (m', p).
        groups: The groups.
        inside: Who of these clients is in each, bool (q, m').
    """
    if len(updates.clients) < problem.min_cluster:
        return torch.zeros(len(groups), updates.values.shape[1])
    means = list[torch.Tensor]()
    for group, served in enumerate(_served_by(groups, inside.sum(dim=1) >= problem.min_cluster)):
        own = served == group
        means.append(mean_update(problem, updates.at(inside[group])) if own else means[served])
    return torch.cat(means)


def _served_by(groups: GroupTree, enough: torch.Tensor) -> list[int]:
    """The group whose model each group has, q in all: its own, or that of the nearest group above that has its own.

    Args:
        groups: The groups. Each comes after its parent.
        enough: Which groups have enough updates for a model of their own, bool (q,).
    """
    served = [0]
    for group in range(1, len(groups)):
        parent = int(groups.parents[group])
        own = served[parent] == parent and bool(enough[groups.children(parent)].all())
        served.append(group if own else served[parent])
    return served


def mean_update(problem: Problem, updates: Rows) -> torch.Tensor:
    """The mean of some updates by the rule of aggregation, every client with the same weight, (1, p)."""
    m = len(updates.clients)
    return problem.aggregation(updates, torch.ones(m), torch.zeros(m, dtype=torch.int64), 1)


def extrapolated(layout: Layout, models: torch.Tensor) -> torch.Tensor:
    """Models further away from the first one, (q, p). Running statistics stay: a step along them has no meaning."""
    further = models[:1] + _EXTRAPOLATION * (models - models[:1])
    statistics = layout.columns(layout.buffers)
    further[:, statistics] = models[:, statistics]
    return further
