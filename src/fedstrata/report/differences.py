"""How much better one model or method is than another, and whether that is more than chance.

There are two questions. `of_samples` and `of_clients` compare *models* on the test samples that both have seen: would
other samples of the same clients say the same? `over_seeds` compares *methods* by runs with several seeds: would other
splits and starts say the same? `corrected` allows for the number of comparisons that are shown together. All intervals
are of 95 %, all tests two-sided.

Sources: McNemar, "Note on the sampling error of the difference between correlated proportions or percentages",
Psychometrika 1947, in its exact form; Bonett and Price, "Adjusted Wald confidence interval for a difference of binomial
proportions based on paired data", Journal of Educational and Behavioral Statistics 2012; DeLong, DeLong and
Clarke-Pearson, "Comparing the areas under two or more correlated receiver operating characteristic curves", Biometrics
1988, with units as in Obuchowski, Biometrics 1997; Nadeau and Bengio, "Inference for the generalization error", Machine
Learning 2003; Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 1979.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Literal

import numpy as np
from numpy import float64, int64
from numpy.typing import NDArray
from scipy.special import bdtr, ndtr, stdtr, stdtrit

from fedstrata.objective.metric_info import METRIC_INFOS, MetricInfo
from fedstrata.records.schema import Predictions

FEW = 5
"""Test samples of a class. Fewer say little, and nothing about how sure that is."""

LEVEL = 0.05
"""A difference is more than chance where its corrected p-value is below."""

DECIMALS = 12
"""The decimals of a difference. Those after them are errors of rounding, by which equal results would differ."""

_NORMAL = 1e9
"""Degrees of freedom with which Student's distribution is the normal one."""


@dataclass(frozen=True)
class Effect:
    """How much better one value of a metric is than another one.

    Attributes:
        by: The difference; negative where it is worse.
        low: The lower end of its 95 % interval.
        high: The upper end.
        p: The p-value of no difference, not corrected for other comparisons.
    """

    by: float
    low: float
    high: float
    p: float


def sample_gains(own: Predictions, other: Predictions, metric: MetricInfo) -> NDArray[float64] | None:
    """Return how much each test sample says for the first of two models of a client.

    Args:
        own: What the first model predicts for the client's samples.
        other: What the second one predicts for the same samples.
        metric: The metric of both.

    Returns:
        Numbers, (s,), whose mean is by how much the metric of the first model is better, and whose variance is that of
        the difference. None where the two have other samples, where the metric is no such mean, as one of the user's
        own, and where it rests on fewer than `FEW` samples of a class.
    """
    gains_by = _GAINS.get(replace(metric, known_from=None))
    if gains_by is None or not len(own.sample) or not np.array_equal(own.sample, other.sample):
        return None
    if np.isnan(own.truth).any():
        return None
    with np.errstate(all="ignore"):
        gains = gains_by(own, other)
    return gains if bool(np.isfinite(gains).all()) else None


def _accuracy(own: Predictions, other: Predictions) -> NDArray[float64]:
    gains: NDArray[float64] = own.right.astype(float64) - other.right
    return gains


def _balanced_accuracy(own: Predictions, other: Predictions) -> NDArray[float64]:
    """A class counts as much as another one, however many samples it has."""
    gains = _accuracy(own, other)
    _, place, counts = np.unique(own.truth, return_inverse=True, return_counts=True)
    recalls = np.bincount(place, weights=gains) / counts
    scaled = (gains - recalls[place]) * len(gains) / (len(counts) * counts[place])
    centred: NDArray[float64] = recalls.mean() + scaled
    return centred


def _roc_auc(own: Predictions, other: Predictions) -> NDArray[float64]:
    return _placements(own) - _placements(other)


def _placements(of: Predictions) -> NDArray[float64]:
    """Return the share of samples of the other class that each sample is ranked rightly with (DeLong et al. 1988).

    They are weighted so that their mean is the area, and so that both classes have their part of its variance.
    """
    second = of.truth > 0
    if min(second.sum(), (~second).sum()) < FEW:
        # The variance of so few placements says nothing.
        return np.full(len(second), np.nan)
    placements = np.empty(len(second))
    for one, rest, sign in ((second, ~second, 1.0), (~second, second, -1.0)):
        scores, others = sign * of.score[one], np.sort(sign * of.score[rest])
        below = (np.searchsorted(others, scores, "left") + np.searchsorted(others, scores, "right")) / 2
        shares = below / len(others)
        placements[one] = shares.mean() + (shares - shares.mean()) * len(placements) / len(scores)
    placements[np.isnan(of.score)] = np.nan
    return placements


