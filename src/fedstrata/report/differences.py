"""How much better one model or method is than another, and whether that is more than chance.

There are two questions. `of_samples` and `of_clients` compare *models* on the test samples that both have seen: would
other samples of the same clients say the same? `over_seeds` compares *methods* by runs with several seeds: would other
splits and starts say the same? `holm` corrects for the number of comparisons that are shown together. All intervals are
of 95 %, all tests two-sided.

Sources: McNemar, "Note on the sampling error of the difference between correlated proportions or percentages",
Psychometrika 1947, in its exact form; Bonett and Price, "Adjusted Wald confidence interval for a difference of binomial
proportions based on paired data", Journal of Educational and Behavioral Statistics 2012; DeLong, DeLong and
Clarke-Pearson, "Comparing the areas under two or more correlated receiver operating characteristic curves", Biometrics
1988, with units as in Obuchowski, Biometrics 1997; Nadeau and Bengio, "Inference for the generalization error", Machine
Learning 2003; Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 1979.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy import float64, int64
from numpy.typing import NDArray
from scipy.special import bdtr, ndtr, stdtr, stdtrit

from fedstrata.objective.metric_info import METRIC_INFOS, MetricInfo
from fedstrata.records.schema import Predictions

LEVEL = 0.05
"""A difference is more than chance where its corrected p-value is below."""

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
        the difference; None where the metric is no such mean, as a metric of the user's own, or is not known.
    """
    gains_by = _GAINS.get(metric.name)
    if gains_by is None or len(own.truth) != len(other.truth) or not np.array_equal(own.truth, other.truth):
        return None
    with np.errstate(all="ignore"):
        found = gains_by(own, other)
    return found if len(found) and bool(np.isfinite(found).all()) else None


def _accuracy(own: Predictions, other: Predictions) -> NDArray[float64]:
    known = np.where(np.isnan(own.truth), np.nan, 1.0)
    gains: NDArray[float64] = known * (own.right.astype(float64) - other.right)
    return gains


def _balanced_accuracy(own: Predictions, other: Predictions) -> NDArray[float64]:
    """A class counts as much as another one, however many samples it has."""
    _, place, counts = np.unique(own.truth, return_inverse=True, return_counts=True)
    gains: NDArray[float64] = _accuracy(own, other) * len(own.truth) / (len(counts) * counts[place])
    return gains


def _roc_auc(own: Predictions, other: Predictions) -> NDArray[float64]:
    return _placements(own) - _placements(other)


def _placements(of: Predictions) -> NDArray[float64]:
    """Return the share of samples of the other class that each sample is ranked rightly with (DeLong et al. 1988).

    They are weighted so that their mean is the area, and so that both classes have their part of its variance.
    """
    second = of.truth > 0
    if second.all() or not second.any() or np.isnan(of.score).any():
        return np.full(len(second), np.nan)
    found = np.empty(len(second))
    for one, rest, sign in ((second, ~second, 1.0), (~second, second, -1.0)):
        scores, others = sign * of.score[one], np.sort(sign * of.score[rest])
        below = (np.searchsorted(others, scores, "left") + np.searchsorted(others, scores, "right")) / 2
        shares = below / len(others)
        found[one] = shares.mean() + (shares - shares.mean()) * len(found) / len(scores)
    return found


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


