"""Whether a pattern among clients is found again in data that did not make it.

A pattern of similarities is always found, if only in the noise of every client's own sample. But halve each client's
data and compare the clients twice: noise does not come back, while what sets clients apart does. Mantel's test
("The detection of disease clustering", 1967) on two matrices of the same clients, for several kinds of similarity
at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedstrata.clustering.arrays import Array, tensor
from fedstrata.clustering.patterns import FLAT, centred, re_paired
from fedstrata.lazy_torch import torch


@dataclass(frozen=True)
class Replication:
    """How well the patterns of several kinds of similarity replicate.

    Attributes:
        correlation: of the two matrices of each kind over all pairs of different clients, (v,) in [-1, 1]; 0 where
            one of them has no pattern.
        apart: size of what replicates, (v,): the root mean square of the pattern without its noise, in the unit of
            the similarities.
        p: how often clients that are re-paired at random replicate any of the kinds as well as the true pairs do
            this one, (v,) in (0, 1]; so looking at many kinds is paid for.
    """

    correlation: torch.Tensor
    apart: torch.Tensor
    p: torch.Tensor


def replication(first: Array, second: Array, generator: torch.Generator, permutations: int = 999) -> Replication:
    """Compare what two disjoint halves of the clients' data say about who is like whom.

    What a client has in common with all others is taken out first (see `centred`), so a client with much noise, or a
    lone outlier, is no pattern; two groups are. Fewer than four clients have none, and two groups of fewer than
    seven never reach p <= 0.05: 3 against 3 clients are re-paired into the same groups in one of 10 cases.

    Args:
        first: similarities (v, m, m), each symmetric, by the first halves; the diagonals are not read.
        second: the same by the second halves.
        generator: torch's, of the CPU.
        permutations: number of random re-pairings, all kinds alike; the true pairs count as one more.

    Returns:
        Correlations, sizes and p-values. The latter hold if clients that do not differ are exchangeable, of about
        the same number of samples, and no sample of the one half depends on one of the other.

    Raises:
        ValueError: when the shapes differ, or a matrix is not finite or not symmetric.
    """
    if first.ndim != 3 or tuple(first.shape) != tuple(second.shape) or not len(first):
        raise ValueError(f"expected two of shape (v, m, m), found {tuple(first.shape)} and {tuple(second.shape)}")
    m = first.shape[1]
    one, other = (torch.stack([centred(matrix) for matrix in tensor(half)]) for half in (first, second))
    norms = one.square().sum(dim=(1, 2)).sqrt() * other.square().sum(dim=(1, 2)).sqrt() / 2
    orders = [torch.arange(m), *(torch.randperm(m, generator=generator) for _ in range(permutations))]
    products = re_paired(one, other, torch.stack(orders))
    correlations = products / torch.where(norms > 0, norms, torch.inf)  # (permutations + 1, v)
    # Kinds differ in how far chance takes them, so each is measured by its own chance before the largest is taken.
    spread = correlations.std(dim=0, correction=0)
    heights = (correlations - correlations.mean(dim=0)) / torch.where(spread > FLAT, spread, torch.inf)
    reached = heights.max(dim=1).values[:, None] >= heights[0] - 1e-9
    apart = (products[0].clamp(min=0.0) / max(m * (m - 1) / 2, 1)).sqrt()
    return Replication(correlations[0], apart, reached.double().mean(dim=0))