def _squares(own: Predictions, other: Predictions) -> NDArray[float64]:
    gains: NDArray[float64] = (other.predicted - other.truth) ** 2 - (own.predicted - own.truth) ** 2
    return gains


def _rmse(own: Predictions, other: Predictions) -> NDArray[float64]:
    """The difference of two roots is that of their squares over their sum."""
    both = sum(float(np.sqrt(np.mean((each.predicted - each.truth) ** 2))) for each in (own, other))
    return _squares(own, other) / both if both else np.zeros(len(own.truth))


def _mae(own: Predictions, other: Predictions) -> NDArray[float64]:
    gains: NDArray[float64] = np.abs(other.predicted - other.truth) - np.abs(own.predicted - own.truth)
    return gains


def _r2(own: Predictions, other: Predictions) -> NDArray[float64]:
    return _squares(own, other) / np.var(own.truth)


_GAINS: Mapping[MetricInfo, Callable[[Predictions, Predictions], NDArray[float64]]] = {
    # Records do not say from how many samples on a metric is known.
    replace(METRIC_INFOS[key], known_from=None): function
    for key, function in {
        "accuracy": _accuracy,
        "balanced_accuracy": _balanced_accuracy,
        "roc_auc": _roc_auc,
        "mse": _squares,
        "rmse": _rmse,
        "mae": _mae,
        "r2": _r2,
    }.items()
}


def of_samples(gains: NDArray[float64], units: NDArray[int64], metric: MetricInfo) -> Effect:
    """Compare two models of one client on its test samples.

    The p-value of accuracy on independent samples is that of McNemar's exact test; all others are those of a paired
    t-test over units, which for the area under the ROC curve is close to that of DeLong. As in the interval of Bonett
    and Price, a unit more is added for each model: without them, two models that agree on a few samples would be sure
    to agree.

    Args:
        gains: What each sample says, (s,), as by `sample_gains`.
        units: The unit of each sample, (s,).
        metric: The metric of both.
    """
    _, place = np.unique(units, return_inverse=True)
    sums = np.bincount(place, weights=gains)
    sizes = np.bincount(place)
    largest = max(float(np.abs(sums).max()), 1.0 if metric.share_of_samples else 0.0)
    sums, sizes = np.append(sums, (largest, -largest)), np.append(sizes, (1, 1))
    mean = float(sums.sum() / sizes.sum())
    degrees = len(sums) - 1
    error = sqrt((1 + 1 / degrees) * float(np.square(sums - mean * sizes).sum())) / float(sizes.sum())
    if len(sums) == len(gains) + 2 and metric.share_of_samples and np.isin(gains, (-1, 0, 1)).all():
        better, worse = int((gains > 0).sum()), int((gains < 0).sum())
        # Both tails of the binomial distribution with a probability of one half.
        p = min(1.0, 2 * float(bdtr(min(better, worse), better + worse, 0.5)))
        # The errors of samples that are right or wrong are known, and not estimated with the mean.
        return Effect(float(gains.mean()), *_interval(mean, error / sqrt(1 + 1 / degrees), _NORMAL, metric), p)
    return Effect(float(gains.mean()), *_interval(mean, error, degrees, metric), _p_value(mean, error, degrees))


def of_counts(samples: int, value: float, other: float, metric: MetricInfo) -> Effect | None:
    """Compare two models of a client of whose test samples only the number is known, as on real devices.

    As if the samples were different ones: on the same ones the error is mostly smaller, so what is clear here is clear.
    The interval is that of Agresti and Caffo, "Simple and effective confidence intervals for proportions and
    differences of proportions result from adding two successes and two failures", The American Statistician 2000.

    Returns:
        The difference; None where the values alone do not tell how much of it is chance.
    """
    if not (metric.share_of_samples and samples and 0 <= min(value, other) <= max(value, other) <= 1):
        return None
    shares = [(each * samples + 1) / (samples + 2) for each in (value, other)]
    error = sqrt(sum(share * (1 - share) for share in shares) / (samples + 2))
    middle = metric.gain(*shares)
    return Effect(
        metric.gain(value, other), *_interval(middle, error, _NORMAL, metric), _p_value(middle, error, _NORMAL)
    )


