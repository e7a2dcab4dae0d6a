"""Candidate groups of a cluster, by its members' updates of half A of their data.

The tree has one split into two sides and, inside each, one more: the clearest splits of average linkage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedstrata.base.lazy_torch import torch
from fedstrata.clustering import bipartition, contrast, cosine, in_views
from fedstrata.clustering.similarity import without_mean
from fedstrata.core import Layout, Rows

_MAX_DEPTH = 2
"""The most splits above a group, so that a cluster becomes four at most. A member judges up to two models for each."""

MIN_CLIENTS = 4
"""The fewest clients among whom groups are sought: two groups of two, of which a test has two degrees of freedom."""


@dataclass(frozen=True)
class GroupTree:
    """A tree of groups. Node 0 is everyone, each node comes after its parent, and each has two subgroups or none.

    Attributes:
        inside: Who is in each group, bool (q, m).
        parents: The parent of each group, (q,) int64; -1 for the first.
    """

    inside: torch.Tensor
    parents: torch.Tensor

    def __len__(self) -> int:
        """The number of groups, q."""
        return len(self.parents)

    def children(self, node: int) -> list[int]:
        """The two subgroups of a group; none where it is not split."""
        found: list[int] = (self.parents == node).nonzero().flatten().tolist()
        return found

    def placed(self, losses: torch.Tensor) -> torch.Tensor:
        """In which groups other clients are, bool (q, m'): each takes the side of lower loss, from the top down.

        Args:
            losses: The loss of each client by the model of each group, (m', q).
        """
        inside = torch.zeros(len(self), len(losses), dtype=torch.bool)
        inside[0] = True
        for node in range(len(self)):
            if sides := self.children(node):
                one, other = sides
                second = losses[:, other] < losses[:, one]
                inside[one], inside[other] = inside[node] & ~second, inside[node] & second
        return inside


def similarities(layout: Layout, updates: torch.Tensor) -> dict[str, torch.Tensor]:
    """The cosines of updates (m, p) without their mean, (m, m), by each layer and by all layers together."""
    names = layout.layers if len(layout.layers) == 1 else (*layout.layers, "all")
    return dict(zip(names, _cosines(layout, updates, names), strict=True))


def _cosines(layout: Layout, updates: torch.Tensor, names: Sequence[str]) -> torch.Tensor:
    """The cosines of updates (m, p) without their mean in some layers, (v, m, m)."""
    columns = [layout.columns(layout.select(name)) for name in names]
    return cosine(updates, without_mean(in_views(columns)))


def candidate_groups(layout: Layout, updates: Rows, *, inside_sides: bool = True) -> GroupTree:
    """The candidate groups of those who sent updates, (m, p), by all layers together.

    Args:
        layout: The layout of the network.
        updates: The updates.
        inside_sides: Whether there are groups inside the two sides.
    """
    max_depth = _MAX_DEPTH if inside_sides else 1
    groups = [torch.ones(len(updates.clients), dtype=torch.bool)]
    parents = [-1]
    depths = [0]
    node = 0
    while node < len(groups):
        members = groups[node].nonzero().flatten()
        if depths[node] < max_depth and len(members) >= MIN_CLIENTS:
            alike = _cosines(layout, updates.at(members).values, ["all"])
            second = bipartition(alike[0], "average").bool()
            for side in (~second, second):
                groups.append(torch.zeros_like(groups[0]).index_fill(0, members[side], True))
                parents.append(node)
                depths.append(depths[node] + 1)
        node += 1
    return GroupTree(torch.stack(groups), torch.tensor(parents))


def clearest_layer(by_layer: Mapping[str, torch.Tensor], second: torch.Tensor) -> str:
    """The layer in which clients are most alike within two sides, beyond those across; the second side is a bool (m,).

    The entry "all" is no layer.
    """
    layers = [name for name in by_layer if name != "all"]
    return max(layers, key=lambda name: contrast(by_layer[name], second))
