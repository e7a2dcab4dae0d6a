"""The decision of a hold-out comparison: which groups of its tree get a cluster each.

A group is split under two conditions. A permutation test or an error-rate test has confirmed the split, and its
subgroups, split further where that helps, have the lower loss with models of their own. Of personal models, the loss
must be lower by a paired t-test over the members. Groups beyond class mixes need that alone.

A member can claim any loss. So what one of them loses has a bound, and what a few lose against nearly all others has a
closer one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf, sqrt

from scipy.special import stdtr

from fedstrata.algorithms.strata.holdout import HoldoutComparison
from fedstrata.base.lazy_torch import torch
from fedstrata.clustering import error_rate_test
from fedstrata.core import Decision

_MAX_LOSS_IN_MEDIANS = 3.0
"""What a member loses by a split counts up to so many times the median of what members of its subgroup gain or lose.

Without a bound, two of twenty could prevent every split. What a member gains has the same bound where personal models
are compared: a single large gain would make the t-test find none. Of groups' models it has none: to claim much splits
nothing, as a test must confirm the split too.
"""

_MAX_MINORITY_SHARE = 0.25
"""A subgroup of at most this share of the members cannot prevent a split by large losses, if nearly all others gain.

Clients that collude to do harm are such a subgroup: what they send serves nobody, and themselves least of all.
"""

_NEARLY_ALL = 0.8
"""Nearly all of the others gain if at least this share of them does."""

_MAX_MINORITY_LOSS_IN_MEDIANS = 2.0
"""What a member of such a small subgroup loses counts up to so many times the median of what the others gain. If these
gain alike, a quarter of the members then loses two thirds of what the others gain."""

_OTHERS_LEVEL = 0.05
"""The level of the t-test of what the others gain by groups' models, where the losses of some members do not count."""

_MIN_HARM_RATIO = 1.25
"""A subgroup harms itself if the split gives each of its members at least so many times the loss from before.

After the split, the models of a subgroup come from its own updates, and honest updates lower the loss of those who send
them. Clients that have gone with the others and turn round together raise their own. What they lose does not
count: else two of five could prevent that the others leave them.
"""

_MIN_HARM_NATS = 0.05
"""A subgroup harms itself only if each of its members loses at least so much, in nats: many times of hardly any loss is
still hardly any."""

_MIN_OTHERS = 3
"""A subgroup harms itself only beside at least so many others that have answered."""


def counted_gains(
    comparison: HoldoutComparison, node: int, losses: torch.Tensor, ignored: torch.Tensor
) -> torch.Tensor:
    """What the members of a group who have answered gain if it is split, (m',), as far as it counts.

    Args:
        comparison: The comparison.
        node: The group.
        losses: The loss of each client after the split, (m,).
        ignored: Whose losses by the split do not count, bool (m,). Of personal models they do.
    """
    groups = comparison.groups
    gains = (comparison.losses[:, node] - losses).double()
    sides = [groups.inside[subgroup] & comparison.answered for subgroup in groups.children(node)]
    bounded = gains
    for side in sides:
        if bool(side.any()):
            largest = _MAX_LOSS_IN_MEDIANS * float(gains[side].abs().quantile(0.5))
            most = largest if comparison.of_personal_models else None
            bounded = torch.where(side, gains.clamp(min=-largest, max=most), bounded)
    if not comparison.of_personal_models and all(bool(side.any()) for side in sides):
        small, large = sorted(sides, key=lambda side: int(side.sum()))
        bounded = torch.where(small, bounded.clamp(min=-_max_minority_loss(gains, small, large)), bounded)
        bounded = torch.where(ignored, bounded.clamp(min=0.0), bounded)
    return bounded[groups.inside[node] & comparison.answered]


def _max_minority_loss(gains: torch.Tensor, small: torch.Tensor, large: torch.Tensor) -> float:
    """What a member of the smaller side of a split may lose at most, as far as it counts.

    Args:
        gains: What each client gains by the split, (m,).
        small: Who is on the smaller side, bool (m,).
        large: Who is on the larger side, bool (m,).
    """
    is_small = int(small.sum()) <= _MAX_MINORITY_SHARE * int((small | large).sum())
    if not is_small or float((gains[large] > 0).double().mean()) < _NEARLY_ALL:
        return inf
    return _MAX_MINORITY_LOSS_IN_MEDIANS * float(gains[large].quantile(0.5))


