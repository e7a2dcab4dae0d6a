"""Tests for few clients: more folds of their data than two, and folds change hands rather than whole halves.

The null is stronger than that of `confirm`: *all members are identical*, in distribution, in number of samples, and
in how well the model fits them. Then their updates of f disjoint folds, trained in parallel from one model, are
exchangeable, all f m of them; so dealing them out anew to the clients at random leaves the distribution of every
statistic as it was, and the share of deals that do as well as the true one is a valid p. There are very many deals,
so four clients can be told apart where their re-pairings could not.

What is counted is still between different clients: on f folds of each, halved in every way, Z of the mean
similarities (see `twins`), the mean over the ways. A client that is merely itself, in all of its folds, is no group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import comb, sqrt

from fedstrata.clustering.arrays import Array, square, tensor
from fedstrata.clustering.patterns import agreement, centre, contrast, likeness, propose, re_paired, unit
from fedstrata.clustering.twins import FEWEST, Confirmation, compare, drawings, enough, untested, unusable
from fedstrata.lazy_torch import torch


def fold_test(
    folds: Array, layers: Mapping[str, torch.Tensor], generator: torch.Generator, level: float
) -> Confirmation:
    """Whether few clients form groups; null: all are identical.

    Args:
        folds: updates, (f, m, p): by each of f >= 2 disjoint folds, of the same m clients.
        layers: what is looked at: names and columns.
        generator: torch's, of the CPU.
        level: p up to which a split is confirmed.

    Returns:
        The decision; none if an update is not finite, or is 0 in a layer.

    Raises:
        ValueError: when the folds are of another shape, or the level is none.
    """
    f, m = _shape(folds)
    reason = _unusable(folds, layers)
    return (
        untested(m, level, reason)
        if reason
        else confirm_folds(fold_likeness(folds, layers), f, generator, level, tuple(layers))
    )


def confirm_folds(
    alike: Array, f: int, generator: torch.Generator, level: float, names: Sequence[str] | None = None
) -> Confirmation:
    """`fold_test` on similarities, which may be means over rounds.

    Args:
        alike: similarities, (v, f m, f m), the first fold of all clients first; the diagonals are not read.
        f: folds of each client, at least 2.
        generator: torch's, of the CPU.
        level: p up to which a split is confirmed.
        names: of the views, (v,); their numbers without.

    Raises:
        ValueError: when the shape does not fit, a matrix is not symmetric, or the level is none.
    """
    m, planned = _members(alike, f), drawings(level)
    named = tuple(str(view) for view in range(len(alike))) if names is None else tuple(names)
    if m < FEWEST:
        return untested(m, level, f"{m} members, at least {FEWEST} are needed")
    # Clear are all deals that give each client updates of one group only, whichever of the two.
    sure = max(comb(m, m // 2) / comb(f * m, f * (m // 2)), 1 / (planned + 1))
    reason = _unfit(alike, sure, level)
    if reason:
        return untested(m, level, reason, sure)
    pairs = centre(torch.stack([torch.from_numpy(square(matrix)) for matrix in alike]))
    ways = [way for way in combinations(range(f), f // 2) if f % 2 or 0 in way]

    def heights(orders: torch.Tensor) -> torch.Tensor:
        dealt = pairs[:, orders[:, :, None], orders[:, None, :]].reshape(-1, len(orders), f, m, f, m)
        return torch.stack([agreement(*_halved(dealt, way)) for way in ways]).mean(dim=0).T  # (q, v)

    true = torch.arange(f * m)
    observed = heights(true[None])[0]
    if not bool(observed.abs().max() > 0):
        return untested(m, level, "similarities without a pattern", sure)
    view = int(observed.argmax())
    orders = (torch.randperm(f * m, generator=generator) for _ in range(planned))
    p, drawn = compare(lambda some: heights(some).amax(dim=1), float(observed.max()), orders, enough(level))
    means = tensor(alike)[view].double().reshape(f, m, f, m).mean(dim=(0, 2))
    sides = propose(means)
    values = dict(zip(named, observed.tolist(), strict=True))
    apart, z = contrast(means, sides), float(observed[view])
    return Confirmation(sides, named[view], z, apart, p, sure, level, drawn, values, "")


def newcomer_test(
    folds: Array,
    newcomers: torch.Tensor,
    layers: Mapping[str, torch.Tensor],
    generator: torch.Generator,
    level: float,
) -> Confirmation:
    """Whether newcomers differ from the members of a cluster; null: all are identical.

    Told apart is a group that is fixed beforehand, so a single client can be. But one that differs from the members
    only as they differ from each other is no reason for a cluster of its own: p is at least the share of members that
    stand as far from their fellows as the newcomers do from the members.

    Args:
        folds: updates, (f, m, p): by each of f >= 2 disjoint folds, of members and newcomers.
        newcomers: who is new, bool (m,); at least one is, and one is not.
        layers: what is looked at: names and columns.
        generator: torch's, of the CPU.
        level: p up to which a cluster of their own is confirmed.

    Returns:
        The decision, its proposal the newcomers; none if an update is not finite, or is 0 in a layer.

    Raises:
        ValueError: when the folds are of another shape, all or none are new, or the level is none.
    """
    f, m = _shape(folds)
    reason = _unusable(folds, layers)
    return (
        untested(m, level, reason)
        if reason
        else confirm_newcomers(fold_likeness(folds, layers), f, newcomers, generator, level, tuple(layers))
    )


def confirm_newcomers(
    alike: Array,
    f: int,
    newcomers: torch.Tensor,
    generator: torch.Generator,
    level: float,
    names: Sequence[str] | None = None,
) -> Confirmation:
    """`newcomer_test` on similarities, which may be means over rounds.

    The statistic is the squared distance of the means of two groups of updates, without bias because no update meets
    itself: mean similarity within the one, plus that within the other, minus twice that across; as a Z.

    Args:
        alike: similarities, (v, f m, f m), the first fold of all clients first; the diagonals are not read.
        f: folds of each client, at least 2.
        newcomers: who is new, bool (m,).
        generator: torch's, of the CPU.
        level: p up to which a cluster of their own is confirmed.
        names: of the views, (v,); their numbers without.

    Raises:
        ValueError: when the shape does not fit, all or none are new, a matrix is not symmetric, or the level is none.
    """
    m, planned = _members(alike, f), drawings(level)
    named = tuple(str(view) for view in range(len(alike))) if names is None else tuple(names)
    if tuple(newcomers.shape) != (m,) or not bool(newcomers.any()) or bool(newcomers.all()):
        raise ValueError(f"expected some of {m} clients to be new, found {newcomers.tolist()}")
    new = int(newcomers.sum())
    sure = max((2 if 2 * new == m else 1) / comb(f * m, f * new), 1 / (planned + 1))
    reason = _unfit(alike, sure, level)
    if reason:
        return untested(m, level, reason, sure)
    pairs = centre(torch.stack([torch.from_numpy(square(matrix)) for matrix in alike]))
    ones = unit(pairs)
    if not bool(ones.any()):
        return untested(m, level, "similarities without a pattern", sure)
    question: torch.Tensor = unit(centre(_apart(newcomers, ~newcomers, f))).expand_as(ones)
    slots = f * m

    def heights(orders: torch.Tensor) -> torch.Tensor:
        return re_paired(question, ones, orders) * sqrt(2 * slots * (slots - 3))

    observed = heights(torch.arange(slots)[None])[0]
    view = int(observed.argmax())
    orders = (torch.randperm(slots, generator=generator) for _ in range(planned))
    p, drawn = compare(lambda some: heights(some).amax(dim=1), float(observed.max()), orders, enough(level))
    far = _distance(pairs[view], newcomers, ~newcomers, f)
    members = (~newcomers).nonzero().flatten().tolist() if int((~newcomers).sum()) > 1 else []
    alone = [torch.arange(m) == member for member in members]
    as_far = sum(_distance(pairs[view], one, ~newcomers & ~one, f) >= far for one in alone) / max(len(members), 1)
    values = dict(zip(named, observed.tolist(), strict=True))
    p = max(p, as_far)
    return Confirmation(newcomers.clone(), named[view], float(observed[view]), far, p, sure, level, drawn, values, "")


def fold_likeness(folds: Array, layers: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """`likeness` of all updates (f, m, p) with all in every layer, (v, f m, f m), the first fold of all first."""
    return likeness(tensor(folds).flatten(0, 1), layers.values())


def _apart(ones: torch.Tensor, others: torch.Tensor, f: int) -> torch.Tensor:
    """What each pair of updates counts for the squared distance of two groups of clients, (f m, f m)."""
    mine, theirs = ones.repeat(f).double(), others.repeat(f).double()
    client = torch.arange(len(ones)).repeat(f)
    weights = torch.zeros(len(client), len(client), dtype=torch.float64)
    for side in (mine, theirs):
        # Of a lone client, its folds are compared with each other.
        different = client[:, None] != client if int(side.sum()) > f else ~torch.eye(len(client), dtype=torch.bool)
        pairs = torch.outer(side, side) * different
        weights += pairs / pairs.sum()
    return weights - 2 * (torch.outer(mine, theirs) + torch.outer(theirs, mine)) / (2 * mine.sum() * theirs.sum())


def _distance(pattern: torch.Tensor, ones: torch.Tensor, others: torch.Tensor, f: int) -> float:
    """Squared distance of two groups of clients by similarities (f m, f m)."""
    return float((_apart(ones, others, f) * pattern).sum())


def _halved(dealt: torch.Tensor, way: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Patterns of norm 1 by some folds and by the others, from similarities (..., f, m, f, m)."""
    rest = tuple(fold for fold in range(dealt.shape[-4]) if fold not in way)
    halves = (dealt[..., some, :, :, :][..., some, :].mean(dim=(-4, -2)) for some in (list(way), list(rest)))
    one, other = (unit(centre(half)) for half in halves)
    return one, other


