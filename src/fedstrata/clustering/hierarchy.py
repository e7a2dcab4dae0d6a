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

_LEAST_SILHOUETTE = 0.25
"""The mean silhouette that groups must exceed; up to it, "no substantial structure has been found"."""


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


def silhouette_cut(distance: Array, linkage: Linkage = "average", resolution: float = 0.0) -> float:
    """Where a person would cut the dendrogram: at the groups of highest mean silhouette, if they are groups at all.

    The silhouette of a row (Rousseeuw 1987) is (b - a) / max(a, b), with a its mean distance to its own group and b
    that to the nearest other one; 0 for a group of one. Groups whose mean is at most 0.25 are no groups (Kaufman and
    Rousseeuw, "Finding groups in data", 1990, table 4): everything is one cluster. Fewer than three rows are, too.

    Args:
        distance: The distances, (m, m), symmetric, at least 0.
        linkage: The linkage: ``"single"``, ``"complete"`` or ``"average"``.
        resolution: The smallest difference of two distances that means something, in the matrix's unit. It is added to
            every distance of two rows before silhouettes are computed, so that smaller ones make no groups.

    Returns:
        The cut for `agglomerate`, in the matrix's unit: the geometric middle of the heights that it lies between; of
        equally good cuts the highest. Infinity for one cluster.

    Raises:
        ValueError: When the matrix is no distance, the linkage is another, or the resolution is not at least 0.
    """
    from sklearn.metrics import silhouette_score

    if not resolution >= 0:
        raise ValueError(f"expected a resolution of at least 0, found {resolution}")
    matrix = square(distance, least=0.0)
    done = merges(matrix, linkage)
    apart = matrix + resolution
    np.fill_diagonal(apart, 0.0)
    cut = math.inf
    best = _LEAST_SILHOUETTE
    for count in range(len(done) - 1, 0, -1):
        lower, upper = done[count - 1][0], done[count][0]
        # Where two heights differ by rounding alone, no cut lies between them.
        if upper - lower <= np.finfo(np.float64).eps * done[-1][0]:
            continue
        found = float(silhouette_score(apart, labels_after(done[:count], len(matrix)), metric="precomputed"))
        if found > best:
            best = found
            cut = math.sqrt(lower * upper)
    return cut


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
