"""Trees of groups of a cluster, and the models of the groups.

The groups are those of splits that permutation tests have confirmed, and finer ones inside; or outliers. The model of a
group is that of the cluster plus the mean update of the group's members on half A of their data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedstrata.base.lazy_torch import torch
from fedstrata.clustering import cosine, splits
from fedstrata.core import Layout, Problem, Rows
from fedstrata.core.aggregation import GroupAggregation, equal_mean

MAX_SPLITS = 20
"""The largest number of splits in a tree, of which the clearest are kept. Up to 21 clients may all be split from each
other. With more clients, the finest groups are left out."""

_ACROSS_LEAVES = 3.0
"""The distance of clients of different groups. It is larger than one minus any cosine."""

_EXTRAPOLATION = 2.0
"""How far the models of groups lie from that of the whole cluster where personal models are compared: twice as far.

A model of few clients follows the noise of their data more than one of many, and a single round hardly shows it. At
twice the distance, what the clients of a group have in common counts twice, and the variance of the noise four times.
"""


@dataclass(frozen=True)
class GroupTree:
    """A tree of groups. Node 0 is everyone. Each node comes after its parent, and those of confirmed splits come first.

    Every group is split into two subgroups or none. But where outliers are compared, everyone has one: all outliers.

    Attributes:
        inside: Who is in each group, bool (q, m).
        parents: The parent of each group, (q,) int64; -1 for the first.
        confirmed: The number of splits that a permutation test has confirmed.
    """

    inside: torch.Tensor
    parents: torch.Tensor
    confirmed: int

    def __len__(self) -> int:
        """The number of groups, q."""
        return len(self.parents)

    @property
    def unconfirmed(self) -> int:
        """The number of splits that no permutation test has confirmed."""
        return len(self) // 2 - self.confirmed

    def children(self, node: int) -> list[int]:
        """The subgroups of a group."""
        return (self.parents == node).nonzero().flatten().tolist()

    def is_confirmed(self, node: int) -> bool:
        """Whether a group comes from a confirmed split."""
        return node <= 2 * self.confirmed

    def models_for(self, place: int) -> list[int]:
        """The groups whose models a client evaluates, ascending: its own, and the other one of unconfirmed splits."""
        own = self.inside[:, place]
        beside = self.inside[self.parents.clamp(min=0), place]
        confirmed = torch.tensor([self.is_confirmed(node) for node in range(len(self))])
        return (own | (beside & ~confirmed)).nonzero().flatten().tolist()

    def by_depth(self) -> list[torch.Tensor]:
        """The group of each client, by depth: first that of everyone, then its side, and so on, (m,) each; -1 for none.

        A client of a group that is not split, or that was in none of its subgroups, has none from there on.
        """
        found = list[torch.Tensor]()
        depths = self._depths()
        for depth in range(max(depths) + 1):
            nodes = torch.tensor([node for node, own in enumerate(depths) if own == depth])
            inside = self.inside[nodes]
            found.append(torch.where(inside.any(dim=0), nodes[inside.int().argmax(dim=0)], -1))
        return found

    def _depths(self) -> list[int]:
        """The number of splits above each group, q in all."""
        depths = [0]
        for parent in self.parents[1:].tolist():
            depths.append(depths[parent] + 1)
        return depths

    def confirmed_only(self, max_depth: int) -> GroupTree:
        """The tree of those confirmed splits alone whose groups have at most so many splits above them."""
        depths = self._depths()
        kept = [node for node in range(2 * self.confirmed + 1) if depths[node] <= max_depth]
        places = {node: place for place, node in enumerate(kept)}
        parents = torch.tensor([-1, *(places[int(self.parents[node])] for node in kept[1:])])
        return GroupTree(self.inside[kept], parents, len(kept) // 2)


def single_group(m: int) -> GroupTree:
    """The tree without any split, of m clients."""
    return GroupTree(torch.ones(1, m, dtype=torch.bool), torch.tensor([-1]), 0)


def with_confirmed_split(tree: GroupTree, node: int, *sides: torch.Tensor) -> GroupTree:
    """A tree of confirmed splits with one more, of a group that is not split yet.

    Args:
        tree: The tree so far.
        node: The group that is split.
        sides: Its two sides, bool (m,). Whoever was not compared is in none.
    """
    inside = torch.cat([tree.inside, torch.stack(sides)])
    return GroupTree(inside, torch.cat([tree.parents, torch.tensor([node, node])]), tree.confirmed + 1)


def placed(tree: GroupTree, losses: torch.Tensor) -> GroupTree:
    """The same groups with other clients, each in those whose models have the lower loss, from the first split on.

    Args:
        tree: The tree of groups.
        losses: The loss of each client by the model of each group, (m, q).
    """
    inside = torch.zeros(len(tree), len(losses), dtype=torch.bool)
    inside[0] = True
    for node in range(len(tree)):
        if subgroups := tree.children(node):
            first, second = subgroups
            prefers_second = losses[:, second] < losses[:, first]
            inside[first] = inside[node] & ~prefers_second
            inside[second] = inside[node] & prefers_second
    return replace(tree, inside=inside)


def candidate_groups(tree: GroupTree, clients: torch.Tensor, updates: Rows, *, finer: bool = True) -> GroupTree | None:
    """Candidate groups inside the confirmed ones, by average linkage of the updates.

    Args:
        tree: The tree of confirmed splits, or a single group.
        clients: Who was compared, ids (m,).
        updates: Their updates by one half of their data. Whoever sent none is in no group inside the confirmed ones.
        finer: Whether groups inside the confirmed ones are formed at all.

    Returns:
        The tree; None where a confirmed group has sent nothing, or where there is nobody to split.
    """
    places = torch.searchsorted(clients, updates.clients)
    if not len(places) or not bool(tree.inside[:, places].any(dim=1).all()):
        return None
    leaves = torch.tensor([node for node in range(len(tree)) if not tree.children(node)])
    compared = tree.inside[leaves][:, places].any(dim=0)  # whoever was not compared inside a side is in no group there
    places = places[compared]
    rows = updates.values[compared]
    leaf = leaves[tree.inside[leaves][:, places].int().argmax(dim=0)]
    nodes = list(tree.inside)
    parents = tree.parents.tolist()
    known = {tuple((leaf == top).nonzero().flatten().tolist()): top for top in leaves.tolist()}
    found = [split for split in splits(_distances(rows, leaf)) if split[0] < _ACROSS_LEAVES] if finer else []
    for _, one, other in found[: max(0, MAX_SPLITS - tree.confirmed)]:
        parent = known[tuple(sorted(one + other))]
        for group in (one, other):
            known[group] = len(nodes)
            nodes.append(torch.zeros(len(clients), dtype=torch.bool).index_fill(0, places[list(group)], True))
            parents.append(parent)
    return GroupTree(torch.stack(nodes), torch.tensor(parents), tree.confirmed) if len(nodes) > 1 else None


def _distances(rows: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    """One minus the cosines of rows (m, p) without the mean of their leaf; more across leaves, (m, m)."""
    distance = torch.full((len(rows), len(rows)), _ACROSS_LEAVES, dtype=torch.float64).fill_diagonal_(0.0)
    for top in leaf.unique():
        here = (leaf == top).nonzero().flatten()
        distance[here[:, None], here] = 1 - cosine(rows[here] - rows[here].mean(dim=0))
    return distance


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
    assert isinstance(problem.aggregation, GroupAggregation)
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