def _unfit(alike: Array, sure: float, level: float) -> str:
    """Why similarities cannot be tested; empty if they can."""
    if sure > level:
        return f"so few updates reach p = {sure:.2g} at best, above the level {level:.2g}"
    return "" if bool(tensor(alike).isfinite().all()) else "similarities that are not finite"


def _members(alike: Array, f: int) -> int:
    """Clients of similarities (v, f m, f m)."""
    if f < 2 or alike.ndim != 3 or not len(alike) or alike.shape[1] != alike.shape[2] or alike.shape[1] % f:
        raise ValueError(f"expected (v, f m, f m) of at least 2 folds, found {tuple(alike.shape)} and f = {f}")
    return int(alike.shape[1]) // f


def _shape(folds: Array) -> tuple[int, int]:
    """Folds and clients of updates (f, m, p)."""
    if folds.ndim != 3 or folds.shape[0] < 2:
        raise ValueError(f"expected updates (f, m, p) by at least 2 folds, found {tuple(folds.shape)}")
    return int(folds.shape[0]), int(folds.shape[1])


def _unusable(folds: Array, layers: Mapping[str, torch.Tensor]) -> str:
    """Why the folds say nothing; empty if they do."""
    return unusable(tensor(folds).flatten(0, 1), layers.values())
