"""Who may choose another cluster than its own in a round, who goes over to it, and which clusters are merged again.

A test that confirms groups says little about a single client near their border. Its training losses by the models of
the new clusters say more. So for some rounds after a split, members may be reassigned to another new cluster. Clients
that are new, or whose data seem to have changed, may choose among all clusters.

A test says nothing about two groups that were on different sides of an earlier split: nobody has compared them. If the
sides cut through a true group, it has two clusters. Their models serve each other's members nearly as well as their
own, and those of all other new clusters do not. Then the smaller cluster goes over to the larger one. The two groups of
one split stay apart, as a test has told them apart, and each does better with its own model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedstrata.algorithms.evidence.split_half import MIN_FOLD
from fedstrata.algorithms.strata.split_tests import clusters_due
from fedstrata.algorithms.strata.state import StrataState
from fedstrata.base.lazy_torch import torch
from fedstrata.core import TRAIN, Plan, Report, members_in_cohort
from fedstrata.core.server import history_of
from fedstrata.core.standard_round import padded_candidates

_MAX_SIBLINGS = 5
"""The number of other models that a client may choose at most: those of the new clusters next to its own."""

_MIN_TRUSTED = 3
"""The direction check needs so many clients. In a smaller cluster it never clears one that it suspects."""

_ALIKE_SHARE = 0.25
"""Two new clusters are alike if a member loses less by the model of the other one than this share of what it loses by
that of any third one."""

_AGREEING_SHARE = 0.75
"""The share of the members of each of the two of whom this must be so. The others may say anything."""

_MIN_ANSWERS = 3
"""At least so many members of each of the two must say it, or all where it has fewer."""

_QUORUM = 0.5
"""The share of the selected members of each of the two that must say whether it is so."""


def may_choose(state: StrataState) -> torch.Tensor:
    """Who of the clients in clusters may go over to another one in the next round, bool (n,)."""
    placed = state.labels >= 0
    return choosing_among_all(state) | (placed & _with_reassignment(state)[state.labels])


def _with_reassignment(state: StrataState) -> torch.Tensor:
    """The clusters whose members may still choose another cluster of their split, bool (k,)."""
    return torch.tensor([known.reassignment_rounds > 0 for known in state.clusters])


def _offered_to_others(state: StrataState) -> torch.Tensor:
    """The clusters that other clients may choose, bool (k,): all but those of one or two clients that are suspect.

    Clients with harmful updates that are split off make a model of their own. By chance it may serve an honest client a
    little better for a round. Three clients or more that agree are not suspected: they are a group with other data.
    """
    clusters = len(state.models)
    suspect = history_of(state).suspect
    if suspect is None:
        return torch.ones(clusters, dtype=torch.bool)
    members = state.labels[state.labels >= 0].bincount(minlength=clusters)
    suspects = state.labels[suspect & (state.labels >= 0)].bincount(minlength=clusters)
    offered: torch.Tensor = (members >= _MIN_TRUSTED) | (suspects == 0)
    return offered


def choosing_among_all(state: StrataState) -> torch.Tensor:
    """Who may choose among all clusters in the next round, bool (n,): newcomers, and whose data seem to have changed.

    Newcomers of one group find no model of theirs, and each takes some other. The model that most of them have taken
    becomes theirs in part, so that the others follow. Otherwise every cluster with a few of them would be tested and
    split. Nobody chooses in the round in which its cluster is tested. Nor do clients that are too small for any test,
    as they would be newcomers for ever.
    """
    tested = torch.isin(state.labels, torch.tensor(clusters_due(state), dtype=torch.int64))
    small = (state.sizes > 0) & (state.sizes < 2 * MIN_FOLD)
    free = state.newcomers & ~small
    drifted = history_of(state).drifted
    free = free if drifted is None else free | drifted
    return free & (state.labels >= 0) & ~tested


def add_other_candidates(plan: Plan, state: StrataState) -> Plan:
    """The plan in which members of open clusters, and newcomers, may also choose other models than their cluster's.

    For members of open clusters, these are the models of the other clusters of their split, and for newcomers all. No
    client but its members is offered the model of a suspect cluster, unless there is no other.
    """
    task = plan.tasks[TRAIN]
    clusters = state.labels[plan.cohort].tolist()
    free = choosing_among_all(state)[plan.cohort].tolist()
    models = _offered_to_others(state).nonzero().flatten().tolist()
    by_cluster = siblings(state)
    rows = list[list[int]]()
    for own, is_free, row in zip(clusters, free, task.candidates.tolist(), strict=True):
        if is_free:
            rows.append(sorted({own, *models}))
        elif own < 0:
            rows.append([model for model in row if model in models] or row)
        else:
            rows.append([own, *by_cluster[own]])
    return replace(plan, tasks={**plan.tasks, TRAIN: replace(task, candidates=padded_candidates(rows))})


def siblings(state: StrataState) -> list[list[int]]:
    """The other models that the members of each cluster may choose while it is open, k lists, each ascending.

    They are those of the nearest open clusters of the same split.
    """
    open_ = _with_reassignment(state)
    may_be_chosen = (open_ & _offered_to_others(state)).nonzero().flatten().tolist()
    parents = [state.tree[node].parent for node in state.nodes.tolist()]
    found = list[list[int]]()
    for own, parent in enumerate(parents):
        others = [each for each in may_be_chosen if each != own and parents[each] == parent] if open_[own] else []
        nearest = sorted((abs(each - own), each) for each in others)[:_MAX_SIBLINGS]
        found.append(sorted(each for _, each in nearest))
    return found


def reassigned_clients(state: StrataState, labels: torch.Tensor) -> torch.Tensor:
    """Who went over to another cluster, by the clusters of the clients now, (n,); bool (n,)."""
    return (state.labels >= 0) & (state.labels != labels)


def reassignment_events(
    state: StrataState, labels: torch.Tensor, reassigned: torch.Tensor
) -> tuple[dict[str, Any], ...]:
    """An event for every client that was reassigned.

    Args:
        state: The state before.
        labels: The cluster of each client now, (n,).
        reassigned: Who was reassigned, bool (n,).
    """
    return tuple(
        {
            "kind": "reassign",
            "client": client,
            "from": int(state.nodes[state.labels[client]]),
            "to": int(state.nodes[labels[client]]),
        }
        for client in reassigned.nonzero().flatten().tolist()
    )


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
