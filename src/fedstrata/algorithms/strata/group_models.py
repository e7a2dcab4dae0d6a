"""The models of groups: that of a cluster plus the mean update of the members of each group on half A of their data."""

from __future__ import annotations

from collections.abc import Sequence

from fedstrata.algorithms.strata.group_tree import GroupTree
from fedstrata.base.lazy_torch import torch
from fedstrata.core import Layout, Problem, Rows
from fedstrata.core.aggregation import equal_mean

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

    Args:
        problem: What is fixed for the run.
        updates: The updates of those of the clients that sent one, (m', p).
        clients: Who was compared, ids (m,).
        groups: Their groups.
        node: The tree node of the cluster.
        round: The round of the updates.
    """
    places = torch.searchsorted(clients, updates.clients)
    return problem.aggregation.group_means(
        problem.layout,
        updates,
        places,
        groups.inside,
        groups.parents,
        purpose=f"holdout of node {node}",
        round=round,
    )


def mean_update(problem: Problem, updates: Rows) -> torch.Tensor:
    """The mean of some updates by the rule of aggregation, every client with the same weight, (1, p)."""
    return equal_mean(problem.aggregation.rule, updates)


def extrapolated(layout: Layout, models: torch.Tensor) -> torch.Tensor:
    """Models further away from the first one, (q, p). Running statistics stay: a step along them has no meaning."""
    further = models[:1] + _EXTRAPOLATION * (models - models[:1])
    statistics = layout.columns(layout.buffers)
    further[:, statistics] = models[:, statistics]
    return further
