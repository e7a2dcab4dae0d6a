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

from fedstrata.algorithms.shared.own_updates import ZERO_NORM, compared_columns, own_clusters
from fedstrata.core import TRAIN, Layout, Report, evenly_spread
from fedstrata.lazy_torch import torch

_DECAY = 0.9
"""The weight of a round, relative to the next one: the last ten rounds or so count."""

_MIN_MEDIAN = 0.1
"""The least median cosine of a cluster at which its clients are compared. Below it directions are mostly noise."""

_MIN_REVERSED_SHARE = 0.8
"""A client is left out if minus its cosine is at least this share of the median."""

_MIN_SIDE_MEDIAN = 0.05
"""The least median cosine of the larger side at which the other one is compared with it."""

_MIN_SIDE = 3
"""The larger side has at least so many clients."""

_UNITED_MEDIAN = 0.25
"""A client can only turn round where the median of the means is at least this: where a cluster is of one mind.

In a cluster of honest clients that want different models the median has mostly fallen below it before they part.
"""

_MIN_FORWARD_SHARE = 0.75
"""A client can only turn round if it has gone with the others: if its mean is at least this share of the median."""

_TURNED_ROUNDS = 3
"""A client is left out after so many rounds in which it points backwards."""

_PROBATION_ROUNDS = 3
"""If it is doubted, it comes back after so many rounds in a row in which it points forwards.

Its mean has begun anew, and when a model has converged, flipped signs point forwards in many a round by chance.
"""

_AXIS_COLUMNS = 4096
"""The principal axis is that of so many of the columns at most, evenly spread: enough to tell two sides."""

_AXIS_STEPS = 20
"""The number of power iterations that find it."""

_GRAM_CLIENTS = 512
"""Up to so many clients the iterations are steps of their inner products, which are then the smaller matrix."""

_MIN_CLIENTS = 3
"""A cluster has a direction if at least so many of its clients answer."""

_MIN_LENGTH = 0.01
"""The least norm of a sum of updates of norm 1 that has a direction. A smaller one is mostly rounding."""


@dataclass(frozen=True)
class DirectionHistory:
    """How the updates of each client have pointed so far.

    Attributes:
        cosines: The weighted sum over rounds of the cosine of a client's update with the sum of those of the others in
            its cluster, all scaled to norm 1 and without those of clients that are left out, (n,).
        weights: The sum of these weights, (n,); 0 before the first upload.
        backward_rounds: In how many rounds a client that had gone with the others has pointed backwards since it last
            pointed forwards, int64 (n,).
        probation: In how many more rounds in a row a client that is left out and doubted has to point forwards until it
            counts again, int64 (n,).
        left_out: Whose updates are not in the mean of their cluster, bool (n,).
        doubted: Who was left out before its record began anew, as in a cluster of its own, or was split off because its
            updates did harm to itself, bool (n,). It is left out if it is reassigned. Whoever points forwards in a
            cluster of three or more, of whom somebody is not doubted, is doubted no more.
    """

    cosines: torch.Tensor
    weights: torch.Tensor
    backward_rounds: torch.Tensor
    probation: torch.Tensor
    left_out: torch.Tensor
    doubted: torch.Tensor

    @property
    def means(self) -> torch.Tensor:
        """The mean cosine of each client, (n,); 0 before its first upload."""
        return self.cosines / self.weights.clamp_min(1.0)

    @property
    def suspect(self) -> torch.Tensor:
        """Who is left out, or doubted, bool (n,)."""
        return self.left_out | self.doubted

    def forgetting(self, clients: torch.Tensor) -> DirectionHistory:
        """The same without what is known of some clients, bool (n,), but for whom to doubt."""
        return DirectionHistory(
            cosines=torch.where(clients, 0.0, self.cosines),
            weights=torch.where(clients, 0.0, self.weights),
            backward_rounds=torch.where(clients, 0, self.backward_rounds),
            probation=torch.where(clients, 0, self.probation),
            left_out=self.left_out & ~clients,
            doubted=self.doubted | (self.left_out & clients),
        )

    def doubting(self, clients: torch.Tensor) -> DirectionHistory:
        """The same where some clients, ids, are doubted."""
        return replace(self, doubted=self.doubted.index_fill(0, clients, True))

    def reassigned(self, clients: torch.Tensor) -> DirectionHistory:
        """The same where some clients, bool (n,), have gone over to other clusters.

        How a client pointed in the cluster of others says nothing about it among its own. But whoever was left out has
        to point forwards there for some rounds first. Two clients with flipped signs would else hide each other in a
        cluster of five.
        """
        fresh = self.forgetting(clients)
        waiting = clients & fresh.doubted
        probation = torch.where(waiting, _PROBATION_ROUNDS, fresh.probation)
        return replace(fresh, probation=probation, left_out=fresh.left_out | waiting)


