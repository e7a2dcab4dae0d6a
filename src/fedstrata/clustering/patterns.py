"""Patterns: what similarities say about who is like whom, once the level of every client is taken out."""

from __future__ import annotations

from fedstrata.clustering.arrays import Array, require_finite, square, tensor
from fedstrata.clustering.hierarchy import bipartition
from fedstrata.clustering.products import products, squares
from fedstrata.clustering.views import Views, summed
from fedstrata.lazy_torch import torch

FLAT = 1e-12
"""A pattern of less than this share of the largest similarity is rounding."""

CHUNK = 2**20
"""Numbers that are re-paired at a time: 8 MB."""

SAME = 1e-6
"""Updates whose differences are less than this share of their norm differ by rounding, in single precision."""


def likeness(rows: Array, views: Views | None = None) -> torch.Tensor:
    """How alike rows are beyond what all have in common: the similarity that tests of clients should be given.

    The inner products of rows that are a common part and independent noise have the same mean for every pair of
    different rows, however unequal their noise. So `centred` inner products are 0 in the mean; each row is then
    measured by its distance from the mean row, as cosines are by the norms, so that no client outweighs another.
    Cosines themselves fall with the noise of both clients, a pattern that a second half of the data confirms.

    Args:
        rows: (m, p), finite.
        views: columns of each view, such as those of every layer, in one pass; they may overlap.

    Returns:
        (m, m) float64, exactly symmetric, the diagonal 0; all 0 where the rows differ by rounding only. With views
        (v, m, m).

    Raises:
        ValueError: when the rows are no matrix, or not finite, or a view names no column.
    """
    squared, inner = summed(rows, views, squares, _apart)
    lengths = inner.diagonal(dim1=-2, dim2=-1).clamp(min=0.0).sqrt()
    lengths = torch.where(lengths > SAME * squared.sqrt(), lengths, torch.inf)
    pattern = centre(require_finite(inner.triu() + inner.triu(1).mT, "entries"))
    return pattern / (lengths[..., :, None] * lengths[..., None, :])


def _apart(block: torch.Tensor, _: bool) -> torch.Tensor:
    return products(block - block.mean(dim=0), few=False)


def centred(similarity: Array) -> torch.Tensor:
    """What is left of similarities when every client's level is taken out, by least squares over different clients.

    Cosines with a client of few samples are all low, and are so in both halves: no group, but without this it
    replicates. The U-centring of Szekely and Rizzo ("Partial distance correlation", 2014).

    Args:
        similarity: (m, m), symmetric; the diagonal is not read.

    Returns:
        (m, m) float64; rows and columns sum to 0, the diagonal is 0. All 0 for fewer than four clients.
    """
    return centre(torch.from_numpy(square(similarity)))


def centre(matrices: torch.Tensor) -> torch.Tensor:
    """`centred` of many matrices (..., m, m) that are known to be symmetric and finite."""
    m = matrices.shape[-1]
    if m < 4:
        return torch.zeros_like(matrices)
    different = matrices * (1 - torch.eye(m, dtype=matrices.dtype))
    level = different.sum(dim=-1, keepdim=True) / (m - 2)  # (..., m, 1)
    overall = different.sum(dim=(-2, -1), keepdim=True) / ((m - 1) * (m - 2))
    pattern = (different - level - level.mT + overall) * (1 - torch.eye(m, dtype=matrices.dtype))
    largest = [values.abs().amax(dim=(-2, -1), keepdim=True) for values in (pattern, different)]
    return torch.where(largest[0] > FLAT * largest[1], pattern, 0.0)


def re_paired(one: torch.Tensor, other: torch.Tensor, orders: torch.Tensor) -> torch.Tensor:
    """Products of two matrices over all pairs of different clients, the clients of the other one re-paired.

    Args:
        one: (v, m, m), symmetric.
        other: (v, m, m), symmetric.
        orders: which client of the other takes the place of each, (q, m).

    Returns:
        (q, v).
    """
    v, m = one.shape[:2]
    left, right = torch.triu_indices(m, m, offset=1)
    pairs, flat = one[:, left, right], other.flatten(1)  # (v, pairs), (v, m * m)
    rows = max(1, CHUNK // max(1, v * len(left)))
    return torch.cat(
        [torch.einsum("vp,vqp->qv", pairs, flat[:, some[:, left] * m + some[:, right]]) for some in orders.split(rows)]
    )


def propose(similarity: Array) -> torch.Tensor:
    """The clearest split into two that three ways of looking offer.

    Average linkage on the pattern finds few among many, average linkage on the sharpened pattern and Ward's method on
    its directions find large groups in noise, where the first would put one client apart. Taken is whichever looks
    most like the pattern itself.

    Args:
        similarity: (m, m), symmetric, m at least 4; the diagonal is not read.

    Returns:
        Whether each client is on the other side than client 0, bool (m,).
    """
    from scipy.cluster.hierarchy import fcluster, ward

    pattern = centre(torch.from_numpy(square(similarity)))
    strengths, directions = torch.linalg.eigh(pattern)
    ways = [bipartition(pattern, "average"), bipartition(sharpened(pattern), "average")]
    ways.append(torch.from_numpy(fcluster(ward((directions * strengths.clamp(min=0.0)).numpy()), 2, "maxclust")))
    sides = torch.stack([way != way[0] for way in ways])
    signs = 1.0 - 2.0 * sides.double()
    like = (unit(centre(signs[:, :, None] * signs[:, None, :])) * pattern).sum(dim=(1, 2))
    # A way that puts a lone client apart is no pattern: it looks like nothing, so it is last.
    return sides[int(like.argmax())]


def contrast(similarity: Array, sides: torch.Tensor) -> float:
    """Mean similarity within two sides minus that across, over pairs of different clients: T."""
    left, right = torch.triu_indices(len(sides), len(sides), offset=1)
    within, values = sides[left] == sides[right], tensor(similarity)[left, right].double()
    return float(values[within].mean() - values[~within].mean())


def sharpened(patterns: torch.Tensor) -> torch.Tensor:
    """Patterns (..., m, m) with each direction weighed by its strength once more; those of negative strength go."""
    strengths, directions = torch.linalg.eigh(patterns)
    return centre((directions * strengths.clamp(min=0.0).square()[..., None, :]) @ directions.mT)


def unit(patterns: torch.Tensor) -> torch.Tensor:
    """Patterns (..., m, m) of norm 1, or 0."""
    norms = patterns.square().sum(dim=(-2, -1), keepdim=True).sqrt()
    return patterns / torch.where(norms > 0, norms, torch.inf)


def agreement(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Z of patterns (..., m, m) of norm 1 as they stand, (...)."""
    sharp = [unit(sharpened(pattern)) for pattern in (one, other)]
    both = (sharp[0] * other).sum(dim=(-2, -1)) + (one * sharp[1]).sum(dim=(-2, -1))
    return both * scale(one, other, *sharp)


def scale(one: torch.Tensor, other: torch.Tensor, sharp: torch.Tensor, keen: torch.Tensor) -> torch.Tensor:
    """What makes <S(P), Q> + <P, S(Q)> a Z, for patterns P, Q, S(P), S(Q) (..., m, m) of norm 1 or 0, (...)."""
    m = one.shape[-1]
    shared = (one * sharp).sum(dim=(-2, -1)) * (other * keen).sum(dim=(-2, -1))
    return (m * (m - 3) / 2 / (2 + 2 * shared)).sqrt()
