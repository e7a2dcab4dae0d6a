"""The decision of a hold-out comparison: which groups of its tree get a cluster each.

A group is split under two conditions. A permutation test or an error-rate test has confirmed the split, and its
subgroups, split further where that helps, have the lower loss with models of their own. Of personal models, the loss
must be lower by a paired t-test over the members.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt

from scipy.stats import t as student_t

from fedstrata.algorithms.strata.holdout import HoldoutComparison
from fedstrata.clustering import error_rate_test
from fedstrata.core import Decision
from fedstrata.lazy_torch import torch

_PERSONAL_LEVEL = 0.025
"""The level of the t-test of the gains of personal models."""


@dataclass(frozen=True)
class ClusterSplit:
    """Which clients of a cluster get a cluster of their own.

    Attributes:
        clients: Who was compared, ids (m,).
        groups: The group of each, (m,); -1 for a client that is in no group inside its side, which was split.
        count: The number of groups; 1 if everyone stays together.
        decision: What decided.
    """

    clients: torch.Tensor
    groups: torch.Tensor
    count: int
    decision: Decision


@dataclass(frozen=True)
class _PrunedTree:
    """The tree below a group after pruning: all that is left of its splits.

    Attributes:
        losses: The loss of each client by the model of its leaf, (m,).
        leaves: The groups that are not split any more.
        p: The largest p of the error-rate tests that confirmed a split; 0 without any.
    """

    losses: torch.Tensor
    leaves: tuple[int, ...]
    p: float


def split_decision(comparison: HoldoutComparison, round: int, *, holdout_check: bool) -> ClusterSplit:
    """Decide by a comparison which groups get a cluster each.

    Args:
        comparison: One in which enough have answered.
        round: The round of the last answers.
        holdout_check: Whether a split must lower the loss.
    """
    groups = comparison.groups
    pruned = _prune(comparison, 0, holdout_check=holdout_check)
    labels = torch.full((len(comparison.clients),), -1)
    for label, leaf in enumerate(pruned.leaves):
        labels[groups.inside[leaf]] = label
    losses = pruned.losses
    p = pruned.p
    if len(pruned.leaves) == 1:
        # The decision tells what the first split would have gained.
        losses = _losses_if_split(comparison, 0, [comparison.losses[:, side] for side in groups.children(0)])
        p = pruned.p if groups.confirmed else _split_p(comparison, 0)
    gains = (comparison.losses[:, 0] - losses)[comparison.answered].double()
    decision = _to_decision(comparison, round, pruned.leaves, gains, p)
    return ClusterSplit(comparison.clients, labels, len(pruned.leaves), decision)


def _prune(comparison: HoldoutComparison, node: int, *, holdout_check: bool) -> _PrunedTree:
    """The tree below a group with only those splits that are confirmed and, with the check, lower the loss."""
    groups = comparison.groups
    answered = comparison.answered
    whole = _PrunedTree(comparison.losses[:, node], (node,), 0.0)
    subgroups = groups.children(node)
    if not subgroups or not all(bool((groups.inside[group] & answered).any()) for group in subgroups):
        return whole
    p = 0.0 if groups.is_confirmed(subgroups[0]) else _split_p(comparison, node)
    one, other = (_prune(comparison, group, holdout_check=holdout_check) for group in subgroups)
    losses = _losses_if_split(comparison, node, (one.losses, other.losses))
    here = groups.inside[node] & answered
    gains = (whole.losses - losses)[here].double()
    if p > comparison.level or (holdout_check and not _lowers_loss(comparison, gains)):
        return whole
    return _PrunedTree(losses, one.leaves + other.leaves, max(p, one.p, other.p))


def _lowers_loss(comparison: HoldoutComparison, gains: torch.Tensor) -> bool:
    """Whether a split lowers the loss of those who have answered, by their gains (m,).

    Personal models make up for groups that differ little, and then gains are chance. But each model of a group has
    fewer clients to learn from in all later rounds.
    """
    if comparison.of_personal_models:
        return _gain_p_value(gains) <= _PERSONAL_LEVEL
    return float(gains.sum()) > 0


def _gain_p_value(gains: torch.Tensor) -> float:
    """The p-value of the one-sided t-test of no gain, by the gain of each client, (m,); 1 for a single client."""
    if len(gains) < 2:
        return 1.0
    t = gains.mean() / (gains.std() / sqrt(len(gains)))
    return float(student_t.sf(float(t.nan_to_num(0.0, torch.inf, -torch.inf)), len(gains) - 1))


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
        values |= {"p_gain": _gain_p_value(gains), "level_gain": _PERSONAL_LEVEL}
    return replace(test, kind=kind if len(leaves) > 1 else f"{kind}_without_gain", values=values)