@dataclass(frozen=True)
class _ClusterUpdates:
    """The updates of the members of one cluster that answered. They are not copied, as they may be large.

    Attributes:
        ids: The members, (m,) ascending.
        values: The compared columns of all updates of the round, (a, p).
        rows: The place of each member among them, (m,).
        norms: The norm of each member's update, (m,).
    """

    ids: torch.Tensor
    values: torch.Tensor
    rows: torch.Tensor
    norms: torch.Tensor

    def weighted_sum(self, weights: torch.Tensor) -> torch.Tensor:
        """The sum of the updates times their weights (m,), (p,)."""
        total = torch.zeros(self.values.shape[1])
        for row, weight in zip(self.rows.tolist(), weights.tolist(), strict=True):
            if weight:
                total.add_(self.values[row], alpha=weight)
        return total

    def products(self, vector: torch.Tensor) -> torch.Tensor:
        """The inner product of each update with a vector (p,), (m,)."""
        return torch.stack([torch.dot(self.values[row], vector) for row in self.rows.tolist()])

    def units(self, columns: torch.Tensor) -> torch.Tensor:
        """Some columns (c,) of the updates, which are scaled to norm 1, (m, c)."""
        return self.values[self.rows[:, None], columns] / self.norms[:, None]


def no_directions(clients: int) -> DirectionHistory:
    """What is known before the first round, of n clients."""
    return DirectionHistory(
        cosines=torch.zeros(clients),
        weights=torch.zeros(clients),
        backward_rounds=torch.zeros(clients, dtype=torch.int64),
        probation=torch.zeros(clients, dtype=torch.int64),
        left_out=torch.zeros(clients, dtype=torch.bool),
        doubted=torch.zeros(clients, dtype=torch.bool),
    )


def with_directions(
    known: DirectionHistory, layout: Layout, report: Report, labels: torch.Tensor, norms: torch.Tensor
) -> DirectionHistory:
    """What is known after a round.

    A client that is left out is so until its mean cosine is positive again, and after a turn also that of a round; or
    until its cluster has fewer than three members, or half of its members are left out. Convolutions and linear layers
    are compared, of the clients that have trained the model of their cluster.

    Args:
        known: What was known before.
        layout: The layout of the network.
        report: The report of the round.
        labels: The cluster of each client, (n,); -1 for a pending client, which is not compared.
        norms: The norms of the updates of the round, (m,).
    """
    updates = compared_columns(layout, report.results[TRAIN].updates)
    own = own_clusters(report, labels)
    after = known
    for cluster in own[own >= 0].unique().tolist():
        members = labels == cluster
        count = int(members.sum())
        if count < _MIN_CLIENTS or 2 * int(after.left_out[members].sum()) >= count:
            # They are a group by themselves now, and what its parent wanted says nothing about them.
            after = after.forgetting(members)
        answered = (own == cluster).nonzero().flatten()
        if len(answered) < _MIN_CLIENTS:
            continue
        # In the order of their ids, so that sums do not depend on the order of the report.
        rows = answered[updates.clients[answered].argsort()]
        lengths = norms[rows].clamp_min(ZERO_NORM)
        after = _after_round_of_cluster(after, _ClusterUpdates(updates.clients[rows], updates.values, rows, lengths))
    return after


def _after_round_of_cluster(known: DirectionHistory, updates: _ClusterUpdates) -> DirectionHistory:
    """What is known after the updates of the members of one cluster that answered."""
    backward_rounds = _backward_rounds(known, updates)
    left_out = known.left_out[updates.ids] | (backward_rounds >= _TURNED_ROUNDS)
    after, cosines, left_out = _by_average(known, updates, left_out)
    return _readmitting(after, updates.ids, backward_rounds, cosines, left_out)


def _by_average(
    known: DirectionHistory, updates: _ClusterUpdates, left_out: torch.Tensor
) -> tuple[DirectionHistory, torch.Tensor, torch.Tensor]:
    """Find the clients of one cluster whose mean cosine says that they keep pointing backwards.

    Args:
        known: What is known without this round.
        updates: Their updates.
        left_out: Who is left out for other reasons, bool (m,).

    Returns:
        What is known with the cosines of this round; these cosines, (m,); and who is left out, bool (m,).
    """
    while True:
        # Whoever is found takes its update out of the sum, and then others may be found.
        trusted = ~left_out
        cosines = _cosines_with_others(updates, trusted)
        after = _with_cosines(known, updates.ids, cosines)
        means = after.means[updates.ids]
        median = means[trusted].median()
        reversed_ = trusted & (median >= _MIN_MEDIAN) & (-means >= _MIN_REVERSED_SHARE * median)
        if not bool(reversed_.any()):
            return after, cosines, left_out
        left_out = left_out | reversed_


