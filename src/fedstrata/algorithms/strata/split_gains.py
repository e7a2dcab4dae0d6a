"""What members of a cluster gain by a split, as far as it counts.

A member can claim any loss. So what one of them loses has a bound, and what a few lose against nearly all others has a
closer one.
"""

from __future__ import annotations

from math import inf, sqrt

from scipy.special import stdtr

from fedstrata.algorithms.strata.holdout import HoldoutComparison
from fedstrata.base.lazy_torch import torch

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
