"""Tests of whether the similarities of clients by one fold of their data agree with those by another fold.

A pattern of similarities among clients is always found, if only in the noise of each client's own sample. So the data
of every client are halved, and both halves are trained in parallel from one model. Noise does not repeat in the other
half, but differences between the clients do.

- `split_half_test`: a permutation test of two similarity matrices of the same clients (a Mantel test), one per half.
- `fold_test`: the same for few clients, with more folds than two.
- `newcomer_test`: whether a group that is known beforehand differs from the other clients.
- `error_rate_test`: whether models of two groups suit them differently, on samples that trained neither model.
- `replication`: how well a pattern replicates, without a test.

All tests look at several *views*: a view is a layer, or all layers together.

The *pattern* of a similarity matrix is what is left once the mean of every client is removed (`centred`). Let P and Q
be the patterns of half A and half B, each divided by its norm. S(P) is the *sharpened* P: each eigenvector is weighted
by its eigenvalue once more, negative ones are left out because they are noise, and the result is centred and divided
by its norm as well. Then::

    Z = (<S(P), Q> + <P, S(Q)>) sqrt(m (m - 3) / 2) / sqrt(2 + 2 <S(P), P> <S(Q), Q>)

Over all m! permutations of the clients of one half, Z has mean 0 and variance 1, exactly and whatever P and Q are:
<P, Q> has the variance 2 / (m (m - 3)), because both have norm 1, a diagonal of 0 and rows that sum to 0. So views can
be compared, and the largest Z over the views is the statistic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, islice, permutations
from math import ceil, comb, exp, factorial, inf, sqrt
from typing import TypeAlias

from fedstrata.clustering.arrays import Array, Numbers, require_finite, square, tensor
from fedstrata.clustering.hierarchy import bipartition
from fedstrata.clustering.similarity import STILL, Views, norms, products, squares, summed
from fedstrata.lazy_torch import torch

MIN_TEST_CLIENTS = 4
"""The smallest number of clients that a test needs: two groups of two. The pattern of fewer clients is 0."""

_MIN_PERMUTATIONS = 999
"""The smallest number of permutations that are planned. Fewer are drawn if the decision is certain before."""

_MIN_REACHED = 20
"""The smallest number of permutations that end the drawing by reaching the observed statistic. The standard error of p
is then about a quarter of p."""

_TIE_TOLERANCE = 1e-9
"""Statistics that differ by no more are equal. A tie counts against the split."""

_BATCH_PERMUTATIONS = 64
"""The number of permutations that are computed at a time. They are counted one by one."""

_PATTERN_TOLERANCE = 1e-12
"""A pattern of less than this share of the largest similarity is rounding."""

_ENTRIES_PERMUTED = 2**20
"""The number of entries that are permuted at a time: 8 MB."""

_ROUNDING_SHARE = 1e-6
"""Updates whose differences are less than this share of their norm differ by rounding, in single precision."""

Statistics: TypeAlias = "Callable[[torch.Tensor], torch.Tensor]"
"""Z of every view (q, v) for each of some permutations (orders) of the clients or folds, (q, s) int64."""


@dataclass(frozen=True)
class PermutationResult:
    """The result of a permutation test.

    Attributes:
        proposal: The clearest split into two by all evidence of the layer, bool (m,). Client 0 is always outside.
        floor: The p that two clear groups of the best sizes are sure to reach among so many clients: the share of
            permutations that keep both groups. By chance, the identity may have a larger statistic than these, and p
            may be smaller.
        level: The p up to which a split is confirmed.
        layer: The name of the view with the largest statistic. It is empty without a test.
        statistic: Z of that view: how well the folds agree, in standard deviations over the permutations.
        contrast: The mean similarity within the sides of the proposal minus that across, over different clients.
        p: The probability of such a statistic if all clients share one distribution. It is 1 without a test.
        drawn: The number of permutations that were compared, the identity included. It is 0 without a test.
        reason: Why no test was made, as a snake_case name. It is empty after a test.
    """

    proposal: torch.Tensor
    floor: float
    level: float
    layer: str = ""
    statistic: float = 0.0
    contrast: float = 0.0
    p: float = 1.0
    drawn: int = 0
    reason: str = ""

    @property
    def tested(self) -> bool:
        """Whether there was a test. If there was none, nothing of a budget is spent."""
        return not self.reason

    @property
    def confirmed(self) -> bool:
        """Whether the test confirms that the clients form groups."""
        return self.tested and self.p <= self.level


def not_tested(m: int, level: float, reason: str, floor: float = 1.0) -> PermutationResult:
    """Make the result of clients that were not tested.

    Args:
        m: The number of clients.
        level: The level that the test would have had.
        reason: Why there was no test, as a name.
        floor: The p that two clear groups are sure to reach; 1 where it is unknown.

    Returns:
        A result that rejects nothing.
    """
    return PermutationResult(torch.zeros(m, dtype=torch.bool), floor, level, reason=reason)


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
    reason = _reason_for_no_test((first, second), floor, level)
    if reason:
        return not_tested(m, level, reason, floor)
    halves = [patterns_of(half) for half in (first, second)]
    one, other = (unit(half) for half in halves)
    if not bool((one.abs().amax(dim=(1, 2)) * other.abs().amax(dim=(1, 2))).any()):
        return not_tested(m, level, "no_pattern", floor)
    statistics = _agreement_of_halves(one, other)
    observed = statistics(torch.arange(m)[None])[0]
    p, drawn = _exact_or_random_p(statistics, observed, m, generator, level)
    view = int(observed.argmax())
    proposal = propose(halves[0][view] + halves[1][view])
    return PermutationResult(
        proposal=proposal,
        floor=max(floor, 1 / (planned + 1)),
        level=level,
        layer=_view_name(names, view),
        statistic=float(observed[view]),
        contrast=sum(contrast(half[view], proposal) for half in (first, second)) / 2,
        p=p,
        drawn=drawn,
    )


def _agreement_of_halves(one: torch.Tensor, other: torch.Tensor) -> Statistics:
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
    m = _clients_of(similarity, folds)
    planned = permutations_for(level)
    if m < MIN_TEST_CLIENTS:
        return not_tested(m, level, "too_few_members")
    # Two clear groups are kept by all permutations that give each client updates of one group only.
    floor = max(comb(m, m // 2) / comb(folds * m, folds * (m // 2)), 1 / (planned + 1))
    reason = _reason_for_no_test((similarity,), floor, level)
    if reason:
        return not_tested(m, level, reason, floor)
    pairs = patterns_of(similarity)
    ways = [way for way in combinations(range(folds), folds // 2) if folds % 2 or 0 in way]

    def statistics(orders: torch.Tensor) -> torch.Tensor:
        permuted = pairs[:, orders[:, :, None], orders[:, None, :]].reshape(-1, len(orders), folds, m, folds, m)
        return torch.stack([agreement(*_halved(permuted, way)) for way in ways]).mean(dim=0).T  # (q, v)

    observed = statistics(torch.arange(folds * m)[None])[0]
    if not bool(observed.abs().max() > 0):
        return not_tested(m, level, "no_pattern", floor)
    p, drawn = _random_p(statistics, observed, folds * m, generator, level)
    view = int(observed.argmax())
    means = tensor(similarity)[view].double().reshape(folds, m, folds, m).mean(dim=(0, 2))
    proposal = propose(means)
    return PermutationResult(
        proposal=proposal,
        floor=floor,
        level=level,
        layer=_view_name(names, view),
        statistic=float(observed[view]),
        contrast=contrast(means, proposal),
        p=p,
        drawn=drawn,
    )


def _exact_or_random_p(
    statistics: Callable[[torch.Tensor], torch.Tensor],
    observed: torch.Tensor,
    m: int,
    generator: torch.Generator,
    level: float,
) -> tuple[float, int]:
    """The p of a statistic and how many permutations it took: all there are, if no more would be drawn."""
    if factorial(m) > permutations_for(level) + 1:
        return _random_p(statistics, observed, m, generator, level)
    true_order_first = permutations(range(m))
    orders = (torch.tensor(order) for order in islice(true_order_first, 1, None))
    return permutation_p(statistics, observed, orders, inf)


def newcomer_test(
    similarity: Array,
    folds: int,
    newcomers: torch.Tensor,
    generator: torch.Generator,
    level: float,
    names: Sequence[str] | None = None,
) -> PermutationResult:
    """Test whether newcomers differ from the members of a cluster. The null hypothesis is that of `fold_test`.

    The group is known beforehand, so a single client can be told apart. But a newcomer that differs from the members
    only as they differ from each other is no reason for a new cluster: p is at least the share of members that are as
    far from their fellows as the newcomers are from the members.

    The statistic is the squared distance of the mean updates of both groups, unbiased because no update is compared
    with itself: the mean similarity within the one, plus that within the other, minus twice that across; as a Z.

    Args:
        similarity: As in `fold_test`, (v, f m, f m).
        folds: The number of folds of each client, f, at least 2.
        newcomers: Who is new, bool (m,). At least one client is, and at least one is not.
        generator: A torch generator of the CPU.
        level: The p up to which a cluster of their own is confirmed, in (0, 1).
        names: The names of the views, (v,). Without them views are numbered.

    Returns:
        The result. Its proposal is the newcomers, and its contrast the squared distance.

    Raises:
        ValueError: When the shape does not fit, all or none are new, a matrix is not symmetric, or the level is not in
            (0, 1).
    """
    m = _clients_of(similarity, folds)
    planned = permutations_for(level)
    if tuple(newcomers.shape) != (m,) or not bool(newcomers.any()) or bool(newcomers.all()):
        raise ValueError(f"expected some of {m} clients to be new, found {newcomers.tolist()}")
    new = int(newcomers.sum())
    floor = max((2 if 2 * new == m else 1) / comb(folds * m, folds * new), 1 / (planned + 1))
    reason = _reason_for_no_test((similarity,), floor, level)
    if reason:
        return not_tested(m, level, reason, floor)
    pairs = patterns_of(similarity)
    if not bool(unit(pairs).any()):
        return not_tested(m, level, "no_pattern", floor)
    weights = _distance_weights(newcomers, ~newcomers, folds)
    statistics = partial(_squared_distances, weights, unit(pairs))
    observed = statistics(torch.arange(folds * m)[None])[0]
    p, drawn = _random_p(statistics, observed, folds * m, generator, level)
    view = int(observed.argmax())
    distance = float((weights * pairs[view]).sum())
    return PermutationResult(
        proposal=newcomers.clone(),
        floor=floor,
        level=level,
        layer=_view_name(names, view),
        statistic=float(observed[view]),
        contrast=distance,
        p=max(p, _share_as_far(pairs[view], ~newcomers, folds, distance)),
        drawn=drawn,
    )


def _squared_distances(weights: torch.Tensor, pairs: torch.Tensor, orders: torch.Tensor) -> torch.Tensor:
    """The squared distance of two groups as a Z, for every order of the updates (s, f m) and every view, (s, v)."""
    slots = orders.shape[1]
    question = unit(centre(weights)).expand_as(pairs)
    return permuted_products(question, pairs, orders) * sqrt(2 * slots * (slots - 3))


def error_rate_test(own: Numbers, other: Numbers, first: Array, samples: Numbers) -> float:
    """Test whether the models of two groups suit them differently, on samples that trained neither model.

    Of two models and a sample, let f be 1 where only the first model is wrong, -1 where only the second is, else 0. If
    all clients share one distribution, f has the same mean over the samples of either group, whatever the models are
    and however they were chosen, as long as the samples had no part in it. The *advantage* is the mean of f in the
    second group minus that in the first. It is positive if each group's own model has the fewer errors. Under the null
    hypothesis its mean is 0, and because f lies in [-1, 1], it is seldom large (Hoeffding, "Probability inequalities
    for sums of bounded random variables", 1963, Theorem 2)::

        P(advantage >= t) <= exp(-2 t^2 / sum of (2 w_c)^2 / n_c)

    with n_c independent samples of client c and its weight w_c in the mean of its group. No normality, no resampling
    and no minimum number of clients are needed.

    Args:
        own: The share of errors of each client's samples under the model of its group, (m,).
        other: The same under the model of the other group, (m,).
        first: Who is in the first group, bool (m,).
        samples: The number of independent samples of each client, (m,), at least 1.

    Returns:
        p, valid for any models and groups that the samples did not choose. It is 1 where a group has no client.
    """
    group = tensor(first)
    if not bool(group.any()) or bool(group.all()):
        return 1.0
    numbers = tensor(samples).double()
    difference = tensor(other).double() - tensor(own).double()
    advantage = float(difference[group].mean() + difference[~group].mean())
    if advantage <= 0:
        return 1.0
    spread = sum(float((4 / numbers[side]).sum()) / int(side.sum()) ** 2 for side in (group, ~group))
    return exp(-2 * advantage**2 / spread)


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


def permutation_p(
    statistics: Statistics, observed: torch.Tensor, orders: Iterator[torch.Tensor], limit: float
) -> tuple[float, int]:
    """The share of permutations with a statistic at least as large as the observed one, which counts as one of them.

    The statistic is the largest Z over the views, of each permutation as well. So many views cost no error probability.

    Args:
        statistics: Z of every view for some permutations.
        observed: Z of every view for the identity, (v,).
        orders: The other permutations, (s,) each.
        limit: The drawing ends when so many permutations have reached the observed statistic. It is infinite where the
            permutations are not drawn at random.

    Returns:
        p, and the number of permutations that were compared.
    """
    largest = float(observed.max())
    drawn = 0
    reached = 0
    while batch := list(islice(orders, _BATCH_PERMUTATIONS)):
        for value in statistics(torch.stack(batch)).amax(dim=1).tolist():
            drawn += 1
            reached += value >= largest - _TIE_TOLERANCE
            if reached == limit:
                return reached / drawn, drawn + 1
    return (reached + 1) / (drawn + 1), drawn + 1


def permutations_for(level: float) -> int:
    """The number of permutations to draw for a level.

    Raises:
        ValueError: When the level is not in (0, 1).
    """
    if not 0 < level < 1:
        raise ValueError(f"expected a level in (0, 1), found {level}")
    return max(_MIN_PERMUTATIONS, ceil(10 / level) - 1)


def stop_after(level: float) -> int:
    """The number of permutations that end the drawing by reaching the observed statistic: then p is above the level."""
    return max(_MIN_REACHED, int(level * (permutations_for(level) + 1)) + 1)


def smallest_sure_p(m: int) -> float:
    """Compute the p that two clear groups of the best sizes are sure to reach.

    Args:
        m: The number of clients.

    Returns:
        The share of permutations of the clients that keep the two groups.
    """
    return (1 if m % 2 else 2) / comb(m, m // 2)  # two groups of one size may change places


def unusable_updates(updates: Array, views: Views) -> str:
    """Say why updates say nothing about their clients in one of the views.

    Args:
        updates: The updates, (m, p).
        views: The columns of each view, such as those of every layer.

    Returns:
        ``"updates_not_finite"``, ``"updates_are_zero"``, or empty where all updates can be compared.
    """
    lengths = norms(updates, views)
    if not bool(lengths.isfinite().all()):
        return "updates_not_finite"
    return "" if bool((lengths > STILL).all()) else "updates_are_zero"


def likeness(rows: Array, views: Views | None = None) -> torch.Tensor:
    """How similar rows are beyond what all have in common: the similarity that tests of clients should be given.

    The inner products of rows that are a common part and independent noise have the same mean for every pair of
    different rows, however unequal their noise. So `centred` inner products are 0 in the mean. Each row is then
    measured by its distance from the mean row, as cosines are by the norms, so that no client outweighs another.
    Cosines themselves fall with the noise of both clients, a pattern that a second half of the data confirms.

    Args:
        rows: The rows, (m, p), finite.
        views: The columns of each view, such as those of every layer, in one pass. They may overlap.

    Returns:
        (m, m) float64, exactly symmetric, the diagonal 0; all 0 where the rows differ by rounding only. With views
        (v, m, m).

    Raises:
        ValueError: When the rows are no matrix, or not finite, or a view names no column.
    """
    squared, inner = summed(rows, views, squares, _centred_products)
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


def agreement(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
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


def _view_name(names: Sequence[str] | None, view: int) -> str:
    """The name of a view, or its number where views have no names."""
    return str(view) if names is None else names[view]


def _random_p(
    statistics: Statistics, observed: torch.Tensor, size: int, generator: torch.Generator, level: float
) -> tuple[float, int]:
    """`permutation_p` of random permutations of so many clients or folds."""
    orders = (torch.randperm(size, generator=generator) for _ in range(permutations_for(level)))
    return permutation_p(statistics, observed, orders, stop_after(level))


def _reason_for_no_test(similarities: Sequence[Array], floor: float, level: float) -> str:
    """Why similarities cannot be tested, as a name; empty if they can."""
    if floor > level:
        return "level_out_of_reach"
    finite = all(bool(tensor(similarity).isfinite().all()) for similarity in similarities)
    return "" if finite else "similarities_not_finite"


def _clients_of(similarity: Array, folds: int) -> int:
    """The number of clients of similarities (v, f m, f m)."""
    shape = tuple(similarity.shape)
    if folds < 2 or len(shape) != 3 or not shape[0] or shape[1] != shape[2] or shape[1] % folds:
        raise ValueError(f"expected (v, f m, f m) of at least 2 folds, found {shape} and f = {folds}")
    return int(shape[1]) // folds


def _halved(similarity: torch.Tensor, way: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Patterns of norm 1 by some folds and by the others, from similarities (..., f, m, f, m)."""
    rest = tuple(fold for fold in range(similarity.shape[-4]) if fold not in way)
    halves = (similarity[..., some, :, :, :][..., some, :].mean(dim=(-4, -2)) for some in (list(way), list(rest)))
    one, other = (unit(centre(half)) for half in halves)
    return one, other


def _distance_weights(ones: torch.Tensor, others: torch.Tensor, folds: int) -> torch.Tensor:
    """The weight of each pair of updates in the squared distance of two groups of clients, (f m, f m)."""
    mine = ones.repeat(folds).double()
    theirs = others.repeat(folds).double()
    client = torch.arange(len(ones)).repeat(folds)
    weights = torch.zeros(len(client), len(client), dtype=torch.float64)
    for side in (mine, theirs):
        # The folds of a single client are compared with each other.
        alone = int(side.sum()) <= folds
        different = ~torch.eye(len(client), dtype=torch.bool) if alone else client[:, None] != client
        pairs = torch.outer(side, side) * different
        weights += pairs / pairs.sum()
    return weights - 2 * (torch.outer(mine, theirs) + torch.outer(theirs, mine)) / (2 * mine.sum() * theirs.sum())


def _share_as_far(pattern: torch.Tensor, members: torch.Tensor, folds: int, distance: float) -> float:
    """The share of members whose squared distance from their fellows is at least a given one."""
    ids = members.nonzero().flatten().tolist()
    if len(ids) < 2:
        return 0.0
    alone = [torch.arange(len(members)) == member for member in ids]
    reached = [float((_distance_weights(one, members & ~one, folds) * pattern).sum()) >= distance for one in alone]
    return sum(reached) / len(ids)
