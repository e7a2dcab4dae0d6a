"""Agglomerative clustering: two groups, groups below a cut, and where to cut.

Written out rather than taken from a library, because equal distances then merge in a stated order, and because a
library's cut into two returns one group when the last two merges are equally high.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import takewhile
from typing import Literal, get_args

import numpy as np

from fedstrata.base.lazy_torch import torch
from fedstrata.clustering.arrays import Array, FloatMatrix, GroupLabels, as_precise, renumbered, square

Linkage = Literal["single", "complete", "average"]
"""How far apart two groups are: as their closest pair of rows, as their farthest one, or as the mean of all pairs."""

Group = tuple[int, ...]
"""The rows of a group, ascending."""

CLEAR_STEP = 1.3
"""A merge height that grows by this factor is a clear step. The factor is not fitted to any data."""


def bipartition(similarity: Array, linkage: Linkage = "single") -> torch.Tensor:
    """Split into the two groups that the last merge would join.

    Single linkage (Kruskal until two components are left) minimises the largest similarity across the groups
    exactly: the objective of Theorem 1. Complete linkage is what public implementations use; average is the least
    moved by one odd pair. Of equal similarities, the pair of smallest members merges first.

    Args:
        similarity: The similarities, (m, m), symmetric. The diagonal is not read.
        linkage: The linkage: ``"single"``, ``"complete"`` or ``"average"``.

    Returns:
        (m,) int64 of 0 and 1; the group of row 0 is 0.

    Raises:
        ValueError: When there are fewer than two rows, or the linkage is another.
    """
    matrix = square(similarity)
    if len(matrix) < 2:
        raise ValueError(f"expected at least 2 rows to split, found {len(matrix)}")
    return torch.from_numpy(labels_after(merges(-matrix, linkage)[:-1], len(matrix)))


def agglomerate(distance: Array, cut: float, linkage: Linkage = "average") -> torch.Tensor:
    """Merge the closest groups while their linkage distance is at most the cut (AdaCFL, Algorithm 1).

    Args:
        distance: The distances, (m, m), symmetric, at least 0.
        cut: The distance up to which groups merge (lambda), in the matrix's unit and rounded to its precision.
        linkage: The linkage: ``"single"``, ``"complete"`` or ``"average"``.

    Returns:
        (m,) int64 labels, numbered by the smallest member of each group.

    Raises:
        ValueError: When the matrix is no distance, the cut is nan, or the linkage is another.
    """
    if math.isnan(cut):
        raise ValueError("expected a cut, found nan")
    matrix = square(distance, least=0.0)
    limit = as_precise(cut, distance)
    below = takewhile(lambda merge: merge[0] <= limit, merges(matrix, linkage))
    return torch.from_numpy(labels_after(below, len(matrix)))


def natural_cut(distance: Array, linkage: Linkage = "average", resolution: float = 0.0) -> float:
    """Where the dendrogram says to cut: in the largest relative step between two merge heights.

    With heights h_1 <= ... <= h_(m-1), the cut is sqrt(h_k h_(k+1)) at the k of largest h_(k+1) / h_k (the lowest
    of equals), if that ratio is at least 1.3. Otherwise the heights are flat, and everything is one cluster. Fewer
    than three rows have fewer than two heights, so no step: one cluster. Heights of 0, of rows that are equal, are no
    step either, for they say nothing about the others. But where every row has a copy, or all rows are copies of two,
    and the other heights are flat, each group of copies is a cluster.

    Where distances are known to a resolution r only, small ones differ by large factors that mean nothing. Then
    h_k + r stands for h_k in both formulas, so that a step is one from the most that the lower height may be; and a
    height of 0 is like any other.

    Args:
        distance: The distances, (m, m), symmetric, at least 0.
        linkage: The linkage: ``"single"``, ``"complete"`` or ``"average"``.
        resolution: The smallest difference of two distances that means something, in the matrix's unit.

    Returns:
        The cut for `agglomerate`, in the matrix's unit; infinity for one cluster.

    Raises:
        ValueError: When the matrix is no distance, the linkage is another, or the resolution is not at least 0.
    """
    if not resolution >= 0:
        raise ValueError(f"expected a resolution of at least 0, found {resolution}")
    matrix = square(distance, least=0.0)
    nearest = np.min(matrix, axis=1, where=~np.eye(len(matrix), dtype=np.bool_), initial=math.inf)
    heights = np.sort([height for height, _, _ in merges(matrix, linkage)])
    if len(heights) < 2:
        return math.inf
    # Below the precision of the largest height, the ratio of two heights is a ratio of rounding errors.
    least = max(np.finfo(np.float64).eps * heights[-1], np.finfo(np.float64).tiny)
    apart = heights if resolution > least else heights[heights > least]
    if len(apart) < 2:
        # Equal rows and one height: all rows are copies of a few.
        return float(least) if len(apart) == 1 else math.inf
    lower = apart[:-1] + resolution
    upper = apart[1:]
    ratios = upper / lower
    step = int(ratios.argmax())
    if ratios[step] >= CLEAR_STEP:
        return math.sqrt(lower[step] * upper[step])
    return float(least) if resolution <= least and bool((nearest <= least).all()) else math.inf


def splits(distance: Array, linkage: Linkage = "average") -> list[tuple[float, Group, Group]]:
    """Every split of the dendrogram, the highest first, and none before the split that made its group.

    Args:
        distance: The distances, (m, m), symmetric, at least 0.
        linkage: The linkage: ``"single"``, ``"complete"`` or ``"average"``.

    Returns:
        The height and the rows of both parts, ascending, of each of the m - 1 splits.

    Raises:
        ValueError: When the matrix is no distance, or the linkage is another.
    """
    matrix = square(distance, least=0.0)
    groups: dict[int, Group] = {row: (row,) for row in range(len(matrix))}
    made = dict[Group, tuple[float, Group, Group]]()
    for height, kept, joined in merges(matrix, linkage):
        one = groups[kept]
        other = groups.pop(joined)
        groups[kept] = tuple(sorted(one + other))
        made[groups[kept]] = (height, one, other)
    found = list[tuple[float, Group, Group]]()
    reached = [(-made[g][0], g) for g in groups.values() if g in made]
    while reached:
        found.append(made[heappop(reached)[1]])
        for part in found[-1][1:]:
            if part in made:
                heappush(reached, (-made[part][0], part))
    return found


def merges(distance: FloatMatrix, linkage: Linkage) -> list[tuple[float, int, int]]:
    """The m - 1 merges from the closest on: height, then the two groups by smallest member, the lower first."""
    if linkage not in get_args(Linkage):
        raise ValueError(f"expected linkage {', '.join(get_args(Linkage))}, found {linkage!r}")
    if not len(distance):
        return []
    between = np.where(np.tri(len(distance), dtype=np.bool_), np.inf, distance)  # each pair once, in the lower row
    size = np.ones(len(distance))
    nearest = between.argmin(axis=1)
    least = between.min(axis=1)
    done = []
    for _ in range(len(distance) - 1):
        # argmin takes the first of equals: the pair of smallest members.
        kept = int(least.argmin())
        joined = int(nearest[kept])
        done.append((float(least[kept]), kept, joined))
        others = np.flatnonzero(size)
        others = others[(others != kept) & (others != joined)]
        with_kept = np.minimum(others, kept), np.maximum(others, kept)
        one = between[with_kept]
        two = between[np.minimum(others, joined), np.maximum(others, joined)]
        if linkage == "average":
            # In this form the mean of d and d is d to the last bit, so a cut at d includes it.
            row = one + (two - one) * (size[joined] / (size[kept] + size[joined]))
        else:
            row = np.minimum(one, two) if linkage == "single" else np.maximum(one, two)
        between[with_kept] = row
        between[joined] = between[:, joined] = np.inf
        size[kept], size[joined] = size[kept] + size[joined], 0
        # Only of these groups another one may be the nearest now.
        changed = (nearest == kept) | (nearest == joined) | (between[:, kept] <= least)
        changed = np.append(np.flatnonzero(changed & (size > 0)), [kept, joined])
        nearest[changed] = between[changed].argmin(axis=1)
        least[changed] = between[changed].min(axis=1)
    return done


def labels_after(done: Iterable[tuple[float, int, int]], rows: int) -> GroupLabels:
    """The groups of some rows after merges as `merges` returns them, numbered by the smallest member of each."""
    labels = np.arange(rows)
    for _, kept, joined in done:
        labels[labels == joined] = kept
    return renumbered(labels)