def of_clients(gains: Iterable[NDArray[float64] | None], units: Iterable[NDArray[int64]]) -> Effect | None:
    """Compare the mean over clients of two sets of models on the clients' test samples: a paired t-test over units.

    Args:
        gains: What each sample of each client says, as by `sample_gains`; None of a client of whom it is not known.
        units: Their units.

    Returns:
        The difference; None where a client is not known, or has a single unit, whose error nobody knows.
    """
    means = list[float]()
    variance, degrees = 0.0, 0
    for gain, unit in zip(gains, units, strict=True):
        _, place = np.unique(unit, return_inverse=True)
        count = int(place.max()) + 1
        if gain is None or count < 2:
            return None
        means.append(float(gain.mean()))
        sums = np.bincount(place, weights=gain - means[-1])
        variance += count / (count - 1) * float(np.square(sums).sum()) / len(gain) ** 2
        degrees += count - 1
    return _by_t_test(float(np.mean(means)), sqrt(variance) / len(means), degrees) if means else None


def over_seeds(values: Sequence[float], overlap: float, smallest: float = 0.0) -> Effect | None:
    """Compare two methods by their differences in runs with several seeds: the corrected resampled t-test.

    Seeds whose runs are tested on the same samples in part do not say the same thing independently. Their correlation
    is taken to be the overlap of their test units, r, and the variance of the mean of k differences is s² times
    (1/k + r / (1 - r)); with a held-out share of n_test of the same rows, r / (1 - r) is n_test / n_train (Nadeau and
    Bengio 2003, Eq. 9).

    Args:
        values: The difference with each seed.
        overlap: The share of test units that two seeds have in common, below 1. 0 is that of seeds that draw other
            clients or samples. Where all are the same, seeds tell nothing about other samples, and 0 has to be given:
            the result is about these samples alone.
        smallest: The smallest difference that can be seen. A smaller spread counts as this one.

    Returns:
        The difference; None of a single seed, and of seeds that all have the same difference: with few test samples,
        one more that is right is often the whole of it, with one seed as with another.
    """
    values = np.round(values, DECIMALS).tolist()
    if len(set(values)) < 2:
        return None
    spread = max(float(np.std(values, ddof=1)), smallest)
    error = spread * sqrt(1 / len(values) + overlap / (1 - overlap))
    return _by_t_test(float(np.mean(values)), error, len(values) - 1)


def corrected(effects: Sequence[Effect | None]) -> list[float | None]:
    """Return the p-values of effects, corrected for their number (Holm 1979); None of one that is not known."""
    p_values = np.array([effect.p for effect in effects if effect is not None])
    order = np.argsort(p_values, kind="stable")
    weights = np.arange(len(order), 0, -1)
    raised = np.empty(len(order))
    raised[order] = np.maximum.accumulate(weights * p_values[order]).clip(max=1)
    values = iter(raised.tolist())
    return [None if effect is None else next(values) for effect in effects]


def verdict_of(effect: Effect | None, p: float | None) -> Literal["better", "worse", "unclear"]:
    """Return what an effect says with its corrected p-value: better or worse by more than chance, or neither."""
    if effect is None or p is None or p >= LEVEL:
        return "unclear"
    return "better" if effect.by > 0 else "worse"


def _by_t_test(by: float, error: float, degrees: int) -> Effect:
    """Return a difference with this standard error and its degrees of freedom."""
    reach = float(stdtrit(degrees, 1 - LEVEL / 2)) * error
    return Effect(by, by - reach, by + reach, _p_value(by, error, degrees))


def _interval(middle: float, error: float, degrees: float, metric: MetricInfo) -> tuple[float, float]:
    """Return the 95 % interval; that of a share is not wider than a share can differ."""
    reach = float(stdtrit(degrees, 1 - LEVEL / 2)) * error
    least, most = metric.bounds
    return max(middle - reach, least - most), min(middle + reach, most - least)


def _p_value(mean: float, error: float, degrees: float) -> float:
    if not error:
        return float(mean == 0)
    return float(2 * (ndtr(-abs(mean) / error) if degrees == _NORMAL else stdtr(degrees, -abs(mean) / error)))