def lowers_loss(comparison: HoldoutComparison, gains: torch.Tensor, counted: torch.Tensor) -> bool:
    """Whether a split lowers the loss of those who have answered.

    Personal models make up for groups that differ little, and then gains are chance. But each model of a group has
    fewer clients to learn from in all later rounds.

    Args:
        comparison: The comparison.
        gains: What each client gains, (m',).
        counted: Whose losses count, bool (m',). Where some do not, the others must gain beyond chance.
    """
    if comparison.of_personal_models:
        return gain_p_value(gains) <= comparison.gain_level
    if not bool(counted.all()) and gain_p_value(_of_equal_influence(gains[counted])) > _OTHERS_LEVEL:
        return False
    return float(gains.sum()) > 0


def _of_equal_influence(gains: torch.Tensor) -> torch.Tensor:
    """Gains of which none counts for more than the median one, up or down, (m,).

    The t-test of the others would else find nothing as soon as one of them claims a large loss or gain.
    """
    if not len(gains):
        return gains
    largest = float(gains.abs().quantile(0.5))
    return gains.clamp(min=-largest, max=largest)


def gain_p_value(gains: torch.Tensor) -> float:
    """The p-value of the one-sided t-test of no gain, by the gain of each client, (m,); 1 for a single client."""
    if len(gains) < 2:
        return 1.0
    t = gains.mean() / (gains.std() / sqrt(len(gains)))
    return float(stdtr(len(gains) - 1, -float(t.nan_to_num(0.0, torch.inf, -torch.inf))))


@dataclass(frozen=True)
class ClusterSplit:
    """Which clients of a cluster get a cluster of their own.

    Attributes:
        clients: Who was compared, ids (m,).
        groups: The group of each, (m,); -1 for a client that is in no group inside its side, which was split.
        count: The number of groups; 1 if everyone stays together.
        decision: What decided.
        doubted: Who is split off because its updates did harm to itself, ids.
        parents: The group in the comparison's tree whose split made each group, (count); none without such a tree. Two
            groups of the same one have been compared with each other.
    """

    clients: torch.Tensor
    groups: torch.Tensor
    count: int
    decision: Decision
    doubted: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    parents: tuple[int, ...] = ()


@dataclass(frozen=True)
class _PrunedTree:
    """The tree below a group after pruning: all that is left of its splits.

    Attributes:
        losses: The loss of each client by the model of its leaf, (m,).
        leaves: The groups that are not split any more.
        p: The largest p of the error-rate tests that confirmed a split; 0 without any.
        doubted: Who is on a side of a split whose updates did harm to itself, bool (m,).
    """

    losses: torch.Tensor
    leaves: tuple[int, ...]
    p: float
    doubted: torch.Tensor


def split_decision(
    comparison: HoldoutComparison,
    round: int,
    *,
    holdout_check: bool,
    left_out: torch.Tensor | None = None,
    harm_check: bool = False,
) -> ClusterSplit:
    """Decide by a comparison which groups get a cluster each.

    Args:
        comparison: One in which enough have answered.
        round: The round of the last answers.
        holdout_check: Whether a split must lower the loss.
        left_out: Whose updates are left out of the mean of the cluster, bool (n,); by default nobody's.
        harm_check: Whether a side whose updates do harm to itself cannot prevent a split.
    """
    groups = comparison.groups
    ignored = torch.zeros_like(comparison.answered) if left_out is None else left_out[comparison.clients]
    pruned = _prune(comparison, 0, ignored, holdout_check=holdout_check, harm_check=harm_check)
    labels = torch.full((len(comparison.clients),), -1)
    for label, leaf in enumerate(pruned.leaves):
        labels[groups.inside[leaf]] = label
    losses = pruned.losses
    p = pruned.p
    if len(pruned.leaves) == 1:
        # The decision tells what the first split would have gained.
        losses = _losses_if_split(comparison, 0, [comparison.losses[:, side] for side in groups.children(0)])
        p = pruned.p if groups.confirmed else _split_p(comparison, 0)
    gains = counted_gains(comparison, 0, losses, ignored | pruned.doubted)
    decision = _to_decision(comparison, round, pruned.leaves, gains, p)
    doubted = comparison.clients[pruned.doubted]
    parents = tuple(groups.parents[list(pruned.leaves)].tolist())
    return ClusterSplit(comparison.clients, labels, len(pruned.leaves), decision, doubted, parents)


