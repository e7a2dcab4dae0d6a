"""Clients whose updates keep pointing against those of their cluster, such as updates with flipped signs.

Their norms are ordinary, so no limit of norms rejects them. The cosine of an update with the sum of the others tells
them, but in a single round it is noisy, and it falls as a model converges. So it is averaged over rounds. In honest
federations a cluster whose clients want different models has cosines around zero, because what they want cancels out.
A client with flipped signs has minus the cosine of an honest one.

Clients may also turn round after they have long gone with the others, and together (slow poisoning). Their means are
positive for many more rounds, and in a cluster of five, two of them hide each other in the sum of the others. So in
each round the first principal axis of a cluster that is of one mind parts its updates into two sides, and the cosine
with the larger side is compared. Three rounds on the other side, about as far backwards as the larger side is forwards,
tell who has turned.

That the cosine with a trusted direction exposes Byzantine clients: Cao, Fang, Liu, Gong, "FLTrust: Byzantine-robust
federated learning via trust bootstrapping", NDSS 2021. There the direction comes from data of the server. Here it comes
from the other clients, so more than half of them must be honest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedstrata.base.lazy_torch import torch
from fedstrata.clustering.groups import Bools, Floats, Ints, groups_of
from fedstrata.core.row_products import products_of
from fedstrata.uploads.checks.compared_updates import (
    DECAY,
    ZERO_NORM,
    ClientHistory,
    ComparedUpdates,
    UpdatesOfClusters,
)

_MIN_MEMBERS = 5
"""The directions of a cluster are compared if at least so many of its clients answer.

In a smaller one the others point against any honest client that differs from them, as one hospital of four does.
"""

_MIN_MEDIAN = 0.1
"""The least median cosine of a cluster at which its clients are compared. Below it directions are mostly noise."""

_MIN_REVERSED_SHARE = 0.8
"""A client is left out if minus its cosine is at least this share of the median."""

_MIN_SIDE_MEDIAN = 0.05
"""The least median cosine of the larger side at which the other one is compared with it."""

_MIN_SIDE = 3
"""The sides of a cluster are compared if the larger one has at least so many clients."""

_UNITED_MEDIAN = 0.25
"""Clients that turn round are looked for where the median of the mean cosines is at least this: in a united cluster.

