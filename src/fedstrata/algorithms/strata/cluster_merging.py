"""New clusters that cut through one true group, and are merged again.

A test says nothing about two groups that were on different sides of an earlier split: nobody has compared them. If the
sides cut through a true group, it has two clusters. Their models serve each other's members nearly as well as their
own, and those of all other new clusters do not. Then the smaller cluster goes over to the larger one. The two groups of
one split stay apart, as a test has told them apart, and each does better with its own model.
"""

from __future__ import annotations

from fedstrata.algorithms.strata.reassignment import choosing_among_all, siblings
from fedstrata.algorithms.strata.state import StrataState
from fedstrata.base.lazy_torch import torch
from fedstrata.core import TRAIN, Report, members_in_cohort

_ALIKE_SHARE = 0.25
"""Two new clusters are alike if a member loses less by the model of the other one than this share of what it loses by
that of any third one."""

_AGREEING_SHARE = 0.75
"""The share of the members of each of the two of whom this must be so. The others may say anything."""

_MIN_ANSWERS = 3
"""At least so many members of each of the two must say it, or all where it has fewer."""

_QUORUM = 0.5
"""The share of the selected members of each of the two that must say whether it is so."""


def merge_alike_clusters(state: StrataState, report: Report, labels: torch.Tensor) -> torch.Tensor:
    """Merge new clusters whose models suit each other's members, the smaller into the larger. Return the labels, (n,).

    Args:
        state: The state before the round.
        report: Its result of the task `TRAIN` has the losses of members by the models of the new clusters.
        labels: What the clients chose, (n,). Only those who stay in their cluster say whether it is like another one.
    """
    alike = _alike_clusters(state, report, labels)
    sizes = labels[labels >= 0].bincount(minlength=len(state.models)).tolist()
    labels = labels.clone()
    merged = set[int]()
    for pair in sorted(pair for pair in alike if pair == tuple(sorted(pair)) and pair[::-1] in alike):
        if not merged & set(pair):
            small, large = sorted(pair, key=lambda cluster: (sizes[cluster], -cluster))
            labels[labels == small] = large
            merged |= set(pair)
    return labels


def _alike_clusters(state: StrataState, report: Report, labels: torch.Tensor) -> set[tuple[int, int]]:
    """The pairs of open clusters of which the second one has a model that suits most members of the first."""
    return {
        pair
        for pair, votes in _votes(state, report, labels).items()
        if not _were_compared(state, *pair)
        and len(votes) >= _needed_votes(state, report, pair[0])
        and sum(votes) >= _AGREEING_SHARE * len(votes)
    }


def _votes(state: StrataState, report: Report, labels: torch.Tensor) -> dict[tuple[int, int], list[bool]]:
    """Whether the model of a second open cluster suits each member of a first one, by the pair of them."""
    result = report.results[TRAIN]
    chooses_freely = choosing_among_all(state)
    by_cluster = siblings(state)
    votes = dict[tuple[int, int], list[bool]]()
    for client, losses in zip(result.updates.clients.tolist(), result.losses.tolist(), strict=True):
        own = int(state.labels[client])
        stays = own >= 0 and own == int(labels[client]) and not chooses_freely[client]
        others = by_cluster[own] if stays else []
        if len(others) < 2:
            continue
        own_loss, *other_losses = losses[: 1 + len(others)]
        excess = {other: loss - own_loss for other, loss in zip(others, other_losses, strict=True)}
        for other in others:
            third = min(value for each, value in excess.items() if each != other)
            votes.setdefault((own, other), []).append(excess[other] < _ALIKE_SHARE * third)
    return votes


def _were_compared(state: StrataState, one: int, other: int) -> bool:
    """Whether two open clusters of one split are the two groups of one split in the comparison's tree."""
    parents = (state.clusters[one].group_parent, state.clusters[other].group_parent)
    return parents[0] == parents[1] >= 0


def _needed_votes(state: StrataState, report: Report, cluster: int) -> float:
    """How many members of a cluster must say whether another one is like it."""
    members = state.labels == cluster
    selected = int(members_in_cohort(report, members).sum())
    return max(_QUORUM * selected, min(_MIN_ANSWERS, int(members.sum())))
