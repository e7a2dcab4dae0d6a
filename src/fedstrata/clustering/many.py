"""A given number of groups of many clients or few, from the rows or the distances."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from fedstrata.base.lazy_torch import torch
from fedstrata.clustering.arrays import (
    BLOCK_COLUMNS,
    BLOCK_NUMBERS,
    Array,
    FloatMatrix,
    GroupLabels,
    Numbers,
    blocks,
    distances,
    renumbered,
    require_finite,
    require_rows,
    tensor,
)
from fedstrata.clustering.hierarchy import Linkage, agglomerate, labels_after, merges, natural_cut
from fedstrata.clustering.similarity import euclidean

Weights: TypeAlias = "np.ndarray[tuple[int], np.dtype[Any]]"

_MAX_STEPS = 100
"""The number of rounds of Lloyd's algorithm at most. It nearly always stops after a few."""

_START_LINKAGES: tuple[Linkage, ...] = ("average", "complete")
"""The hierarchies whose k groups are improved. Average linkage may spend a group on an outlier, which complete linkage
seldom does."""


def kmeans(distance: Array, k: int, weights: Numbers | None = None) -> torch.Tensor:
    """Group rows so that each is nearest to the mean of its own group.

    Nothing is drawn at random: Lloyd's algorithm starts from the k groups of each of two hierarchies, and the
    tighter result counts. No row itself is needed, for the squared distance to a mean follows from the squared
    distances between rows.

    Args:
        distance: The Euclidean distances, (m, m), symmetric, at least 0.
        k: The number of groups, at least 1.
        weights: The weight of each row in the means, (m,), > 0; 1 each by default.

    Returns:
        (m,) int64 labels, numbered by the smallest member of each group; fewer than k groups where there are fewer
        rows, or where a mean has lost all its rows.

    Raises:
        ValueError: When the matrix is no distance, or k or the weights are out of range.
    """
    matrix = distances(distance)
    mass = np.ones(len(matrix)) if weights is None else tensor(weights).double().numpy()
    if k < 1 or mass.shape != (len(matrix),) or not (mass > 0).all():
        raise ValueError(f"expected k >= 1 and {len(matrix)} weights above 0, found k = {k} and {mass.tolist()}")
    if not len(matrix):
        return torch.empty(0, dtype=torch.int64)
    found = []
    for linkage in _START_LINKAGES:
        start = labels_after(merges(matrix, linkage)[: max(len(matrix) - k, 0)], len(matrix))
        found.append(_lloyd(matrix**2, mass, start))
    return torch.from_numpy(min(found, key=lambda result: result[0])[1])


def _lloyd(squares: FloatMatrix, mass: Weights, labels: GroupLabels) -> tuple[float, GroupLabels]:
    """The weighted sum of squared distances to the means, and the groups."""
    for _ in range(_MAX_STEPS):
        held = mass[:, None] * (labels[:, None] == np.arange(labels.max() + 1))
        share = held / held.sum(axis=0)
        to_mean = squares @ share
        to_mean -= (share * to_mean).sum(axis=0) / 2
        nearest = renumbered(to_mean.argmin(axis=1))
        if (nearest == labels).all():
            break
        labels = nearest
    return float((held * to_mean).sum()), labels


_MAX_EXACT_POINTS = 4000
"""The number of points that are clustered exactly. Of a group of one in 400, ten are among them. Their distances take
128 MB."""

_MAX_PASSES = 10
"""The number of passes over all points at most. Where groups are far apart, the second pass changes nothing."""

_NUMBERS_READ = 2**22
"""The number of numbers that are read at a time: 16 MB."""


