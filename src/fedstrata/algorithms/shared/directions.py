"""Clients whose updates keep pointing against those of their cluster, such as updates with flipped signs.

Their norms are ordinary, so no limit of norms rejects them. The cosine of an update with the sum of the others tells
them, but in a single round it is noisy, and it falls as a model converges. So it is averaged over rounds. In honest
federations a cluster whose clients want different models has cosines around zero, because what they want cancels out.
A client with flipped signs has minus the cosine of an honest one.

That the cosine with a trusted direction exposes Byzantine clients: Cao, Fang, Liu, Gong, "FLTrust: Byzantine-robust
federated learning via trust bootstrapping", NDSS 2021. There the direction comes from data of the server. Here it comes
from the other clients, so more than half of them must be honest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedstrata.core import TRAIN, Layout, Report, Rows
from fedstrata.lazy_torch import torch

_DECAY = 0.9
"""The weight of a round, relative to the next one: the last ten rounds or so count."""

_MIN_MEDIAN = 0.1
"""The least median cosine of a cluster at which its clients are compared. Below it directions are mostly noise."""

_MIN_REVERSED_SHARE = 0.8
"""A client is left out if minus its cosine is at least this share of the median."""

_TINY = 1e-30
"""A smaller norm is that of an update of zeros."""

_MIN_CLIENTS = 3
"""A cluster has a direction if at least so many of its clients answer."""

_MIN_LENGTH = 0.01
"""The least norm of a sum of updates of norm 1 that has a direction. A smaller one is mostly rounding."""


@dataclass(frozen=True)
class Directions:
    """How the updates of each client have pointed so far.

    Attributes:
        cosines: The weighted sum over rounds of the cosine of a client's update with the sum of those of the others in
            its cluster, all scaled to norm 1 and without those of clients that are left out, (n,).
        weights: The sum of these weights, (n,); 0 before the first upload.
        left_out: Whose updates are not in the mean of their cluster, bool (n,).
    """

    cosines: torch.Tensor
    weights: torch.Tensor
    left_out: torch.Tensor

    @property
    def means(self) -> torch.Tensor:
        """The mean cosine of each client, (n,); 0 before its first upload."""
        return self.cosines / self.weights.clamp_min(1.0)

    def forgetting(self, clients: torch.Tensor) -> Directions:
        """The same without what is known of some clients, bool (n,)."""
        return Directions(
            cosines=torch.where(clients, 0.0, self.cosines),
            weights=torch.where(clients, 0.0, self.weights),
            left_out=self.left_out & ~clients,
        )


def no_directions(clients: int) -> Directions:
    """What is known before the first round, of n clients."""
    return Directions(torch.zeros(clients), torch.zeros(clients), torch.zeros(clients, dtype=torch.bool))


def with_directions(known: Directions, layout: Layout, report: Report, labels: torch.Tensor) -> Directions:
    """What is known after a round.

    A client that is left out is so until its mean cosine is positive again, or until its cluster has fewer than three
    members, or half of its members are left out. Convolutions and linear layers are compared, of the clients that have
    trained the model of their cluster.

    Args:
        known: What was known before.
        layout: The layout of the network.
        report: The report of the round.
        labels: The cluster of each client, (n,); -1 for a pending client, which is not compared.
    """
    result = report.results[TRAIN]
    own = torch.where(result.chosen == labels[result.updates.clients], result.chosen, -1)
    columns = layout.columns(layout.select("all"))
    after = known
    for cluster in own[own >= 0].unique().tolist():
        members = labels == cluster
        count = int(members.sum())
        if count < _MIN_CLIENTS or 2 * int(after.left_out[members].sum()) >= count:
            # They are a group by themselves now, and what its parent wanted says nothing about them.
            after = after.forgetting(members)
        answered = (own == cluster).nonzero().flatten()
        # In the order of their ids, so that sums do not depend on the order of the report.
        updates = result.updates.at(answered[result.updates.clients[answered].argsort()])
        after = _of_cluster(after, updates if len(columns) == layout.p else updates.only(columns))
    return after


def _of_cluster(known: Directions, updates: Rows) -> Directions:
    """What is known after the updates of the members of one cluster that answered."""
    ids = updates.clients
    if len(ids) < _MIN_CLIENTS:
        return known
    norms = torch.linalg.vector_norm(updates.values, dim=1).clamp_min(_TINY)
    left_out = known.left_out[ids]
    while True:
        # Whoever is found takes its update out of the sum, and then others may be found.
        trusted = ~left_out
        after = _with_cosines(known, ids, _cosines_with_others(updates.values, norms, trusted))
        means = after.means[ids]
        median = means[trusted].median()
        reversed_ = trusted & (median >= _MIN_MEDIAN) & (-means >= _MIN_REVERSED_SHARE * median)
        if not bool(reversed_.any()):
            return replace(after, left_out=after.left_out.index_put((ids,), left_out & (means <= 0)))
        left_out = left_out | reversed_


def _with_cosines(known: Directions, ids: torch.Tensor, cosines: torch.Tensor) -> Directions:
    """What is known with the cosines of one more round, (m,), of some clients; nan where there is none."""
    ids = ids[~cosines.isnan()]
    cosines = cosines[~cosines.isnan()]
    return replace(
        known,
        cosines=known.cosines.index_put((ids,), _DECAY * known.cosines[ids] + cosines),
        weights=known.weights.index_put((ids,), _DECAY * known.weights[ids] + 1.0),
    )


def _cosines_with_others(values: torch.Tensor, norms: torch.Tensor, trusted: torch.Tensor) -> torch.Tensor:
    """The cosine of each update with the sum of the trusted others, all scaled to norm 1.

    Args:
        values: The updates, (m, p).
        norms: Their norms, (m,).
        trusted: Which of them are in the sum, bool (m,).

    Returns:
        The cosines, (m,); nan where the update is zero, or the others cancel out.
    """
    moved = norms > _TINY
    in_sum = (trusted & moved).float()
    total = (in_sum / norms) @ values  # (p,)
    along = (values @ total) / norms
    # The inner product with the sum of the others, and the norm of this sum.
    others = along - in_sum
    length = (total.square().sum() - in_sum * (2 * along - 1)).clamp_min(0.0).sqrt()
    cosines = (others / length).clamp(-1.0, 1.0)
    return torch.where(moved & (length >= _MIN_LENGTH), cosines, torch.nan)