_GAINS: Mapping[str, Callable[[Predictions, Predictions], NDArray[float64]]] = {
    METRIC_INFOS[key].name: function
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
    t-test over units, which for the area under the ROC curve is that of DeLong. As in the interval of Bonett and Price,
    a unit more is added for each model: without them, two models that agree on a few samples would be sure to agree.

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
    independent = len(sums) == len(gains) + 2
    if independent and metric.share_of_samples:
        better, worse = int((gains > 0).sum()), int((gains < 0).sum())
        # Both tails of the binomial distribution with a probability of one half.
        p = min(1.0, 2 * float(bdtr(min(better, worse), better + worse, 0.5)))
        # The errors of samples that are right or wrong are known, and not estimated with the mean.
        return Effect(float(gains.mean()), *_interval(mean, error / sqrt(1 + 1 / degrees), _NORMAL, metric), p)
    return Effect(float(gains.mean()), *_interval(mean, error, degrees, metric), _p_value(mean, error, degrees))


def of_counts(samples: int, value: float, other: float, metric: MetricInfo) -> Effect | None:
    """Compare two models of a client of whose test samples only the number is known, as on real devices.

    As if the samples were different ones: on the same ones the error is mostly smaller, so what is clear here is clear.

    Returns:
        The difference; None where the values alone do not tell how much of it is chance.
    """
    if not (metric.share_of_samples and samples and 0 <= min(value, other) <= max(value, other) <= 1):
        return None
    error = sqrt((value * (1 - value) + other * (1 - other)) / samples)
    by = metric.gain(value, other)
    p = _p_value(by, error, _NORMAL) if error else float(by == 0)
    return Effect(by, *_interval(by, error, _NORMAL, metric), p)


def of_clients(gains: Iterable[NDArray[float64]], units: Iterable[NDArray[int64]]) -> Effect | None:
    """Compare the mean over clients of two sets of models on the clients' test samples: a paired t-test over units.

    Args:
        gains: What each sample of each client says, as by `sample_gains`.
        units: Their units.

    Returns:
        The difference; None where no client has two units.
    """
    means = list[float]()
    variance, degrees = 0.0, 0
    for gain, unit in zip(gains, units, strict=True):
        _, place = np.unique(unit, return_inverse=True)
        means.append(float(gain.mean()))
        count = int(place.max()) + 1
        if count > 1:
            sums = np.bincount(place, weights=gain - means[-1])
            variance += count / (count - 1) * float(np.square(sums).sum()) / len(gain) ** 2
            degrees += count - 1
    if not degrees:
        return None
    by, error = float(np.mean(means)), sqrt(variance) / len(means)
    reach = float(stdtrit(degrees, 1 - LEVEL / 2)) * error
    return Effect(by, by - reach, by + reach, _p_value(by, error, degrees))


def over_seeds(values: Sequence[float], overlap: float) -> Effect | None:
    """Compare two methods by their differences in runs with several seeds: the corrected resampled t-test.

    Seeds whose runs are tested on the same samples in part do not say the same thing independently. Their correlation
    is taken to be the overlap of their test samples, r, and the variance of the mean of k differences is s² times
    (1/k + r / (1 - r)); with a held-out share of n_test of the same rows, r / (1 - r) is n_test / n_train (Nadeau and
    Bengio 2003, Eq. 9).

    Args:
        values: The difference with each seed.
        overlap: The share of test samples that two seeds have in common. 0 is that of seeds that draw other clients or
            samples. Where all are the same, seeds tell nothing about other samples, and 0 has to be given: the result
            is about these samples alone.

    Returns:
        The difference; None of a single seed, and of seeds that all have the same difference: with few test samples,
        one more that is right is often the whole of it, with one seed as with another.
    """
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    if not spread:
        return None
    by = float(np.mean(values))
    error = spread * sqrt(1 / len(values) + overlap / (1 - overlap))
    reach = float(stdtrit(len(values) - 1, 1 - LEVEL / 2)) * error
    return Effect(by, by - reach, by + reach, _p_value(by, error, len(values) - 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values that are corrected for the number of comparisons, in their order (Holm 1979)."""
    order = np.argsort(p_values, kind="stable")
    weights = np.arange(len(order), 0, -1)
    corrected = np.empty(len(order))
    corrected[order] = np.maximum.accumulate(weights * np.asarray(p_values, float64)[order]).clip(max=1)
    found: list[float] = corrected.tolist()
    return found


def _interval(middle: float, error: float, degrees: float, metric: MetricInfo) -> tuple[float, float]:
    """Return the 95 % interval; that of a share is not wider than a share can differ."""
    reach = float(stdtrit(degrees, 1 - LEVEL / 2)) * error
    least, most = metric.bounds
    return max(middle - reach, least - most), min(middle + reach, most - least)


def _p_value(mean: float, error: float, degrees: float) -> float:
    if not error:
        return float(mean == 0)
    return float(2 * (ndtr(-abs(mean) / error) if degrees == _NORMAL else stdtr(degrees, -abs(mean) / error)))