def _prune(
    comparison: HoldoutComparison, node: int, ignored: torch.Tensor, *, holdout_check: bool, harm_check: bool
) -> _PrunedTree:
    """The tree below a group with only those splits that are confirmed and, with the check, lower the loss.

    What clients that are ignored lose does not count, bool (m,). The other arguments are those of `split_decision`.
    """
    groups = comparison.groups
    answered = comparison.answered
    whole = _PrunedTree(comparison.losses[:, node], (node,), 0.0, torch.zeros_like(answered))
    subgroups = groups.children(node)
    if not subgroups or not all(bool((groups.inside[group] & answered).any()) for group in subgroups):
        return whole
    p = 0.0 if groups.is_confirmed(subgroups[0]) else _split_p(comparison, node)
    one, other = (
        _prune(comparison, group, ignored, holdout_check=holdout_check, harm_check=harm_check) for group in subgroups
    )
    losses = _losses_if_split(comparison, node, (one.losses, other.losses))
    doubted = one.doubted | other.doubted
    if harm_check:
        doubted |= _harmful_side(comparison, node, losses)
    gains = counted_gains(comparison, node, losses, ignored | doubted)
    counted = ~(ignored | doubted)[groups.inside[node] & answered]
    if p > comparison.level or (holdout_check and not lowers_loss(comparison, gains, counted)):
        return whole
    return _PrunedTree(losses, one.leaves + other.leaves, max(p, one.p, other.p), doubted)


def _harmful_side(comparison: HoldoutComparison, node: int, losses: torch.Tensor) -> torch.Tensor:
    """Who is on the smaller side of a confirmed split, if its updates do harm to all its members, bool (m,).

    Personal models tell nothing about it, as members choose how much of the updates is in them.

    Args:
        comparison: The comparison.
        node: The group that is split.
        losses: The loss of each client after the split, (m,).
    """
    groups = comparison.groups
    answered = comparison.answered
    nobody = torch.zeros_like(answered)
    if comparison.of_personal_models or comparison.has_stand_ins or not groups.is_confirmed(groups.children(node)[0]):
        return nobody
    small, large = sorted((groups.inside[side] for side in groups.children(node)), key=lambda side: int(side.sum()))
    few = int((small & answered).sum())
    many = int((large & answered).sum())
    if few >= many or many < _MIN_OTHERS or int(small.sum()) == int(large.sum()):
        return nobody
    before = comparison.losses[:, node]
    harmed = (losses >= _MIN_HARM_RATIO * before) & (losses - before >= _MIN_HARM_NATS)
    return small if bool(harmed[small & answered].all()) else nobody


def _losses_if_split(comparison: HoldoutComparison, node: int, inside: Sequence[torch.Tensor]) -> torch.Tensor:
    """The loss of each client if a group is split, by the losses in each subgroup, (m,); the others keep theirs."""
    losses = comparison.losses[:, node]
    for group, own in zip(comparison.groups.children(node), inside, strict=True):
        losses = torch.where(comparison.groups.inside[group], own, losses)
    return losses


def _split_p(comparison: HoldoutComparison, node: int) -> float:
    """The p of the error-rate test of a group's subgroups, times the number of such tests (Bonferroni)."""
    groups = comparison.groups
    first, second = groups.children(node)
    sides = (groups.inside[first], groups.inside[second])
    return min(1.0, groups.unconfirmed * two_groups_p(comparison, first, second, *sides))


def two_groups_p(
    comparison: HoldoutComparison, first: int, second: int, one: torch.Tensor, other: torch.Tensor
) -> float:
    """The p of the error-rate test of two sets of clients, each with a model.

    Args:
        comparison: The comparison, in which all of these clients evaluate both models.
        first: The group whose model is that of the first clients.
        second: The group whose model is that of the others.
        one: The first clients, bool (m,).
        other: The others, bool (m,), none of whom is among the first.
    """
    errors = comparison.errors
    one = one & comparison.answered
    both = one | (other & comparison.answered)
    own = torch.where(one, errors[:, first], errors[:, second])
    away = torch.where(one, errors[:, second], errors[:, first])
    return error_rate_test(own[both], away[both], one[both], comparison.samples[both])


def _to_decision(
    comparison: HoldoutComparison, round: int, leaves: Sequence[int], gains: torch.Tensor, p: float
) -> Decision:
    """The decision after a comparison."""
    test = comparison.decision
    groups = comparison.groups
    values = dict(test.values)
    kind = test.kind
    if not groups.confirmed:
        values = {"p": p, "level": comparison.level, "round": float(round)}
        if p > comparison.level:
            return Decision(kind="p_above_level", values=values)
    elif not all(map(groups.is_confirmed, leaves)):
        values |= {"p_holdout": p, "level_holdout": comparison.level}
    values |= {"gain": float(gains.mean()), "groups": float(len(leaves))}
    if comparison.of_personal_models:
        values |= {"p_gain": gain_p_value(gains), "level_gain": comparison.gain_level}
    return replace(test, kind=kind if len(leaves) > 1 else f"{kind}_without_gain", values=values)
