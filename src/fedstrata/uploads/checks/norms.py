"""Clients whose updates are much longer than those of their cluster, in round after round.

Whoever scales its update moves the model of its cluster as far as many others together. To reject an update for a
single round, its norm must be above ten times the median, as honest clients sometimes send that. So long updates are
shortened in each round (norm clipping). And honest clients do not send them in one round after the other. So the norm
of each client is compared with the median of its cluster, and the logarithm of this ratio is averaged over rounds. A
client with more samples than others makes more steps, so its norm may be larger too. The median falls when a model
converges for most of its clients, but not for all. So norms are never compared with less than a quarter of the largest
median so far.

Clipping at a norm: Sun, Kairouz, Suresh, McMahan, "Can you really backdoor federated learning?", 2019. Modified
z-scores: Iglewicz and Hoaglin, "How to detect and handle outliers", ASQC 1993.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log

import numpy as np

from fedstrata.base.lazy_torch import torch
from fedstrata.clustering.groups import Bools, Floats, GroupIndex, Ints, groups_of
from fedstrata.core import TRAIN, Report, Rows
from fedstrata.uploads.checks.compared_updates import DECAY, MIN_CLIENTS, ZERO_NORM, ClientHistory, ComparedUpdates

_PRIOR_ROUNDS = 1.5
"""The weight of a ratio of 1 that every client has before its first round, so that one round counts less than many.

The first updates of honest clients may be long where each has its own mix of classes.
"""

_LARGEST_RATIO = 2.5
"""The mean ratio above which a client is left out."""

_CLIPPING_RATIO = 2.0
"""The ratio to which the update of any client is shortened in the round in which it is sent."""

_FAR_RATIO = 3.0
"""The ratio above which an update counts for less than others, as in a redescending M-estimator (Hampel, 1974).

