"""How well a pattern of similarities by one half of the data replicates by the other half, without a test."""

from __future__ import annotations

from dataclasses import dataclass

from fedstrata.base.lazy_torch import torch
from fedstrata.clustering.arrays import Array, tensor
from fedstrata.clustering.patterns import centred, permuted_products


@dataclass(frozen=True)
class Replication:
    """How well the patterns of several kinds of similarity replicate.

    Attributes:
        correlation: The correlation of the two matrices of each kind over all pairs of different clients, (v,) in
            [-1, 1]. It is 0 where one of them has no pattern.
        apart: The size of what replicates, (v,): the root mean square of the pattern without its noise, in the unit
            of the similarities.
    """

    correlation: torch.Tensor
    apart: torch.Tensor


def replication(first: Array, second: Array) -> Replication:
    """Compare what two disjoint halves of the clients' data say about who is similar to whom.

    The mean of every client is removed first (see `centred`), so a client with much noise, or a single outlier, is no
    pattern; two groups are. Fewer than four clients have none.

    Args:
        first: The similarities (v, m, m), each symmetric, by the first halves. The diagonals are not read.
        second: The same by the second halves.

    Raises:
        ValueError: When the shapes differ, or a matrix is not finite or not symmetric.
    """
    if first.ndim != 3 or tuple(first.shape) != tuple(second.shape) or not len(first):
        raise ValueError(f"expected two of shape (v, m, m), found {tuple(first.shape)} and {tuple(second.shape)}")
    m = first.shape[1]
    one, other = (torch.stack([centred(matrix) for matrix in tensor(half)]) for half in (first, second))
    lengths = one.square().sum(dim=(1, 2)).sqrt() * other.square().sum(dim=(1, 2)).sqrt() / 2
    shared = permuted_products(one, other, torch.arange(m)[None])[0]
    apart = (shared.clamp(min=0.0) / max(m * (m - 1) / 2, 1)).sqrt()
    return Replication(shared / torch.where(lengths > 0, lengths, torch.inf), apart)
