"""Clients whose updates are much longer than those of their cluster: in round after round, or suddenly.

Whoever scales its update moves the model of its cluster as far as many others together. To reject an update for a
single round, its norm must be above ten times the median, as honest clients sometimes send that. So long updates are
shortened in each round (norm clipping). And honest clients do not send them in one round after the other. So the norm
of each client is compared with the median of its cluster, and the logarithm of this ratio is averaged over rounds. A
client with more samples than others makes more steps, so its norm may be larger too. The median falls when a model
converges for most of its clients, but not for all. So norms are never compared with less than a quarter of the largest
median so far.

A client whose data change has had ordinary norms before: its updates become longer at once, because the model of its
cluster does not fit its new data.

Clipping at a norm: Sun, Kairouz, Suresh, McMahan, "Can you really backdoor federated learning?", 2019. Modified
z-scores: Iglewicz and Hoaglin, "How to detect and handle outliers", ASQC 1993.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import log

from fedstrata.algorithms.shared.own_updates import ZERO_NORM, compared_columns, modified_z_scores
from fedstrata.core import TRAIN, Layout, Report, Result, Rows
from fedstrata.lazy_torch import torch

_DECAY = 0.9
"""The weight of a round, relative to the next one: the last ten rounds or so count."""

_PRIOR_ROUNDS = 1.5
"""The weight of a ratio of 1 that every client has before its first round, so that one round counts less than many.

