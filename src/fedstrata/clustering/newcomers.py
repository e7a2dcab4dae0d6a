"""A test of whether a group of clients that is known beforehand differs from the others."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import comb, sqrt

from fedstrata.base.lazy_torch import torch
from fedstrata.clustering.arrays import Array
from fedstrata.clustering.patterns import centre, clients_of_folds, patterns_of, permuted_products, unit
from fedstrata.clustering.permutations import (
    PermutationResult,
    not_tested,
    permutations_for,
    random_p,
    reason_for_no_test,
    view_name,
)


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
    m = clients_of_folds(similarity, folds)
    planned = permutations_for(level)
    if tuple(newcomers.shape) != (m,) or not bool(newcomers.any()) or bool(newcomers.all()):
        raise ValueError(f"expected some of {m} clients to be new, found {newcomers.tolist()}")
    new = int(newcomers.sum())
    floor = max((2 if 2 * new == m else 1) / comb(folds * m, folds * new), 1 / (planned + 1))
    reason = reason_for_no_test((similarity,), floor, level)
    if reason:
        return not_tested(m, level, reason, floor)
    pairs = patterns_of(similarity)
    if not bool(unit(pairs).any()):
        return not_tested(m, level, "no_pattern", floor)
    weights = _distance_weights(newcomers, ~newcomers, folds)
    statistics = partial(_squared_distances, weights, unit(pairs))
    observed = statistics(torch.arange(folds * m)[None])[0]
    p, drawn = random_p(statistics, observed, folds * m, generator, level)
    view = int(observed.argmax())
    distance = float((weights * pairs[view]).sum())
    return PermutationResult(
        proposal=newcomers.clone(),
        floor=floor,
        level=level,
        layer=view_name(names, view),
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
