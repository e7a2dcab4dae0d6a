"""A given number of groups around means, from the distances."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from fedstrata.base.lazy_torch import torch
from fedstrata.clustering.arrays import Array, FloatMatrix, GroupLabels, Numbers, renumbered, square, tensor
from fedstrata.clustering.hierarchy import Linkage, labels_after, merges

Weights: TypeAlias = "np.ndarray[tuple[int], np.dtype[Any]]"

_MAX_STEPS = 100
"""The number of rounds of Lloyd's algorithm at most. It nearly always stops after a few."""

_START_LINKAGES: tuple[Linkage, ...] = ("average", "complete")
"""The hierarchies whose k groups are improved. Average linkage may spend a group on an outlier, which complete linkage
seldom does."""


def kmeans(distance: Array, k: int, weights: Numbers | None = None, start: Numbers | None = None) -> torch.Tensor:
    """Group rows so that each is nearest to the mean of its own group.

    Nothing is drawn at random: Lloyd's algorithm starts from the k groups of each of two hierarchies, and from those
    that are given. The tightest result counts. No row itself is needed, for the squared distance to a mean follows from
    the squared distances between rows.

    Args:
        distance: The Euclidean distances, (m, m), symmetric, at least 0.
        k: The number of groups, at least 1.
        weights: The weight of each row in the means, (m,), > 0; 1 each by default.
        start: The groups of a further start, (m,) labels of at most k groups; none by default.

    Returns:
        (m,) int64 labels, numbered by the smallest member of each group; fewer than k groups where there are fewer
        rows, or where a mean has lost all its rows.

    Raises:
        ValueError: When the matrix is no distance, or k or the weights are out of range.
    """
    matrix = square(distance, least=0.0)
    mass = np.ones(len(matrix)) if weights is None else tensor(weights).double().numpy()
    if k < 1 or mass.shape != (len(matrix),) or not (mass > 0).all():
        raise ValueError(f"expected k >= 1 and {len(matrix)} weights above 0, found k = {k} and {mass.tolist()}")
    if not len(matrix):
        return torch.empty(0, dtype=torch.int64)
    merged = max(len(matrix) - k, 0)
    starts = [labels_after(merges(matrix, linkage)[:merged], len(matrix)) for linkage in _START_LINKAGES]
    if start is not None:
        starts.append(renumbered(tensor(start).numpy()))
    found = [_lloyd(matrix**2, mass, each) for each in starts]
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