The first updates of honest clients may be long where each has its own mix of classes.
"""

_LARGEST_RATIO = 2.5
"""The mean ratio above which a client is left out."""

_CLIPPING_RATIO = 2.0
"""The ratio to which the update of any client is shortened in the round in which it is sent."""

_LARGEST_SIZE_RATIO = 10.0
"""However many samples a client says that it has, its norm may be at most so many times larger for them."""

_LEAST_SHARE = 0.25
"""Norms are compared with at least this share of the largest median so far."""

_LARGEST_Z_SCORE = 3.5
"""The modified z-score that the mean must exceed as well: the cut that Iglewicz and Hoaglin recommend."""

_LARGEST_JUMP = 3.0
"""The data of a client have changed if its ratio is so many times its mean ratio before, in two rounds one after the
other."""

_JUMP_ROUNDS = 3
"""The least number of rounds before a jump."""

_MIN_CLIENTS = 3
"""Norms are compared if at least so many clients of a cluster answer."""


@dataclass(frozen=True)
class NormHistory:
    """How long the updates of each client have been so far, beside those of its cluster.

    Attributes:
        logs: The weighted sum over rounds of the logarithm of the ratio of a client's norm to the median, (n,).
        weights: The sum of these weights, (n,); 0 before the first upload.
        last: The logarithm in the last of these rounds, (n,); 0 before the first one.
        left_out: Whose updates of the last round are not in the mean of a cluster, bool (n,).
        drifted: Whose updates have become longer, and who has not chosen a cluster since, bool (n,).
        largest_median: The largest median norm of a cluster so far.
    """

    logs: torch.Tensor
    weights: torch.Tensor
    last: torch.Tensor
    left_out: torch.Tensor
    drifted: torch.Tensor
    largest_median: float = 0.0

    @property
    def means(self) -> torch.Tensor:
        """The mean logarithm of each client, (n,), drawn towards 0 where there are few rounds."""
        return self.logs / (self.weights + _PRIOR_ROUNDS)

    def forgetting(self, clients: torch.Tensor) -> NormHistory:
        """The same without what is known of some clients, bool (n,)."""
        return replace(
            self,
            logs=torch.where(clients, 0.0, self.logs),
            weights=torch.where(clients, 0.0, self.weights),
            last=torch.where(clients, 0.0, self.last),
            left_out=self.left_out & ~clients,
            drifted=self.drifted & ~clients,
        )

    def without_drift(self, clients: torch.Tensor) -> NormHistory:
        """The same when some clients have chosen a cluster, bool (n,)."""
        return replace(self, drifted=self.drifted & ~clients)


def no_norms(clients: int) -> NormHistory:
    """What is known before the first round, of n clients."""
    return NormHistory(
        logs=torch.zeros(clients),
        weights=torch.zeros(clients),
        last=torch.zeros(clients),
        left_out=torch.zeros(clients, dtype=torch.bool),
        drifted=torch.zeros(clients, dtype=torch.bool),
    )


def update_norms(layout: Layout, report: Report) -> torch.Tensor:
    """The norms of the updates by the normal training of a round, of convolutions and linear layers, (m,)."""
    return _norms_of(layout, report.results[TRAIN].updates)


def _norms_of(layout: Layout, updates: Rows) -> torch.Tensor:
    """The norms of updates of convolutions and linear layers, (m,); running statistics say nothing about a client."""
    norms: torch.Tensor = torch.linalg.vector_norm(compared_columns(layout, updates).values, dim=1)
    return norms


def with_norms(
    known: NormHistory, norms: torch.Tensor, report: Report, labels: torch.Tensor, newcomers: torch.Tensor
) -> NormHistory:
    """What is known after a round.

    The members are compared that have trained the model of their cluster. Newcomers are not: the model need not fit
    them yet.

    Args:
        known: What was known before.
        norms: The norms of the updates of the round, (m,).
        report: The report of the round.
        labels: The cluster of each client, (n,); -1 for a pending client, which is not compared.
        newcomers: Who is a newcomer, bool (n,).
    """
    result = report.results[TRAIN]
    ids = result.updates.clients
    here = labels[ids]
    own = (here >= 0) & (result.chosen == here) & ~newcomers[ids]
    # Whoever goes over to another cluster is not compared there yet, but known.
    leaving = (here >= 0) & (result.chosen != here) & ~newcomers[ids]
    left_out = torch.zeros_like(known.left_out)
    left_out[ids[leaving]] = known.means[ids[leaving]] > log(_LARGEST_RATIO)
    of_clusters = [own & (here == cluster) & (norms > ZERO_NORM) for cluster in here[own].unique().tolist()]
    compared = [rows for rows in of_clusters if int(rows.sum()) >= _MIN_CLIENTS]
    # All clusters of the round are compared with the same largest median.
    largest = max([known.largest_median, *(float(norms[rows].median()) for rows in compared)])
    after = replace(known, left_out=left_out, largest_median=largest)
    for rows in compared:
        after = _of_cluster(after, ids[rows], norms[rows], result.sizes[rows])
    return after


def _of_cluster(known: NormHistory, ids: torch.Tensor, norms: torch.Tensor, sizes: torch.Tensor) -> NormHistory:
    """What is known after the updates of the members of one cluster, by their norms and numbers of samples, (m,)."""
    logs = (norms / _compared_with(known, norms, sizes)).log()
    jumped = _jumped(known, ids, logs)
    after = replace(
        known,
        logs=known.logs.index_put((ids,), _DECAY * known.logs[ids] + logs),
        weights=known.weights.index_put((ids,), _DECAY * known.weights[ids] + 1.0),
        last=known.last.index_put((ids,), logs),
        left_out=known.left_out.index_put((ids,), _too_long(known, ids, logs)),
    )
    # What a client has sent before says nothing about its new data.
    forgotten = torch.zeros_like(known.drifted).index_put((ids,), jumped)
    return replace(after.forgetting(forgotten), left_out=after.left_out, drifted=after.drifted | forgotten)


def _compared_with(known: NormHistory, norms: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    """What the norm of each client of one cluster is compared with, (m,): the median, times what its size excuses."""
    median = float(norms.median())
    excused = (sizes / sizes.median().clamp(min=1)).clamp(min=1.0, max=_LARGEST_SIZE_RATIO)
    return max(median, _LEAST_SHARE * known.largest_median) * excused


def _too_long(known: NormHistory, ids: torch.Tensor, logs: torch.Tensor) -> torch.Tensor:
    """Whose mean is too large with the logarithms of one more round, bool (m,); nobody where it is half of them."""
    means = (_DECAY * known.logs[ids] + logs) / (_DECAY * known.weights[ids] + 1.0 + _PRIOR_ROUNDS)
    found = (means > log(_LARGEST_RATIO)) & (modified_z_scores(means) > _LARGEST_Z_SCORE)
    return found if 2 * int(found.sum()) < len(ids) else torch.zeros_like(found)


def _jumped(known: NormHistory, ids: torch.Tensor, logs: torch.Tensor) -> torch.Tensor:
    """Whose logarithms of this round and the last are both far above the mean of all earlier ones, bool (m,)."""
    last = known.last[ids]
    weights = (known.weights[ids] - 1.0) / _DECAY
    before = (known.logs[ids] - last) / _DECAY / weights.clamp(min=1.0)
    least = sum(_DECAY**round for round in range(_JUMP_ROUNDS))
    enough = weights > least - 1e-4  # float32 loses some digits
    high = logs.minimum(last)
    return enough & (high - before > log(_LARGEST_JUMP)) & (high > log(_LARGEST_JUMP))


def clip_long_updates(
    known: NormHistory, norms: torch.Tensor, report: Report, labels: torch.Tensor
) -> tuple[Report, torch.Tensor]:
    """The report in which no update by the normal training is much longer than others of its cluster.

    One round does not show whether a client scales its updates. Until some rounds have, its updates count, but none
    counts more than two.

    Args:
        known: What is known of the norms, with this round.
        norms: The norms of the updates of the round, (m,).
        report: The report of the round.
        labels: The cluster of each client, (n,); -1 for a pending client.

    Returns:
        The report, and whose updates were shortened, ids.
    """
    result = report.results[TRAIN]
    clients = result.updates.clients
    factors = torch.ones_like(norms)
    here = labels[clients]
    for cluster in here[here >= 0].unique().tolist():
        rows = (here == cluster) & (norms > ZERO_NORM)
        if int(rows.sum()) >= _MIN_CLIENTS:
            limits = _CLIPPING_RATIO * _compared_with(known, norms[rows], result.sizes[rows])
            factors[rows] = (limits / norms[rows]).clamp(max=1.0)
    long = factors < 1.0
    if not bool(long.any()):
        return report, clients[long]
    shorter = replace(result, updates=_scaled(result.updates, factors))
    return replace(report, results={**report.results, TRAIN: shorter}), clients[long]


def clipped_to_twice_median(layout: Layout, updates: Rows) -> Rows:
    """Updates of which none is longer than twice their median norm; fewer than three stay as they are.

    The norms are those of convolutions and linear layers.
    """
    norms = _norms_of(layout, updates)
    moved = norms > ZERO_NORM
    if int(moved.sum()) < _MIN_CLIENTS:
        return updates
    return _scaled(updates, (_CLIPPING_RATIO * norms[moved].median() / norms.clamp(min=ZERO_NORM)).clamp(max=1.0))


def _scaled(updates: Rows, factors: torch.Tensor) -> Rows:
    """Updates times a factor each, (m,)."""
    return replace(updates, values=updates.values * factors[:, None])


def clip_to_median_of_others(layout: Layout, report: Report, clients: torch.Tensor) -> Report:
    """The report in which no update of some clients, by other tasks than the normal training, is longer than others.

    So they take part in tests and comparisons of groups like anybody else.

    Args:
        layout: The layout of the network. The norms are those of convolutions and linear layers.
        report: The report.
        clients: Whose updates have the median norm of the others in their task at most, bool (n,).
    """
    if not bool(clients.any()):
        return report
    results: Mapping[str, Result] = {
        name: result if name == TRAIN else _clip_to_median_of_others(layout, result, clients[result.updates.clients])
        for name, result in report.results.items()
    }
    return replace(report, results=results)


def _clip_to_median_of_others(layout: Layout, result: Result, rows: torch.Tensor) -> Result:
    """A result in which some rows, bool (m,), have the median norm of the others at most."""
    norms = _norms_of(layout, result.updates)
    others = norms[~rows & (norms > ZERO_NORM)]
    if not len(others) or not bool(rows.any()):
        return result
    factors = torch.where(rows, others.median() / norms.clamp(min=ZERO_NORM), 1.0).clamp(max=1.0)
    return replace(result, updates=_scaled(result.updates, factors))