Single updates of honest clients reach it (`honest_norms.py`), so it is no reason to leave one out. A client
that scales its update has it at once, but is left out after some rounds only, and a backdoor that the shared model has
learnt by then is hardly unlearnt.
"""

_FAR_CLIPPING_RATIO = 0.5
"""The ratio to which such an update is shortened."""

_LARGEST_SIZE_RATIO = 10.0
"""However many samples a client says that it has, its norm may be at most so many times larger for them."""

_LEAST_SHARE = 0.25
"""Norms are compared with at least this share of the largest median so far."""

_LARGEST_Z_SCORE = 3.5
"""The modified z-score that the mean must exceed as well: the cut that Iglewicz and Hoaglin recommend."""


@dataclass(frozen=True)
class NormHistory(ClientHistory):
    """How long the updates of each client have been so far, beside those of its cluster.

    Attributes:
        logs: The weighted sum over rounds of the logarithm of the ratio of a client's norm to the median, (n,).
        weights: The sum of these weights, (n,); 0 before the first upload.
        left_out: Whose updates of the last round are not in the mean of a cluster, bool (n,).
        largest_median: The largest median norm of a cluster so far.
    """

    logs: torch.Tensor
    weights: torch.Tensor
    left_out: torch.Tensor
    largest_median: float = 0.0


@dataclass(frozen=True)
class _ClientNorms:
    """What is known of some clients, as in `NormHistory`, (m,) each."""

    logs: Floats
    weights: Floats
    left_out: Bools

    @property
    def means(self) -> Floats:
        """The mean logarithm of each client, as in `mean_logs`, (m,)."""
        return self.logs / (self.weights + _PRIOR_ROUNDS)


def no_norms(clients: int) -> NormHistory:
    """What is known before the first round, of n clients."""
    return NormHistory(
        logs=torch.zeros(clients),
        weights=torch.zeros(clients),
        left_out=torch.zeros(clients, dtype=torch.bool),
    )


def mean_logs(known: NormHistory) -> torch.Tensor:
    """The mean logarithm of each client, (n,), drawn towards 0 where there are few rounds."""
    return known.logs / (known.weights + _PRIOR_ROUNDS)


def with_norms(known: NormHistory, updates: ComparedUpdates, labels: torch.Tensor) -> NormHistory:
    """What is known after a round.

    The members are compared that have trained the model of their cluster.

    Args:
        known: What was known before.
        updates: The updates of the round, (m, q).
        labels: The cluster of each client, (n,); -1 for a pending client, which is not compared.
    """
    # Whoever goes over to another cluster is not compared there yet, but known.
    leaving = (labels.numpy()[updates.clients] >= 0) & (updates.own < 0)
    left_out = torch.zeros_like(known.left_out)
    if leaving.any():
        gone = torch.from_numpy(updates.clients[leaving])
        left_out[gone] = mean_logs(known)[gone] > log(_LARGEST_RATIO)
    rows, groups = groups_of(np.where(updates.norms > ZERO_NORM, updates.own, -1), MIN_CLIENTS)
    if not groups.count:
        return replace(known, left_out=left_out)
    norms = updates.norms[rows]
    medians = groups.medians(norms)
    # All clusters of the round are compared with the same largest median.
    known = replace(known, left_out=left_out, largest_median=max(known.largest_median, float(medians.max())))
    logs = np.log(_ratios(norms, _compared_with(known, groups, medians, updates.sizes[rows])))
    ids = updates.clients[rows]
    before = _ClientNorms(**known.rows_of(ids))
    after = _ClientNorms(
        logs=DECAY * before.logs + logs,
        weights=DECAY * before.weights + 1,
        left_out=before.left_out,
    )
    return known.with_rows(ids, replace(after, left_out=_too_long(after.means, groups)))


def _compared_with(known: NormHistory, groups: GroupIndex, medians: Floats, sizes: Ints) -> Floats:
    """What the norm of each client is compared with: the median of its cluster, times what its size excuses.

    Args:
        known: What is known of the norms.
        groups: The cluster of each client.
        medians: The median norm of each cluster, (g,).
        sizes: The samples of each client, (m,).

    Returns:
        A norm for each client, (m,).
    """
    raised = np.maximum(medians, _LEAST_SHARE * known.largest_median)
    samples = sizes.astype(np.float32)
    excused = samples / np.maximum(groups.medians(samples), 1)[groups.of]
    found: Floats = raised[groups.of] * excused.clip(1, _LARGEST_SIZE_RATIO)
    return found


def _ratios(norms: Floats, others: Floats) -> Floats:
    """How many times each norm is as large as another one, (m,); infinity where that is no float32 number."""
    with np.errstate(over="ignore"):
        return norms / others


def _too_long(means: Floats, groups: GroupIndex) -> Bools:
    """Whose mean logarithm is too large, (m,); nobody where it is half of a cluster."""
    return groups.without_halves((means > log(_LARGEST_RATIO)) & (groups.modified_z_scores(means) > _LARGEST_Z_SCORE))


def clip_long_updates(
    known: NormHistory, updates: ComparedUpdates, report: Report, labels: torch.Tensor
) -> tuple[Report, Bools]:
    """The report in which no update by the normal training is much longer than others of its cluster.

    One round does not show whether a client scales its updates. Until some rounds have, its updates count, but none
    counts more than two, and one that is far too long counts half.

    Args:
        known: What is known of the norms, with this round.
        updates: The updates of the round, (m, q).
        report: The report of the round.
        labels: The cluster of each client, (n,); -1 for a pending client.

    Returns:
        The report, and which updates were shortened, (m,).
    """
    norms = updates.norms
    factors = np.ones(len(norms), np.float32)
    if norms.max(initial=0) > _CLIPPING_RATIO * norms.min(initial=np.inf):
        here = labels.numpy()[updates.clients]
        rows, groups = groups_of(np.where(norms > ZERO_NORM, here, -1), MIN_CLIENTS)
        lengths = norms[rows]
        ordinary = _compared_with(known, groups, groups.medians(lengths), updates.sizes[rows])
        limits = ordinary * np.where(lengths > _FAR_RATIO * ordinary, _FAR_CLIPPING_RATIO, _CLIPPING_RATIO)
        factors[rows] = np.minimum(_ratios(limits, lengths), 1)
    long = factors < 1
    if not long.any():
        return report, long
    result = report.results[TRAIN]
    values = result.updates.values * torch.from_numpy(factors)[:, None]
    shorter = replace(result, updates=Rows(result.updates.clients, values))
    return replace(report, results={**report.results, TRAIN: shorter}), long