def _readmitting(
    known: DirectionHistory,
    ids: torch.Tensor,
    backward_rounds: torch.Tensor,
    cosines: torch.Tensor,
    left_out: torch.Tensor,
) -> DirectionHistory:
    """What is known when those clients of one cluster count again that point forwards, and have done so long enough.

    Args:
        known: What is known with the cosines of this round.
        ids: The clients.
        backward_rounds: In how many rounds each has pointed backwards, (m,).
        cosines: The cosines of this round, (m,).
        left_out: Who is left out in this round, bool (m,).
    """
    forwards = cosines > 0
    doubted = known.doubted[ids]
    waiting = left_out & doubted
    one_less = (known.probation[ids] - 1).clamp(min=0)
    probation = torch.where(waiting, torch.where(forwards, one_less, _PROBATION_ROUNDS), 0)
    backward_rounds = torch.where(waiting | (left_out & forwards), 0, backward_rounds)
    left_out = left_out & ((known.means[ids] <= 0) | (backward_rounds >= _TURNED_ROUNDS) | (probation > 0))
    # Those who turn together agree with each other, which clears none of them.
    cleared = forwards & ~left_out & ~doubted.all()
    return replace(
        known,
        backward_rounds=known.backward_rounds.index_put((ids,), backward_rounds),
        probation=known.probation.index_put((ids,), probation),
        left_out=known.left_out.index_put((ids,), left_out),
        doubted=known.doubted.index_put((ids,), doubted & ~cleared),
    )


def _backward_rounds(known: DirectionHistory, updates: _ClusterUpdates) -> torch.Tensor:
    """In how many rounds each client of one cluster has pointed backwards since it turned, with one more, int64 (m,).

    Args:
        known: What is known without this round.
        updates: Their updates.
    """
    ids = updates.ids
    before = known.backward_rounds[ids]
    trusted = ~known.left_out[ids]
    means = known.means[ids]
    united = means[trusted].median() >= _UNITED_MEDIAN
    may_turn = (before > 0) | (united & (means >= _MIN_FORWARD_SHARE * means[trusted].median()))
    if not bool(may_turn.any()):
        return before
    larger = _larger_side(updates, trusted)
    if int(larger.sum()) < _MIN_SIDE or not bool((before > 0).any() | (~larger & may_turn).any()):
        return before
    cosines = _cosines_with_others(updates, larger)
    median = cosines[larger].nanmedian()
    backwards = ~larger & may_turn & (median >= _MIN_SIDE_MEDIAN) & (-cosines >= _MIN_REVERSED_SHARE * median)
    return torch.where(cosines > 0, 0, before + backwards.long())


def _larger_side(updates: _ClusterUpdates, trusted: torch.Tensor) -> torch.Tensor:
    """Who is on the larger side of the first principal axis of the trusted updates, scaled to norm 1, bool (m,).

    The axis goes through zero: the updates are not centred. Nobody is there where both sides have as many clients.
    """
    compared = trusted & (updates.norms > ZERO_NORM)
    units = updates.units(evenly_spread(updates.values.shape[1], _AXIS_COLUMNS))
    along = _along_axis(torch.where(compared[:, None], units, 0.0))
    positive = along > 0
    negative = along < 0
    difference = int(positive.sum()) - int(negative.sum())
    if difference == 0:
        return torch.zeros_like(trusted)
    larger: torch.Tensor = positive if difference > 0 else negative
    return larger


def _along_axis(units: torch.Tensor) -> torch.Tensor:
    """The inner product of each row (m, c) with the first principal axis, up to one factor, (m,).

    The axis begins as the sum of the rows.
    """
    if len(units) > _GRAM_CLIENTS:
        axis = units.sum(dim=0)
        for _ in range(_AXIS_STEPS):
            axis = units.T @ (units @ axis)
            axis = axis / torch.linalg.vector_norm(axis).clamp_min(ZERO_NORM)
        return units @ axis
    gram = (units @ units.T).double()
    # No eigenvalue is above 1 then, and the largest is at least 1 / m: its power is a number.
    scaled = gram / gram.trace().clamp_min(ZERO_NORM)
    along: torch.Tensor = torch.linalg.matrix_power(scaled, _AXIS_STEPS) @ gram.sum(dim=1)
    return along


def _with_cosines(known: DirectionHistory, ids: torch.Tensor, cosines: torch.Tensor) -> DirectionHistory:
    """What is known with the cosines of one more round, (m,), of some clients; nan where there is none."""
    ids = ids[~cosines.isnan()]
    cosines = cosines[~cosines.isnan()]
    return replace(
        known,
        cosines=known.cosines.index_put((ids,), _DECAY * known.cosines[ids] + cosines),
        weights=known.weights.index_put((ids,), _DECAY * known.weights[ids] + 1.0),
    )


def _cosines_with_others(updates: _ClusterUpdates, trusted: torch.Tensor) -> torch.Tensor:
    """The cosine of each update with the sum of the trusted others, all scaled to norm 1.

    Args:
        updates: The updates of m clients.
        trusted: Which of them are in the sum, bool (m,).

    Returns:
        The cosines, (m,); nan where the update is zero, or the others cancel out.
    """
    moved = updates.norms > ZERO_NORM
    in_sum = (trusted & moved).float()
    total = updates.weighted_sum(in_sum / updates.norms)
    along = updates.products(total) / updates.norms
    # The inner product with the sum of the others, and the norm of this sum.
    others = along - in_sum
    length = (total.square().sum() - in_sum * (2 * along - 1)).clamp_min(0.0).sqrt()
    cosines = (others / length).clamp(-1.0, 1.0)
    return torch.where(moved & (length >= _MIN_LENGTH), cosines, torch.nan)
