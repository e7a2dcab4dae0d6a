"""Ever finer groups of a cluster's members, by what they trained on one half of their data."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedstrata.clustering import cosine, splits
from fedstrata.core import Rows
from fedstrata.lazy_torch import torch

MOST = 20
"""Splits, the clearest first: twenty clients may all be parted, and many need not be compared one by one."""


APART = 3.0
"""More than one minus any cosine."""


@dataclass(frozen=True)
class Branches:
    """A tree of groups; node 0 is everyone, and every other stands behind its parent, those of proven splits first.

    Attributes:
        inside: who is in each group, bool (q, m).
        parents: of each group, (q,) int64; -1 for the first.
        proven: number of splits of which it is known already that they part clients that differ.
    """

    inside: torch.Tensor
    parents: torch.Tensor
    proven: int

    def __len__(self) -> int:
        """Number of groups, q."""
        return len(self.parents)

    @property
    def unproven(self) -> int:
        """Number of splits that are still to be proven."""
        return len(self) // 2 - self.proven

    def children(self, node: int) -> list[int]:
        """The two parts of a group, or none."""
        return (self.parents == node).nonzero().flatten().tolist()

    def known(self, node: int) -> bool:
        """Whether a group comes from a proven split."""
        return node <= 2 * self.proven

    def path(self, place: int) -> list[int]:
        """The groups whose models a client is to judge, ascending: its own, and of what is to be proven the others."""
        own, beside = self.inside[:, place], self.inside[self.parents.clamp(min=0), place]
        proven = torch.tensor([self.known(node) for node in range(len(self))])
        return (own | (beside & ~proven)).nonzero().flatten().tolist()

    def only(self, kept: torch.Tensor) -> Branches | None:
        """The tree for some of the clients, by a bool (m,); None where the first split has an empty side."""
        inside = self.inside[:, kept]
        return replace(self, inside=inside) if all(bool(inside[side].any()) for side in self.children(0)) else None


def rooted(m: int) -> Branches:
    """The tree of which there is nothing but everyone, of m clients."""
    return Branches(torch.ones(1, m, dtype=torch.bool), torch.tensor([-1]), 0)


def forked(tree: Branches, node: int, *sides: torch.Tensor) -> Branches:
    """A tree of proven splits with one more, of a group that has no parts yet.

    Args:
        tree: as it is.
        node: of the group.
        sides: its two parts, bool (m,); who was not compared is in none.
    """
    inside = torch.cat([tree.inside, torch.stack(sides)])
    return Branches(inside, torch.cat([tree.parents, torch.tensor([node, node])]), tree.proven + 1)


def grown(clients: torch.Tensor, proven: Branches | None, updates: Rows, *, inside: bool = True) -> Branches | None:
    """Groups of clients inside proven splits, or of clients of whom nothing is proven yet.

    Args:
        clients: who were compared, ids (m,).
        proven: the tree of proven splits; None without one.
        updates: by one half of their data; who sent none is in proven groups, and in no group inside them.
        inside: whether the proven groups are parted further.

    Returns:
        The tree; None where a proven group has sent nothing, or there is nobody to part.
    """
    tree = rooted(len(clients)) if proven is None else proven
    places = torch.searchsorted(clients, updates.clients)
    if not len(places) or not bool(tree.inside[:, places].any(dim=1).all()):
        return None
    leaves = torch.tensor([node for node in range(len(tree)) if not tree.children(node)])
    settled = tree.inside[leaves][:, places].any(dim=0)  # who was not compared inside a side is in no group there
    places, rows = places[settled], updates.values[settled]
    leaf = leaves[tree.inside[leaves][:, places].int().argmax(dim=0)]
    nodes, parents = list(tree.inside), tree.parents.tolist()
    known = {tuple((leaf == top).nonzero().flatten().tolist()): top for top in leaves.tolist()}
    finer = splits(_apart(rows, leaf)) if inside else []
    for _, *parts in [split for split in finer if split[0] < APART][: max(0, MOST - tree.proven)]:
        parent = known[tuple(sorted(parts[0] + parts[1]))]
        for part in parts:
            known[part] = len(nodes)
            nodes.append(torch.zeros(len(clients), dtype=torch.bool).index_fill(0, places[list(part)], True))
            parents.append(parent)
    return Branches(torch.stack(nodes), torch.tensor(parents), tree.proven) if len(nodes) > 1 else None


def _apart(rows: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    """One minus the cosines of rows (m, p) without the mean of their leaf; more across leaves, (m, m)."""
    distance = torch.full((len(rows), len(rows)), APART, dtype=torch.float64).fill_diagonal_(0.0)
    for top in leaf.unique():
        here = (leaf == top).nonzero().flatten()
        distance[here[:, None], here] = 1 - cosine(rows[here] - rows[here].mean(dim=0))
    return distance
