"""How the updates of a cluster become one update, and what of that leaves the server.

FedAvg takes the mean, weighted by the clients' numbers of samples: McMahan et al., "Communication-efficient learning of
deep networks from decentralized data", AISTATS 2017, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol, TypeAlias, runtime_checkable

from fedstrata.base.lazy_torch import torch
from fedstrata.core.layout import Layout
from fedstrata.core.row_products import compared_ranges, norms_of
from fedstrata.core.rows import Rows

_BLOCK_CLIENTS = 16
"""The number of client ids that are summed together. Sums over whole blocks have the same bits anywhere."""

_CHUNK_COLUMNS = 2**17
"""The number of columns whose sums are held at a time: 1 MB for each cluster, which stays in a processor's cache."""

_CHUNK_NUMBERS_ON_DEVICE = 2**24
"""The numbers that are held in float64 at a time on an accelerator, 128 MB."""

_LARGEST_RATIO = 2.0
"""In the means of groups, no update counts as longer than so many times the median one."""

_MIN_COMPARED = 3
"""Norms are compared if there are at least so many."""


def weighted_mean(updates: Rows, weights: torch.Tensor, labels: torch.Tensor, k: int) -> torch.Tensor:
    """Mean row of every cluster, weighted inside the cluster; a cluster without rows gets zeros.

    Args:
        updates: The rows of the clients that are present, (m, p).
        weights: The weight of each row, (m,), > 0.
        labels: The cluster of each row, (m,) in 0..k-1.
        k: The number of clusters.

    Returns:
        (k, p) float32. Sums are in float64 over blocks of 16 client ids in ascending order, then rounded: the same
        bits in any order of rows, whoever sent them. Rows on an accelerator are summed there by its own programs, which
        round otherwise, and are given the rows in ascending order of the ids.
    """
    order = updates.clients.argsort()
    label = labels.tolist()
    mass = torch.zeros(k, dtype=torch.float64).index_add_(0, labels[order], weights.double()[order])
    mass = mass.clamp(min=torch.finfo(torch.float64).tiny)
    if updates.on_device.device.type != "cpu":
        return _mean_on_device(updates.on_device, order, weights.double() / mass[labels], labels, k)
    weight = weights.double().tolist()
    blocks = [
        list(rows) for _, rows in groupby(order.tolist(), lambda row: int(updates.clients[row]) // _BLOCK_CLIENTS)
    ]
    means = torch.empty(k, updates.values.shape[1])
    chunks = zip(updates.values.split(_CHUNK_COLUMNS, dim=1), means.split(_CHUNK_COLUMNS, dim=1), strict=True)
    for values, mean in chunks:
        total = torch.zeros(mean.shape, dtype=torch.float64)
        for block in blocks:
            # A block holds clients of few clusters, where there are many.
            partial = {cluster: torch.zeros_like(total[0]) for cluster in {label[row] for row in block}}
            for row in block:
                partial[label[row]].add_(values[row], alpha=weight[row])
            for cluster, sums in partial.items():
                total[cluster] += sums
        mean.copy_(total / mass[:, None])
    return means


def _mean_on_device(
    updates: torch.Tensor, order: torch.Tensor, shares: torch.Tensor, labels: torch.Tensor, k: int
) -> torch.Tensor:
    """The sum of some rows (m, p) on an accelerator in every cluster, each times its share, (k, p) on the processor.

    The rows are taken in an order, (m,): that of the client ids. Their shares are (m,) float64.
    """
    means = torch.zeros(k, updates.shape[1], device=updates.device)
    for cluster in labels.unique().tolist():
        # Each cluster by itself: zero times a number that is not finite is not zero.
        rows = order[labels[order] == cluster]
        share = shares[rows].to(updates.device)
        width = max(1, _CHUNK_NUMBERS_ON_DEVICE // len(rows))
        for values, mean in zip(updates.split(width, dim=1), means[cluster].split(width), strict=True):
            mean.copy_(share @ values[rows.to(updates.device)].double())
    return means.cpu()


Rule: TypeAlias = "Callable[[Rows, torch.Tensor, torch.Tensor, int], torch.Tensor]"
"""A rule as `weighted_mean` is one: updates (m, p), weights (m,), clusters (m,) and their number k -> (k, p)."""


def plain_mean(updates: Rows, weights: torch.Tensor, labels: torch.Tensor, k: int) -> torch.Tensor:
    """Mean row of every cluster in which each client counts the same; the arguments are those of `weighted_mean`.

    Where clients are sampled by size it is unbiased: Li et al., "On the convergence of FedAvg
    on non-IID data", ICLR 2020, scheme I.
    """
    return weighted_mean(updates, torch.ones_like(weights), labels, k)


class Aggregation(Protocol):
    """How models move by updates. Whatever is made of updates and sent to clients is made by `means`.

    A mean is not `exact` if more than the updates makes it, such as noise. Then a mean of few clients says little, and
    how much a client counts may not depend on others.
    """

    @property
    def rule(self) -> Rule:
        """The rule by which is made what the server only looks at."""

    @property
    def least_clients(self) -> int:
        """The least number of clients whose updates move a model that leaves the server."""

    @property
    def exact(self) -> bool:
        """Whether a mean is made of the updates alone."""

    def means(
        self,
        updates: Rows,
        weights: torch.Tensor,
        labels: torch.Tensor,
        k: int,
        everyone: torch.Tensor,
        *,
        purpose: str,
        round: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The mean update of every cluster, (k, p), and which clusters have one, bool (k,). The others have zeros.

        A cluster has none if too few of its clients answered, or, with noise, if it has too few clients.

        Args:
            updates: The updates of the clients that answered, (m, p).
            weights: The weight of each, (m,), > 0.
            labels: The cluster of each, (m,) in 0..k-1.
            k: The number of clusters.
            everyone: The cluster of every client, whether it answered or not, (n,); -1 for a pending client.
            purpose: What the means are for; several means of one round have different purposes.
            round: The round.
        """


@runtime_checkable
class GroupAggregation(Aggregation, Protocol):
    """An aggregation that also makes the means of groups inside each other, as Strata's comparisons of groups do."""

    def group_means(
        self,
        layout: Layout,
        updates: Rows,
        places: torch.Tensor,
        inside: torch.Tensor,
        parents: torch.Tensor,
        *,
        purpose: str,
        round: int,
    ) -> torch.Tensor:
        """The mean update of every group of a tree of groups, (q, p). Every client has the same weight.

        Args:
            layout: The tensors of the network.
            updates: The updates of those who answered of the m clients in groups, (m', p).
            places: The place of each of them among the m, (m',).
            inside: Who of the m is in each group, bool (q, m).
            parents: The group above each, (q,); -1 for the first, which holds everyone. Each comes after its parent.
            purpose: As in `means`.
            round: The round.
        """


@dataclass(frozen=True)
class RuleAggregation:
    """An aggregation by a rule, such as the weighted mean of FedAvg.

    Attributes:
        rule: The rule.
        least_clients: As in `Aggregation`.
    """

    rule: Rule = weighted_mean
    least_clients: int = 1

    @property
    def exact(self) -> bool:
        """Yes."""
        return True

    def means(
        self,
        updates: Rows,
        weights: torch.Tensor,
        labels: torch.Tensor,
        k: int,
        everyone: torch.Tensor,
        *,
        purpose: str,
        round: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What the rule makes of each cluster of which enough clients answered, (k, p), and which these are."""
        enough = labels.bincount(minlength=k) >= self.least_clients
        counted = enough[labels]
        return self.rule(updates.at(counted), weights[counted], labels[counted], k), enough

    def group_means(
        self,
        layout: Layout,
        updates: Rows,
        places: torch.Tensor,
        inside: torch.Tensor,
        parents: torch.Tensor,
        *,
        purpose: str,
        round: int,
    ) -> torch.Tensor:
        """What the rule makes of each group, (q, p).

        No update counts as longer than twice the median one: a single long update would spoil the model of an honest
        group. Where a split would leave fewer than `least_clients` updates on one side, both sides have that of the
        group, so that such a split gains nothing. Otherwise the mean of the smaller side could be computed from the
        models of the group and of the larger side.
        """
        here = inside[:, places]
        if len(places) < self.least_clients:
            return torch.zeros(len(inside), layout.p)
        bounded = clipped_to_twice_median(layout, updates)
        enough = here.sum(dim=1) >= self.least_clients
        means = list[torch.Tensor]()
        served = list[int]()  # the group whose mean each group has: its own, or that of the nearest above with its own
        for group, parent in enumerate(parents.tolist()):
            own = parent < 0 or (served[parent] == parent and bool(enough[parents == parent].all()))
            served.append(group if own else served[parent])
            means.append(equal_mean(self.rule, bounded.at(here[group])) if own else means[served[parent]])
        return torch.cat(means)


def equal_mean(rule: Rule, updates: Rows) -> torch.Tensor:
    """What a rule makes of some updates, every client with the same weight, (1, p)."""
    m = len(updates.clients)
    return rule(updates, torch.ones(m), torch.zeros(m, dtype=torch.int64), 1)


def clipped_to_twice_median(layout: Layout, updates: Rows) -> Rows:
    """Updates of which none is longer than twice their median norm; fewer than three stay as they are.

    The norms are those of convolutions and linear layers.
    """
    norms = torch.from_numpy(norms_of(updates, compared_ranges(layout))).float()
    tiny = 1e-30  # A smaller norm is that of an update of zeros.
    moved = norms > tiny
    if int(moved.sum()) < _MIN_COMPARED:
        return updates
    factors = (_LARGEST_RATIO * norms[moved].median() / norms.clamp(min=tiny)).clamp(max=1.0)
    return Rows(updates.clients, updates.values * factors[:, None])
