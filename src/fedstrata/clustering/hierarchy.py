"""Agglomerative clustering: two groups, groups below a cut, and where to cut.

Written out rather than taken from a library, because equal distances then merge in a stated order, and because a
library's cut into two returns one group when the last two merges are equally high.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
from typing import Literal, get_args

import numpy as np

from fedstrata.clustering.arrays import Array, Matrix, as_precise, distances, number, square
from fedstrata.clustering.nearest import Nearest
from fedstrata.lazy_torch import torch

Linkage = Literal["single", "complete", "average"]

Group = tuple[int, ...]
"""Rows of a matrix, ascending."""

FLAT = 1.3
"""Merge heights that never grow by this factor are one cluster's: a proposal, not fitted to any data."""


def bipartition(similarity: Array, linkage: Linkage = "single") -> torch.Tensor:
    """Split into the two groups that the last merge would join.

    Single linkage (Kruskal until two components are left) minimises the largest similarity across the groups
    exactly: the objective of Theorem 1. Complete linkage is what public implementations use; average is the least
    moved by one odd pair. Of equal similarities, the pair of smallest members merges first.

    Args:
        similarity: (m, m), symmetric; the diagonal is not read.
        linkage: ``"single"``, ``"complete"`` or ``"average"``.

    Returns:
        (m,) int64 of 0 and 1; the group of row 0 is 0.

    Raises:
        ValueError: when there are fewer than two rows, or the linkage is another.
    """
    matrix = square(similarity)
    if len(matrix) < 2:
        raise ValueError(f"expected at least 2 rows to split, found {len(matrix)}")
    labels = np.arange(len(matrix))
    for _, kept, joined in merges(-matrix, linkage)[:-1]:
        labels[labels == joined] = kept
    return torch.from_numpy(number(labels))


def agglomerate(distance: Array, cut: float, linkage: Linkage = "average") -> torch.Tensor:
    """Merge the closest groups while their linkage distance is at most the cut (AdaCFL, Algorithm 1).

    Args:
        distance: (m, m), symmetric, at least 0.
        cut: lambda, in the matrix's unit; rounded to its precision.
        linkage: ``"single"``, ``"complete"`` or ``"average"``.

    Returns:
        (m,) int64 labels, numbered by the smallest member of each group.

    Raises:
        ValueError: when the matrix is no distance, the cut is nan, or the linkage is another.
    """
    if math.isnan(cut):
        raise ValueError("expected a cut, found nan")
    matrix = distances(distance)
    labels = np.arange(len(matrix))
    for height, kept, joined in merges(matrix, linkage):
        if height > as_precise(cut, distance):
            break
        labels[labels == joined] = kept
    return torch.from_numpy(number(labels))


def natural_cut(distance: Array, linkage: Linkage = "average", resolution: float = 0.0) -> float:
    """Where the dendrogram says to cut: in the largest relative step between two merge heights.

    With heights h_1 <= ... <= h_(m-1), the cut is sqrt(h_k h_(k+1)) at the k of largest h_(k+1) / h_k (the lowest
    of equals), if that ratio is at least 1.3. Otherwise the heights are flat, and everything is one cluster. Fewer
    than three rows have fewer than two heights, so no step: one cluster. Heights of 0, of rows that are equal, are no
    step either, for they say nothing about the others; unless all rows are copies of two.

    Where distances are known to a resolution r only, small ones differ by large factors that mean nothing. Then
    h_k + r stands for h_k in both formulas, so that a step is one from the most that the lower height may be; and a
    height of 0 is like any other.

    Args:
        distance: (m, m), symmetric, at least 0.
        linkage: ``"single"``, ``"complete"`` or ``"average"``.
        resolution: least difference of two distances that can be told, in the matrix's unit.

    Returns:
        The cut for `agglomerate`, in the matrix's unit; infinity for one cluster.

    Raises:
        ValueError: when the matrix is no distance, the linkage is another, or the resolution is not at least 0.
    """
    if not resolution >= 0:
        raise ValueError(f"expected a resolution of at least 0, found {resolution}")
    heights = np.sort([height for height, _, _ in merges(distances(distance), linkage)])
    if len(heights) < 2:
        return math.inf
    # Below the precision of the largest height, the ratio of two heights is a ratio of rounding errors.
    least = max(np.finfo(np.float64).eps * heights[-1], np.finfo(np.float64).tiny)
    apart = heights if resolution > least else heights[heights > least]
    if len(apart) < 2:
        # Equal rows and one height: all rows are copies of a few.
        return float(least) if len(apart) == 1 else math.inf
    lower, upper = apart[:-1] + resolution, apart[1:]
    ratios = upper / lower
    step = int(ratios.argmax())
    return math.sqrt(lower[step] * upper[step]) if ratios[step] >= FLAT else math.inf


def splits(distance: Array, linkage: Linkage = "average") -> list[tuple[float, Group, Group]]:
    """Every split of the dendrogram from the top, the highest next; none before the one that made its group.

    Args:
        distance: (m, m), symmetric, at least 0.
        linkage: ``"single"``, ``"complete"`` or ``"average"``.

    Returns:
        Height, and the rows of both parts, ascending; m - 1 of them.

    Raises:
        ValueError: when the matrix is no distance, or the linkage is another.
    """
    matrix = distances(distance)
    groups: dict[int, Group] = {row: (row,) for row in range(len(matrix))}
    made = dict[Group, tuple[float, Group, Group]]()
    for height, kept, joined in merges(matrix, linkage):
        one, other = groups[kept], groups.pop(joined)
        groups[kept] = tuple(sorted(one + other))
        made[groups[kept]] = (height, one, other)
    found, reached = list[tuple[float, Group, Group]](), [(-made[g][0], g) for g in groups.values() if g in made]
    while reached:
        found.append(made[heappop(reached)[1]])
        for part in found[-1][1:]:
            if part in made:
                heappush(reached, (-made[part][0], part))
    return found


def merges(distance: Matrix, linkage: Linkage) -> list[tuple[float, int, int]]:
    """The m - 1 merges from the closest on: height, then the two groups by smallest member, the lower first."""
    if linkage not in get_args(Linkage):
        raise ValueError(f"expected linkage {', '.join(get_args(Linkage))}, found {linkage!r}")
    between, size = distance.copy(), np.ones(len(distance))
    np.fill_diagonal(between, np.inf)
    closest, done = Nearest(between), []
    for _ in range(len(distance) - 1):
        kept, joined = closest.pair()
        done.append((float(between[kept, joined]), kept, joined))
        others = (size > 0) & (np.arange(len(size)) != kept) & (np.arange(len(size)) != joined)
        one, two = between[kept, others], between[joined, others]
        if linkage == "average":
            # In this form the mean of d and d is d to the last bit, so a cut at d includes it.
            row = one + (two - one) * (size[joined] / (size[kept] + size[joined]))
        else:
            row = np.minimum(one, two) if linkage == "single" else np.maximum(one, two)
        between[kept, others] = between[others, kept] = row
        between[joined] = between[:, joined] = np.inf
        size[kept], size[joined] = size[kept] + size[joined], 0
        closest.merged(kept, joined)
    return done
