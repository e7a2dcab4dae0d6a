"""Whether points form clusters at all (Hopkins), and clusters of any shape by density (DBSCAN).

FedTSDP decides by the first when to use the second.
"""

from __future__ import annotations

import math

import numpy as np

from fedstrata.base.lazy_torch import torch
from fedstrata.clustering.arrays import Array, Numbers, as_precise, renumbered, require_finite, square, tensor


def dbscan(distance: Array, radius: float, least: int) -> torch.Tensor:
    """Cluster by density; each noise point becomes a cluster of its own.

    Ester et al., "A density-based algorithm for discovering clusters", 1996. With ``least = 2`` the clusters are
    exactly the connected components of pairs within the radius. A point on the edge of two clusters goes to the one
    whose dense points hold the lowest id: with ``least > 2`` such a point's label may follow the order of the rows.

    Args:
        distance: The distances, (m, m), symmetric, at least 0. The diagonal is not read.
        radius: The radius (epsilon), in the matrix's unit and rounded to its precision. It is included.
        least: The number of points within the radius, the point itself counted, that makes a point dense; at least 1.

    Returns:
        (m,) int64 labels, numbered by the smallest member of each cluster.

    Raises:
        ValueError: When the matrix is no distance, or radius or least are out of range.
    """
    if not 0 <= radius < math.inf or least < 1:
        raise ValueError(f"expected radius >= 0 and least >= 1, found {radius} and {least}")
    matrix = square(distance, least=0.0)
    if not len(matrix):
        return torch.empty(0, dtype=torch.int64)
    from sklearn.cluster import DBSCAN

    np.fill_diagonal(matrix, 0.0)
    # scikit-learn refuses a radius of 0, which is what a radius derived from identical clients comes to; the least
    # positive number holds the same pairs.
    within = max(as_precise(radius, distance), math.ulp(0.0))
    found = DBSCAN(eps=within, min_samples=least, metric="precomputed").fit_predict(matrix)
    return torch.from_numpy(renumbered(found))


def hopkins(points: Array, generator: torch.Generator, sample: int | None = None) -> float:
    """Clustering tendency: 0.5 for points spread evenly, towards 1 for clusters.

    FedTSDP, Section 3.2.2. Uniform points fill the box that the points span. From the generator are drawn first the
    members, without replacement, then the uniform points, each in float64.

    Args:
        points: The points, (m, d). Further axes are flattened.
        generator: A torch generator of the CPU.
        sample: The number of members and of uniform points, 1 to m. By default it is a quarter of m, rounded up.

    Returns:
        The ratio of `hopkins_ratio`, in [0, 1]; 0.5, with nothing drawn, for fewer than three points.

    Raises:
        ValueError: When the sample is out of range or a point is not finite.
    """
    inside = _flat(points)
    if len(inside) < 3:
        return 0.5
    count = math.ceil(len(inside) / 4) if sample is None else sample
    if not 1 <= count <= len(inside):
        raise ValueError(f"expected a sample of 1 to {len(inside)} points, found {count}")
    members = torch.randperm(len(inside), generator=generator)[:count]
    unit = torch.rand(count, inside.shape[1], generator=generator, dtype=torch.float64)
    low = inside.amin(dim=0)
    high = inside.amax(dim=0)
    return hopkins_ratio(inside, members, low + unit * (high - low))


def hopkins_ratio(points: Array, members: Numbers, uniform: Array) -> float:
    """The Hopkins statistic of given draws: sum z / (sum z + sum v), FedTSDP Eq. 6, without an exponent.

    z is the distance from each uniform point to the nearest point, v from each sampled member to the nearest other.

    Args:
        points: The points, (m, d). Further axes are flattened.
        members: The positions of the sampled members, (s,) integers.
        uniform: The uniform points, (s, d), or with the further axes of the points.

    Returns:
        The statistic, in [0, 1]. It is 0.5 when all distances are 0 or there are fewer than three points.

    Raises:
        ValueError: When members and uniform points differ in number, or a point is not finite.
    """
    inside = _flat(points)
    outside = _flat(uniform)
    chosen = tensor(members).long().cpu()
    if len(chosen) != len(outside):
        raise ValueError(f"expected as many members as uniform points, found {len(chosen)} and {len(outside)}")
    if len(inside) < 3:
        return 0.5
    direct = "donot_use_mm_for_euclid_dist"
    reach = torch.cdist(outside, inside, compute_mode=direct).amin(dim=1).sum()
    others = torch.cdist(inside[chosen], inside, compute_mode=direct)
    others[torch.arange(len(chosen)), chosen] = torch.inf
    both = reach + others.amin(dim=1).sum()
    return float(reach / both) if both > 0 else 0.5


def _flat(points: Array) -> torch.Tensor:
    """The points as (m, d) float64 on the CPU."""
    return require_finite(tensor(points).double().cpu().flatten(1), "points")
