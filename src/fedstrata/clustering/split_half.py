"""Whether the similarities of clients by one fold of their data agree with those by another fold.

A pattern of similarities among clients is always found, if only in the noise of each client's own sample. So the data
of every client are halved, and both halves are trained in parallel from one model. Noise does not repeat in the other
half, but differences between the clients do.

- `split_half_test`: a permutation test of two similarity matrices of the same clients (a Mantel test), one per half.
- `fold_test`: the same for few clients, with more folds than two.
- `replication`: how well the two matrices agree, without a test.

All look at several views, such as layers. The largest Z over the views is the statistic; `patterns` says what Z is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

from fedstrata.base.lazy_torch import torch
from fedstrata.clustering.arrays import Array, tensor
from fedstrata.clustering.hierarchy import bipartition
from fedstrata.clustering.patterns import (
    MIN_TEST_CLIENTS,
    centre,
    centred,
    clients_of_folds,
    patterns_of,
    permuted_products,
    scale,
    sharpened,
    unit,
    z_of_patterns,
)
from fedstrata.clustering.permutations import (
    PermutationResult,
    Statistics,
    exact_or_random_p,
    not_tested,
    permutations_for,
    random_p,
    reason_for_no_test,
    smallest_sure_p,
    view_name,
)


def split_half_test(
    first: Array,
    second: Array,
    generator: torch.Generator,
    level: float,
    names: Sequence[str] | None = None,
) -> PermutationResult:
    """Test whether the similarities of clients by one half of their data agree with those by the other half.

    The null hypothesis is that all clients share one distribution. Then every B could belong to every A, so the clients
    of B are permuted. The similarities may be means over rounds, as long as the halves stay disjoint.
    With `likeness`, unequal noise of the clients does little harm; with `cosine` it does much, because the cosines of
    a noisy client are all low in both halves.

    Permutations are drawn until the decision is certain: Besag and Clifford, "Sequential Monte Carlo p-values" (1991).
    If there are no more permutations than would be drawn, each is taken once.

    Args:
        first: The similarities by the first halves, (v, m, m), each symmetric. The diagonals are not read.
        second: The same by the second halves.
        generator: A torch generator of the CPU.
        level: The p up to which a split is confirmed, in (0, 1).
        names: The names of the views, (v,). Without them views are numbered.

    Returns:
        The result. There is no test for fewer than four clients, for a level that so few clients cannot reach, and for
        similarities that are not finite or have no pattern.

    Raises:
        ValueError: When the shapes differ, a matrix is not symmetric, or the level is not in (0, 1).
    """
    if first.ndim != 3 or tuple(first.shape) != tuple(second.shape) or not len(first):
        raise ValueError(f"expected two of shape (v, m, m), found {tuple(first.shape)} and {tuple(second.shape)}")
    m = first.shape[1]
    planned = permutations_for(level)
    if m < MIN_TEST_CLIENTS:
        return not_tested(m, level, "too_few_members")
    floor = smallest_sure_p(m)
    reason = reason_for_no_test((first, second), floor, level)
    if reason:
        return not_tested(m, level, reason, floor)
    halves = [patterns_of(half) for half in (first, second)]
    one, other = (unit(half) for half in halves)
    if not bool((one.abs().amax(dim=(1, 2)) * other.abs().amax(dim=(1, 2))).any()):
        return not_tested(m, level, "no_pattern", floor)
    statistics = _z_of_halves(one, other)
    observed = statistics(torch.arange(m)[None])[0]
    p, drawn = exact_or_random_p(statistics, observed, m, generator, level)
    view = int(observed.argmax())
    proposal = propose(halves[0][view] + halves[1][view])
    return PermutationResult(
        proposal=proposal,
        floor=max(floor, 1 / (planned + 1)),
        level=level,
        layer=view_name(names, view),
        statistic=float(observed[view]),
        contrast=sum(contrast(half[view], proposal) for half in (first, second)) / 2,
        p=p,
        drawn=drawn,
    )


def _z_of_halves(one: torch.Tensor, other: torch.Tensor) -> Statistics:
    """Z of two halves' patterns of norm 1, (v, m, m) each, when the clients of the other half are permuted."""
    v = len(one)
    left = torch.cat([unit(sharpened(one)), one])  # S(P), P
    right = torch.cat([other, unit(sharpened(other))])  # Q, S(Q)
    weight = scale(one, other, left[:v], right[v:])

    def statistics(orders: torch.Tensor) -> torch.Tensor:
        inner = permuted_products(left, right, orders)  # (q, 2 v): <S(P), Q> and <P, S(Q)>
        # Twice, because each pair stands in a matrix twice.
        return 2 * (inner[:, :v] + inner[:, v:]) * weight

    return statistics


