"""Whom a run serves better than another run on the same clients, and which clients stand out in a run."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, floor
from typing import Literal, NamedTuple

from scipy.special import bdtr, bdtrc

from fedstrata.objective.metric_info import MetricInfo
from fedstrata.report.paired import PairedDifference

_CLEAR = 1.96
"""Standard errors beyond which a difference is clear: about one in twenty would be by chance alone."""

_OUTLIER_CHANCE = 0.05
"""The chance that some client seems clearly worse than the mean, if all have the mean."""


class Gain(NamedTuple):
    """Whom a run serves better than a reference, by client id.

    Attributes:
        better: Clients whose metric is clearly better.
        worse: Clients whose metric is clearly worse.
        unclear: Clients without a difference, or whose test samples are too few to tell.
    """

    better: list[int]
    worse: list[int]
    unclear: list[int]


def gain(
    own: Mapping[int, tuple[int, float]],
    other: Mapping[int, float],
    metric: MetricInfo,
    pairs: Mapping[int, PairedDifference],
) -> Gain:
    """Find the clients whose metric differs clearly from that of a reference, on the same test samples.

    Args:
        own: The number of test samples and the metric of each client.
        other: The metric of each client in the reference.
        metric: What it is.
        pairs: The comparisons sample by sample, of those clients of whom they are known.
    """
    found = Gain([], [], [])
    for client in sorted(own.keys() & other.keys()):
        getattr(found, compare(*own[client], other[client], metric, pairs.get(client))).append(client)
    return found


def compare(
    samples: int, value: float, other: float, metric: MetricInfo, pair: PairedDifference | None
) -> Literal["better", "worse", "unclear"]:
    """Return whether a value is clearly better or worse than another one on the same samples.

    Where the samples are not known one by one, the standard error is that of different ones, which is larger. Where
    nobody knows how much of a difference is chance, every difference that can be seen counts.

    Args:
        samples: The number of test samples.
        value: The metric of a client.
        other: The other value.
        metric: What it is.
        pair: The comparison of the two sample by sample; None where it is not known.
    """
    if pair is not None and metric.share_of_samples:
        if not pair.clear:
            return "unclear"
        return "better" if pair.by > 0 else "worse"
    error = metric.standard_error(samples, value, other)
    least = metric.smallest_gain(value, other) if error is None else _CLEAR * error
    if abs(value - other) <= least:
        return "unclear"
    return "better" if metric.gain(value, other) > 0 else "worse"


def stands_out(samples: int, value: float, mean: float, clients: int, metric: MetricInfo) -> bool:
    """Return whether a client is clearly worse than the mean of all: an exact binomial test, corrected by Bonferroni.

    If all clients had the mean, the worst of them would be this bad by chance in less than `_OUTLIER_CHANCE` of cases.

    Args:
        samples: The number of the client's test samples.
        value: Its metric, a share of these samples.
        mean: The mean of the metric over the clients.
        clients: The number of clients.
        metric: What it is. Where nobody knows how much of a difference is chance, no client stands out.
    """
    if not metric.share_of_samples or metric.gain(value, mean) >= 0 or not 0 <= mean <= 1:
        return False
    # By the special functions themselves: the distributions of SciPy take a hundred times as long for one value.
    if metric.larger_is_better:
        chance = bdtr(floor(value * samples + 1e-9), samples, mean)
    else:
        chance = bdtrc(ceil(value * samples - 1e-9) - 1, samples, mean)
    return bool(chance * clients < _OUTLIER_CHANCE)
