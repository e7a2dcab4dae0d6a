"""The pattern of similarities among clients, and how well two patterns agree.

The *pattern* of a similarity matrix is what is left once the mean of every client is removed (`centred`). Let P and Q
be two patterns of the same clients, each divided by its norm. S(P) is the *sharpened* P: each eigenvector is weighted
by its eigenvalue once more, negative ones are left out because they are noise, and the result is centred and divided
by its norm as well. Then::

    Z = (<S(P), Q> + <P, S(Q)>) sqrt(m (m - 3) / 2) / sqrt(2 + 2 <S(P), P> <S(Q), Q>)

Over all m! permutations of the clients of one matrix, Z has mean 0 and variance 1, exactly and whatever P and Q are:
<P, Q> has the variance 2 / (m (m - 3)), because both have norm 1, a diagonal of 0 and rows that sum to 0. So the Z of
several views can be compared. A *view* is a layer, or all layers together.
"""

from __future__ import annotations

from fedstrata.base.lazy_torch import torch
from fedstrata.clustering.arrays import Array, require_finite, square
from fedstrata.clustering.similarity import Sums, over_columns, products, squares

MIN_TEST_CLIENTS = 4
"""The smallest number of clients that a test needs: two groups of two. The pattern of fewer clients is 0."""

_PATTERN_TOLERANCE = 1e-12
"""A pattern of less than this share of the largest similarity is rounding."""

_ENTRIES_PERMUTED = 2**20
"""The number of entries that are permuted at a time: 8 MB."""

_ROUNDING_SHARE = 1e-6
"""Updates whose differences are less than this share of their norm differ by rounding, in single precision."""


def likeness(rows: Array, sums: Sums = over_columns) -> torch.Tensor:
    """How similar rows are beyond what all have in common: the similarity that tests of clients should be given.

    The inner products of rows that are a common part and independent noise have the same mean for every pair of
    different rows, however unequal their noise. So `centred` inner products are 0 in the mean. Each row is then
    measured by its distance from the mean row, as cosines are by the norms, so that no client outweighs another.
    Cosines themselves fall with the noise of both clients, a pattern that a second half of the data confirms.

    Args:
        rows: The rows, (m, p), finite.
        sums: Over which columns, as in `cosine`.

    Returns:
        (m, m) float64, exactly symmetric, the diagonal 0; all 0 where the rows differ by rounding only. With views
        (v, m, m).

    Raises:
        ValueError: When the rows are no matrix, or not finite, or a view names no column.
    """
    squared, inner = sums(rows, squares, _centred_products)
    lengths = inner.diagonal(dim1=-2, dim2=-1).clamp(min=0.0).sqrt()
    lengths = torch.where(lengths > _ROUNDING_SHARE * squared.sqrt(), lengths, torch.inf)
    pattern = centre(require_finite(inner.triu() + inner.triu(1).mT, "entries"))
    return pattern / (lengths[..., :, None] * lengths[..., None, :])


def _centred_products(block: torch.Tensor, _: bool) -> torch.Tensor:
    return products(block - block.mean(dim=0), few=False)


def centred(similarity: Array) -> torch.Tensor:
    """What is left of similarities when the mean of every client is removed, by least squares over different clients.

    Cosines with a client of few samples are all low in both halves. That is no group, but without this it replicates.
    The U-centring of Szekely and Rizzo ("Partial distance correlation", 2014).

    Args:
        similarity: The similarities, (m, m), symmetric. The diagonal is not read.

    Returns:
        (m, m) float64; rows and columns sum to 0, the diagonal is 0. All 0 for fewer than four clients.
    """
    return centre(torch.from_numpy(square(similarity)))


def patterns_of(similarity: Array) -> torch.Tensor:
    """`centred` of each of some similarity matrices, (v, m, m)."""
    return centre(torch.stack([torch.from_numpy(square(matrix)) for matrix in similarity]))


def centre(matrices: torch.Tensor) -> torch.Tensor:
    """`centred` of many matrices (..., m, m) that are known to be symmetric and finite."""
    m = matrices.shape[-1]
    if m < MIN_TEST_CLIENTS:
        return torch.zeros_like(matrices)
    different = matrices * (1 - torch.eye(m, dtype=matrices.dtype))
    client_mean = different.sum(dim=-1, keepdim=True) / (m - 2)  # (..., m, 1)
    overall = different.sum(dim=(-2, -1), keepdim=True) / ((m - 1) * (m - 2))
    pattern = (different - client_mean - client_mean.mT + overall) * (1 - torch.eye(m, dtype=matrices.dtype))
    largest = [values.abs().amax(dim=(-2, -1), keepdim=True) for values in (pattern, different)]
    return torch.where(largest[0] > _PATTERN_TOLERANCE * largest[1], pattern, 0.0)


def sharpened(patterns: torch.Tensor) -> torch.Tensor:
    """Patterns (..., m, m), each eigenvector weighted by its eigenvalue once more, negative ones by 0; centred."""
    strengths, directions = torch.linalg.eigh(patterns)
    return centre((directions * strengths.clamp(min=0.0).square()[..., None, :]) @ directions.mT)


def unit(patterns: torch.Tensor) -> torch.Tensor:
    """Patterns (..., m, m) of norm 1, or 0."""
    lengths = patterns.square().sum(dim=(-2, -1), keepdim=True).sqrt()
    return patterns / torch.where(lengths > 0, lengths, torch.inf)


def z_of_patterns(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Z of two patterns (..., m, m) of norm 1, (...)."""
    sharp = [unit(sharpened(pattern)) for pattern in (one, other)]
    both = (sharp[0] * other).sum(dim=(-2, -1)) + (one * sharp[1]).sum(dim=(-2, -1))
    return both * scale(one, other, *sharp)


def scale(one: torch.Tensor, other: torch.Tensor, sharp_one: torch.Tensor, sharp_other: torch.Tensor) -> torch.Tensor:
    """What makes <S(P), Q> + <P, S(Q)> a Z, for patterns P, Q, S(P), S(Q) (..., m, m) of norm 1 or 0, (...)."""
    m = one.shape[-1]
    shared = (one * sharp_one).sum(dim=(-2, -1)) * (other * sharp_other).sum(dim=(-2, -1))
    return (m * (m - 3) / 2 / (2 + 2 * shared)).sqrt()


def permuted_products(one: torch.Tensor, other: torch.Tensor, orders: torch.Tensor) -> torch.Tensor:
    """Products of two matrices over all pairs of different clients, the clients of the other one permuted.

    Args:
        one: The first matrix of every view, (v, m, m), symmetric.
        other: The second matrix of every view, (v, m, m), symmetric.
        orders: The permutations: which client of the other matrix takes the place of each, (q, m).

    Returns:
        (q, v).
    """
    v, m = one.shape[:2]
    left, right = torch.triu_indices(m, m, offset=1)
    # (v, pairs), (v, m * m)
    pairs = one[:, left, right]
    flat = other.flatten(1)
    rows = max(1, _ENTRIES_PERMUTED // max(1, v * len(left)))
    return torch.cat(
        [torch.einsum("vp,vqp->qv", pairs, flat[:, some[:, left] * m + some[:, right]]) for some in orders.split(rows)]
    )


def clients_of_folds(similarity: Array, folds: int) -> int:
    """The number of clients of similarities (v, f m, f m)."""
    shape = tuple(similarity.shape)
    if folds < 2 or len(shape) != 3 or not shape[0] or shape[1] != shape[2] or shape[1] % folds:
        raise ValueError(f"expected (v, f m, f m) of at least 2 folds, found {shape} and f = {folds}")
    return int(shape[1]) // folds