def fold_test(
    similarity: Array, folds: int, generator: torch.Generator, level: float, names: Sequence[str] | None = None
) -> PermutationResult:
    """Test whether few clients form groups, by more folds of their data than two.

    The null hypothesis is stronger than that of `split_half_test`: all clients are identical in their distribution,
    in the number of samples, and in how well the model fits them. Then the updates of all folds of all clients are
    exchangeable, so permuting them leaves the distribution of every statistic as it was. There are so many permutations
    that four clients can be told apart. The folds are halved in every possible way, each half gives mean similarities
    of different clients, and these two matrices give a Z. The statistic is the mean of Z over the ways.

    Args:
        similarity: The similarities of all folds, (v, f m, f m), the first fold of all clients first. The diagonals
            are not read. They may be means over rounds.
        folds: The number of folds of each client, f, at least 2.
        generator: A torch generator of the CPU.
        level: The p up to which a split is confirmed, in (0, 1).
        names: The names of the views, (v,). Without them views are numbered.

    Returns:
        The result; no test in the cases of `split_half_test`.

    Raises:
        ValueError: When the shape does not fit, a matrix is not symmetric, or the level is not in (0, 1).
    """
    m = clients_of_folds(similarity, folds)
    planned = permutations_for(level)
    if m < MIN_TEST_CLIENTS:
        return not_tested(m, level, "too_few_members")
    # Two clear groups are kept by all permutations that give each client updates of one group only.
    floor = max(comb(m, m // 2) / comb(folds * m, folds * (m // 2)), 1 / (planned + 1))
    reason = reason_for_no_test((similarity,), floor, level)
    if reason:
        return not_tested(m, level, reason, floor)
    pairs = patterns_of(similarity)
    ways = [way for way in combinations(range(folds), folds // 2) if folds % 2 or 0 in way]

    def statistics(orders: torch.Tensor) -> torch.Tensor:
        permuted = pairs[:, orders[:, :, None], orders[:, None, :]].reshape(-1, len(orders), folds, m, folds, m)
        return torch.stack([z_of_patterns(*_halved(permuted, way)) for way in ways]).mean(dim=0).T  # (q, v)

    observed = statistics(torch.arange(folds * m)[None])[0]
    if not bool(observed.abs().max() > 0):
        return not_tested(m, level, "no_pattern", floor)
    p, drawn = random_p(statistics, observed, folds * m, generator, level)
    view = int(observed.argmax())
    means = tensor(similarity)[view].double().reshape(folds, m, folds, m).mean(dim=(0, 2))
    proposal = propose(means)
    return PermutationResult(
        proposal=proposal,
        floor=floor,
        level=level,
        layer=view_name(names, view),
        statistic=float(observed[view]),
        contrast=contrast(means, proposal),
        p=p,
        drawn=drawn,
    )


def _halved(similarity: torch.Tensor, way: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Patterns of norm 1 by some folds and by the others, from similarities (..., f, m, f, m)."""
    rest = tuple(fold for fold in range(similarity.shape[-4]) if fold not in way)
    halves = (similarity[..., some, :, :, :][..., some, :].mean(dim=(-4, -2)) for some in (list(way), list(rest)))
    one, other = (unit(centre(half)) for half in halves)
    return one, other


def propose(similarity: Array) -> torch.Tensor:
    """The clearest split into two of three candidates.

    Average linkage on the pattern finds few clients among many. Average linkage on the sharpened pattern, and Ward's
    method on its eigenvectors, find large groups in noise, where the first would put one client apart. The one that
    correlates best with the pattern is taken.

    Args:
        similarity: The similarities, (m, m), symmetric, m at least 4. The diagonal is not read.

    Returns:
        Whether each client is on the other side than client 0, bool (m,).
    """
    from scipy.cluster.hierarchy import fcluster, ward

    pattern = centred(similarity)
    strengths, directions = torch.linalg.eigh(pattern)
    ways = [bipartition(pattern, "average"), bipartition(sharpened(pattern), "average")]
    ways.append(torch.from_numpy(fcluster(ward((directions * strengths.clamp(min=0.0)).numpy()), 2, "maxclust")))
    sides = torch.stack([way != way[0] for way in ways])
    signs = 1.0 - 2.0 * sides.double()
    like = (unit(centre(signs[:, :, None] * signs[:, None, :])) * pattern).sum(dim=(1, 2))
    # A single client apart is no pattern, so its correlation is 0 and it is taken last.
    return sides[int(like.argmax())]


def contrast(similarity: Array, sides: torch.Tensor) -> float:
    """Compute how much more similar clients are within two sides than across.

    Args:
        similarity: The similarities, (m, m). The diagonal is not read.
        sides: The side of each client, (m,) bool.

    Returns:
        The mean similarity within the sides minus that across.
    """
    left, right = torch.triu_indices(len(sides), len(sides), offset=1)
    within = sides[left] == sides[right]
    values = tensor(similarity)[left, right].double()
    return float(values[within].mean() - values[~within].mean())


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
