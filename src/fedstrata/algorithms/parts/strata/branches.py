"""Ever finer groups of a cluster's members, by what they trained on one half of their data."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedstrata.clustering import cosine, splits
from fedstrata.core import Rows
from fedstrata.lazy import torch

MOST = 20
"""Splits, the clearest first: twenty clients may all be parted, and many need not be compared one by one."""


APART = 3.0
"""More than one minus any cosine."""


@dataclass(frozen=True)
class Branches:
    """A tree of groups; node 0 is everyone, and every other stands behind its parent.

    Attributes:
        inside: who is in each group, bool (q, m).
        parents: of each group, (q,) int64; -1 for the first.
        proven: whether it is known already that the first split parts clients that differ.
    """

    inside: torch.Tensor
    parents: torch.Tensor
    proven: bool

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

    def path(self, place: int) -> list[int]:
        """The groups whose models a client is to judge, ascending: its own, and of what is to be proven the others."""
        own, beside = self.inside[:, place], self.inside[self.parents.clamp(min=0), place]
        judged = own | (beside & (self.parents > 0)) if self.proven else own | beside
        return judged.nonzero().flatten().tolist()

    def only(self, kept: torch.Tensor) -> Branches | None:
        """The tree for some of the clients, by a bool (m,); None where the first split has an empty side."""
        inside = self.inside[:, kept]
        return replace(self, inside=inside) if all(bool(inside[side].any()) for side in self.children(0)) else None


def grown(clients: torch.Tensor, second: torch.Tensor | None, updates: Rows, *, inside: bool = True) -> Branches | None:
    """Groups of clients inside a proven split, or of clients of whom nothing is proven yet.

    Args:
        clients: who were compared, ids (m,).
        second: which of them are on the second side of the proven split, bool (m,); None without one.
        updates: by one half of their data; who sent none is on a side, and in no group inside it.
        inside: whether the sides are parted further.

    Returns:
        The tree; None where a side of the first split has sent nothing, or there is nobody to part.
    """
    places, m = torch.searchsorted(clients, updates.clients), len(clients)
    side = torch.zeros(len(places), dtype=torch.int64) if second is None else second[places].long()
    if len(side.unique()) < (1 if second is None else 2):
        return None
    nodes, parents = [torch.ones(m, dtype=torch.bool)], [-1]
    if second is not None:
        nodes, parents = [*nodes, ~second, second], [*parents, 0, 0]
    first = len(nodes) - int(side.max()) - 1  # the whole, or the first side
    known = {tuple((side == top).nonzero().flatten().tolist()): first + top for top in side.unique().tolist()}
    tree = splits(_apart(updates.values, side)) if inside else []
    for _, *parts in [split for split in tree if split[0] < APART][:MOST]:
        parent = known[tuple(sorted(parts[0] + parts[1]))]
        for part in parts:
            known[part] = len(nodes)
            nodes.append(torch.zeros(m, dtype=torch.bool).index_fill(0, places[list(part)], True))
            parents.append(parent)
    return Branches(torch.stack(nodes), torch.tensor(parents), second is not None) if len(nodes) > 1 else None


def _apart(rows: torch.Tensor, side: torch.Tensor) -> torch.Tensor:
    """One minus the cosine of what is left of rows (m, p) without the mean of their side; more across sides, (m, m)."""
    distance = torch.full((len(rows), len(rows)), APART, dtype=torch.float64).fill_diagonal_(0.0)
    for top in side.unique():
        here = (side == top).nonzero().flatten()
        distance[here[:, None], here] = 1 - cosine(rows[here] - rows[here].mean(dim=0))
    return distance
