"""Ever finer groups of a cluster's members, by what they trained on one half of their data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fedstrata.core import Rows
from fedstrata.lazy import torch

MOST = 20
"""Splits, the clearest first: twenty clients may all be parted, and many need not be compared one by one."""

Group = tuple[int, ...]
"""Positions of clients."""


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
        The tree; None where a side of the first split has sent nothing.
    """
    places, m = torch.searchsorted(clients, updates.clients), len(clients)
    nodes, parents = [torch.ones(m, dtype=torch.bool)], [-1]
    if second is not None:
        nodes, parents = [*nodes, ~second, second], [*parents, 0, 0]
    splits, tops = list[tuple[float, Group, Group]](), [0] if second is None else [1, 2]
    known = dict[Group, int]()
    for top in tops:
        there = nodes[top][places].nonzero().flatten()
        if second is not None and not len(there):
            return None
        known[tuple(there.tolist())] = top
        splits += _splits(updates.values[there], there.tolist()) if inside else ()
    for _, left, right in sorted(splits, key=lambda split: -split[0])[:MOST]:
        parent = known[tuple(sorted(left + right))]
        for part in (left, right):
            known[part] = len(nodes)
            nodes.append(torch.zeros(m, dtype=torch.bool).index_fill(0, places[list(part)], True))
            parents.append(parent)
    return Branches(torch.stack(nodes), torch.tensor(parents), second is not None) if len(nodes) > 1 else None


def _splits(rows: torch.Tensor, names: Sequence[int]) -> Iterator[tuple[float, Group, Group]]:
    """Height and both sides, ascending, of every merge of rows by average linkage of their directions from the mean."""
    from scipy.cluster.hierarchy import linkage

    if len(names) < 2:
        return
    away = rows.double() - rows.double().mean(dim=0)
    away = away / away.norm(dim=1, keepdim=True).clamp(min=torch.finfo(away.dtype).tiny)
    left, right = torch.triu_indices(len(away), len(away), offset=1)
    groups: list[Group] = [(name,) for name in names]
    for one, other, height, _ in linkage((1 - away @ away.T)[left, right].clamp(min=0).numpy(), "average").tolist():
        sides = groups[int(one)], groups[int(other)]
        groups.append(tuple(sorted(sides[0] + sides[1])))
        yield height, sides[0], sides[1]