def cluster_many(
    points: Array, generator: torch.Generator, k: int | None = None, sample: int = _MAX_EXACT_POINTS
) -> torch.Tensor:
    """Cluster a sample exactly, give everyone to the nearest mean, and improve the means.

    Buckshot of Cutting et al., "Scatter/Gather", 1992. No matrix of pairs is held but that of the sample, and the
    points are read a few at a time, so that they may lie in a memory map. It finds groups around their means, each of
    which should have several points in the sample. For updates of models give it a `sketch`, of rows divided by
    their norms where cosines matter.

    Args:
        points: The points, (m, d), finite.
        generator: A torch generator of the CPU, which draws the sample.
        k: The number of groups. By default the natural cut of the sample's hierarchy decides.
        sample: The number of points that are clustered exactly, at least 1. Fewer points are all clustered exactly.

    Returns:
        (m,) int64 labels, numbered by the smallest member of each group; fewer than k groups where there are fewer
        points, or where a mean has lost all its points.

    Raises:
        ValueError: When the points are no finite matrix, or k or the sample is less than 1.
    """
    require_rows(points)
    if sample < 1 or (k is not None and k < 1):
        raise ValueError(f"expected k >= 1 and a sample of at least 1, found {k} and {sample}")
    if len(points) <= sample:
        return _exact(tensor(points), k)
    chosen = torch.randperm(len(points), generator=generator)[:sample].sort().values
    some = tensor(points[chosen] if isinstance(points, torch.Tensor) else points[chosen.numpy()])
    groups = _exact(some, k)
    middle = some.double().mean(dim=0)
    means = torch.zeros(int(groups.max()) + 1, points.shape[1], dtype=torch.float64)
    means.index_add_(0, groups, some.double() - middle).div_(groups.bincount()[:, None])
    labels = torch.full((len(points),), -1)
    for _ in range(_MAX_PASSES):
        nearest, means = nearest_means(points, middle, means)
        if torch.equal(nearest, labels):
            break
        labels = nearest
    return torch.from_numpy(renumbered(labels))


def _exact(points: torch.Tensor, k: int | None) -> torch.Tensor:
    distance = euclidean(points)
    return agglomerate(distance, natural_cut(distance)) if k is None else kmeans(distance, k)


def nearest_means(points: Array, middle: torch.Tensor, means: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The nearest mean of every point, (m,), and the means of those that it is nearest to; one without keeps its place.

    Args:
        points: The points, (m, d).
        middle: What is subtracted from every point, (d,), so that products in float32 lose no digits to what all share.
        means: The means, (k, d).
    """
    nearest = torch.empty(len(points), dtype=torch.int64)
    sums = torch.zeros_like(means)
    towards = means.float().T
    half = (means.square().sum(dim=1) / 2).float()
    for start in range(0, len(points), rows := max(1, _NUMBERS_READ // max(1, points.shape[1]))):
        part = require_finite(tensor(points[start : start + rows]), "points", start) - middle
        own = nearest[start : start + rows] = torch.addmm(-half, part.float(), towards).argmax(dim=1)
        sums.index_add_(0, own, part)
    members = nearest.bincount(minlength=len(means))[:, None]
    return nearest, torch.where(members > 0, sums / members.clamp(min=1), means)


def sketch(rows: Array, width: int, seed: int) -> torch.Tensor:
    """Count sketch: every column is added to one of a few buckets, with a sign; both are drawn.

    Charikar, Chen and Farach-Colton, "Finding frequent items in data streams", 2002; as a projection for learning,
    Weinberger et al., "Feature hashing for large scale multitask learning", 2009, Lemma 2. It takes m p additions,
    one number per column, and the rows a block of columns at a time. Sketches are linear in the rows, and those of
    one seed may be made on different days and devices.

    For rows a and b with sketches a' and b', over the seeds: <a', b'> has the mean <a, b> and at most the variance
    (|a|^2 |b|^2 + <a, b>^2) / width. So it errs by more than e |a| |b| with probability at most 2 / (width e^2)
    (Chebyshev), and the cosine of a' and b' by more than 2 e / (1 - e) with probability at most 6 / (width e^2).
    The worst are rows of a few large numbers that meet in one bucket; with many numbers of like size, errors are
    nearly normal, with a standard deviation of 0.06 for a width of 256 where a and b are at right angles.

    Args:
        rows: The rows, (m, p), of any floating or integer type.
        width: The length of a sketch, d, at least 1.
        seed: The seed of the buckets and signs. Only sketches of one seed and one p can be compared.

    Returns:
        (m, d) float32, summed in float64.

    Raises:
        ValueError: When the rows are no matrix, or the width is not at least 1.
    """
    require_rows(rows)
    if width < 1:
        raise ValueError(f"expected a width of at least 1, found {width}")
    drawn = torch.randint(2 * width, (rows.shape[1],), generator=torch.Generator().manual_seed(seed))
    bucket = drawn // 2
    sign = (1 - 2 * (drawn % 2)).double()
    short = torch.empty(len(rows), width)
    some = max(1, BLOCK_NUMBERS // max(width, BLOCK_COLUMNS))
    for first in range(0, len(rows), some):
        start = 0
        total = torch.zeros(len(short[first : first + some]), width, dtype=torch.float64)
        for block in blocks(rows[first : first + some]):
            part = slice(start, start := start + block.shape[1])
            total.index_add_(1, bucket[part], block * sign[part])
        short[first : first + some] = total
    return short