In a cluster of honest clients that want different models the median has mostly fallen below it before they part.
"""

_MIN_FORWARD_SHARE = 0.75
"""A client can only turn round if it has gone with the others: if its mean is at least this share of the median."""

_TURNED_ROUNDS = 3
"""A client is left out after so many rounds in which it points backwards."""

_MIN_LENGTH = 0.01
"""The least norm of a sum of updates of norm 1 that has a direction. A smaller one is mostly rounding."""


@dataclass(frozen=True)
class DirectionHistory(ClientHistory):
    """How the updates of each client have pointed so far.

    Attributes:
        cosines: The weighted sum over rounds of the cosine of a client's update with the sum of those of the others in
            its cluster, all scaled to norm 1 and without those of clients that are left out, (n,).
        weights: The sum of these weights, (n,); 0 before the first upload.
        backward_rounds: In how many rounds a client that had gone with the others has pointed backwards since it last
            pointed forwards, int64 (n,).
        left_out: Whose updates are not in the mean of their cluster, bool (n,).
    """

    cosines: torch.Tensor
    weights: torch.Tensor
    backward_rounds: torch.Tensor
    left_out: torch.Tensor


@dataclass(frozen=True)
class _ClientDirections:
    """What is known of some clients, as in `DirectionHistory`, (m,) each."""

    cosines: Floats
    weights: Floats
    backward_rounds: Ints
    left_out: Bools

    @property
    def means(self) -> Floats:
        """The mean cosine of each client, (m,); 0 before its first upload."""
        return self.cosines / np.maximum(self.weights, 1)


def no_directions(clients: int) -> DirectionHistory:
    """What is known before the first round, of n clients."""
    return DirectionHistory(
        cosines=torch.zeros(clients),
        weights=torch.zeros(clients),
        backward_rounds=torch.zeros(clients, dtype=torch.int64),
        left_out=torch.zeros(clients, dtype=torch.bool),
    )


def reassigned(known: DirectionHistory, clients: torch.Tensor) -> DirectionHistory:
    """What is known where some clients, bool (n,), have gone over to other clusters.

    How a client pointed in the cluster of others says nothing about it among its own. But whoever was left out has to
    point forwards there first.
    """
    return replace(known.without(clients), left_out=known.left_out)


def with_directions(known: DirectionHistory, updates: ComparedUpdates, labels: torch.Tensor) -> DirectionHistory:
    """What is known after a round.

    A client that is left out is so until its mean cosine is positive again, and after a turn also that of a round; or
    until its cluster has fewer than five members, or half of its members are left out.

    Args:
        known: What was known before.
        updates: The updates of the round. Those of clients that have trained the model of their cluster are compared.
        labels: The cluster of each client, (n,); -1 for a pending client, which is not compared.
    """
    answered = updates.clients
    known = _forget_small_clusters(known, labels.numpy(), answered[updates.own >= 0])
    # In the order of their ids, so that sums do not depend on the order of the report.
    order = answered.argsort()
    places, clusters = groups_of(updates.own[order], _MIN_MEMBERS)
    if not clusters.count:
        return known
    rows = order[places]
    ids = answered[rows]
    norms = np.maximum(updates.norms[rows], ZERO_NORM)
    products = products_of(updates.sent, updates.ranges)
    compared = UpdatesOfClusters(clusters, updates.values, rows, norms, products)
    members = _ClientDirections(**known.rows_of(ids))
    backward_rounds = _backward_rounds(members, compared)
    left_out = members.left_out | (backward_rounds >= _TURNED_ROUNDS)
    after, cosines = _by_average(members, compared, left_out)
    # A turn ends with a round that points forwards. Whoever is left out counts again when its mean is positive, too.
    backward_rounds = np.where(after.left_out & (cosines > 0), 0, backward_rounds)
    backwards = (after.means <= 0) | (backward_rounds >= _TURNED_ROUNDS)
    after = replace(after, backward_rounds=backward_rounds, left_out=after.left_out & backwards)
    return known.with_rows(ids, after)


def _forget_small_clusters(known: DirectionHistory, labels: Ints, answered: Ints) -> DirectionHistory:
    """What is known without the members of clusters that have fewer than five, or of which half are left out.

    Such members are a group by themselves, and what the cluster wanted that they come from says nothing about them.

    Args:
        known: What was known before.
        labels: The cluster of each client, (n,); -1 for a pending client.
        answered: Who has trained the model of its cluster, ids. Clusters of which nobody has stay as they are.
    """
    members, clusters = groups_of(labels, 1)
    left_out = known.left_out.numpy()
    small = clusters.sizes < _MIN_MEMBERS
    if not left_out.any() and not small.any():
        return known
    torn = 2 * clusters.counts(left_out[members]) >= clusters.sizes
    answers = np.zeros(len(labels), np.bool_)
    answers[answered] = True
    anew = (torn | small) & (clusters.counts(answers[members]) > 0)
    if not anew.any():
        return known
    forgotten = torch.zeros_like(known.left_out)
    forgotten.numpy()[members[anew[clusters.of]]] = True
    return known.without(forgotten)


def _by_average(
    known: _ClientDirections, updates: UpdatesOfClusters, left_out: Bools
) -> tuple[_ClientDirections, Floats]:
    """Find the clients whose mean cosine says that they keep pointing backwards.

    Args:
        known: What is known without this round.
        updates: Their updates.
        left_out: Who is left out for other reasons, (m,).

    Returns:
        What is known with the cosines of this round and with who is left out; and these cosines, (m,).
    """
    clusters = updates.clusters
    while True:
        # Whoever is found takes its update out of the sum, and then others may be found.
        trusted = ~left_out
        cosines = _cosines_with_others(updates, trusted)
        there = ~np.isnan(cosines)
        after = replace(
            known,
            cosines=np.where(there, DECAY * known.cosines + cosines, known.cosines),
            weights=np.where(there, DECAY * known.weights + 1, known.weights),
        )
        means = after.means
        median = clusters.medians(means, trusted)[clusters.of]
        reversed_ = trusted & (median >= _MIN_MEDIAN) & (-means >= _MIN_REVERSED_SHARE * median)
        if not reversed_.any():
            return replace(after, left_out=left_out), cosines
        left_out = left_out | reversed_


def _backward_rounds(known: _ClientDirections, updates: UpdatesOfClusters) -> Ints:
    """In how many rounds each client has pointed backwards since it turned, with one more, (m,).

    Args:
        known: What is known without this round.
        updates: Their updates.
    """
    clusters = updates.clusters
    before = known.backward_rounds
    trusted = ~known.left_out
    means = known.means
    median = clusters.medians(means, trusted)[clusters.of]
    may_turn = (before > 0) | ((median >= _UNITED_MEDIAN) & (means >= _MIN_FORWARD_SHARE * median))
    if not may_turn.any():
        return before
    larger = _larger_sides(updates, trusted)
    may_have_turned = (before > 0) | (~larger & may_turn)
    compared = (clusters.counts(larger) >= _MIN_SIDE) & (clusters.counts(may_have_turned) > 0)
    if not compared.any():
        return before
    cosines = _cosines_with_others(updates, larger)
    median = clusters.medians(cosines, larger)[clusters.of]
    backwards = ~larger & may_turn & (median >= _MIN_SIDE_MEDIAN) & (-cosines >= _MIN_REVERSED_SHARE * median)
    after = np.where(cosines > 0, 0, before + backwards)
    return np.where(compared[clusters.of], after, before)


def _larger_sides(updates: UpdatesOfClusters, trusted: Bools) -> Bools:
    """Who is on the larger side of the first principal axis of the trusted updates of its cluster, (m,).

    Nobody is there where both sides have as many clients.
    """
    clusters = updates.clusters
    along = updates.along_axes(trusted & updates.moved)
    positive = along > 0
    negative = along < 0
    difference = (clusters.counts(positive) - clusters.counts(negative))[clusters.of]
    return (positive & (difference > 0)) | (negative & (difference < 0))


def _cosines_with_others(updates: UpdatesOfClusters, trusted: Bools) -> Floats:
    """The cosine of each update with the sum of the trusted others of its cluster, all scaled to norm 1.

    Args:
        updates: The updates of m clients.
        trusted: Which of them are in the sum, (m,).

    Returns:
        The cosines, (m,); nan where the update is zero, or the others cancel out.
    """
    counted = trusted & updates.moved
    along, squares = updates.along_sums(counted)
    # The inner product with the sum of the others, and the norm of this sum.
    others = along - counted
    length = np.sqrt(np.maximum(squares - counted * (2 * along - 1), 0))
    known = updates.moved & (length >= _MIN_LENGTH)
    return np.where(known, others / np.where(known, length, 1), np.nan).clip(-1, 1)
