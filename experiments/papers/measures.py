"""What exhibits measure in the records of runs: functions of curves, labels and matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from .run_folder import Curve, RunFolder

ACCURACY_SLACK = 0.005
"""A run has reached its final accuracy when it is half a point away."""

SMOOTHING = 5
"""The rounds of a moving mean."""


def percent(value: float | None) -> float | None:
    """A share in percent."""
    return None if value is None else 100 * value


def final(curve: Curve) -> float | None:
    """The value of the last round."""
    return curve[-1]


def cluster_accuracy(run: RunFolder) -> float | None:
    """The mean accuracy of all clusters after the last round, in percent."""
    return percent(final(run.curve("acc_cluster")))


def client_accuracy(run: RunFolder) -> float | None:
    """The mean accuracy of all clients after the last round, in percent."""
    return percent(final(run.curve("acc_client")))


def round_of_final_accuracy(curve: Curve, slack: float = ACCURACY_SLACK) -> float:
    """The first round whose accuracy is at least that of the last round, but for a slack."""
    known = [value or 0.0 for value in curve]
    return float(1 + next(place for place, value in enumerate(known) if value >= known[-1] - slack))


def round_of_groups(run: RunFolder) -> float | None:
    """The first round whose clusters are the true groups; None where there is none."""
    return first_round(run.curve("ari"), lambda value: value > 1 - 1e-9)


def round_of_purity(run: RunFolder) -> float | None:
    """The first round in which no cluster has clients of two true groups; None where there is none."""
    return first_round(run.curve("purity"), lambda value: value > 1 - 1e-9)


def clusters(run: RunFolder) -> float:
    """The number of clusters after the last round."""
    return float(run.summary["clusters"])


def agreement(run: RunFolder) -> float | None:
    """The adjusted Rand index of the clusters and the true groups after the last round."""
    return final(run.curve("ari"))


def first_round(curve: Curve, holds: Callable[[float], bool]) -> float | None:
    """The first round whose value is there and of which something holds."""
    return next((float(n) for n, value in enumerate(curve, 1) if value is not None and holds(value)), None)


def round_of_stability(run: RunFolder, epsilon: float) -> float | None:
    """The first round in which a layer is stable in every member (Eq. 15)."""
    metric = "max_stability"
    rounds = [first_round(run.metric(metric, layer), lambda value: value < epsilon) for layer in run.layers(metric)]
    return min((found for found in rounds if found is not None), default=None)


def smooth(curve: Sequence[float], width: int = SMOOTHING) -> list[float]:
    """The mean of each value and those before it, up to a number of values in all."""
    return [sum(curve[max(0, n - width + 1) : n + 1]) / (n + 1 - max(0, n - width + 1)) for n in range(len(curve))]


def round_of_settling(curve: Curve, share: float = 0.1) -> float:
    """The first round from which the smoothed values stay near the last one: within a share of their whole range."""
    known = [(n, value) for n, value in enumerate(curve, start=1) if value is not None]
    values = smooth([value for _, value in known])
    near = share * (max(values) - min(values))
    away = [place for place, value in enumerate(values) if abs(value - values[-1]) > near]
    return float(known[max(away, default=-1) + 1][0])


def mean_over_layers(run: RunFolder, name: str) -> Curve:
    """The mean of a metric over the layers in every round."""
    rows = zip(*(run.metric(name, layer) for layer in run.layers(name)), strict=True)
    return [None if None in row else sum(value or 0.0 for value in row) / len(row) for row in rows]


def within_and_across(matrix: NDArray[np.float64], groups: Sequence[int]) -> tuple[float, float]:
    """The mean of pairs of one group, and that of pairs of two groups."""
    within, across = list[float](), list[float]()
    for one, other in combinations(range(len(groups)), 2):
        (within if groups[one] == groups[other] else across).append(float(matrix[one, other]))
    return sum(within) / len(within), sum(across) / len(across)


def contrast(matrix: NDArray[np.float64], groups: Sequence[int]) -> float:
    """The mean similarity of pairs of one group minus that of pairs of two groups."""
    within, across = within_and_across(matrix, groups)
    return within - across


def normalised_contrast(matrix: NDArray[np.float64], groups: Sequence[int]) -> float:
    """The contrast in units of the standard deviation over all pairs; 0 where all pairs are alike.

    So measures of different units can be compared.
    """
    pairs = matrix[np.triu_indices(len(groups), k=1)]
    spread = float(pairs.std())
    return contrast(matrix, groups) / spread if spread > 0 else 0.0


def dip(curve: Curve, at: int) -> float:
    """How far a measure falls in the round of an event, in percent points, against the round before it."""
    before, after = curve[at - 2], curve[at - 1]
    assert before is not None and after is not None
    return 100 * (before - after)


def rounds_to_recover(curve: Curve, at: int, slack: float = ACCURACY_SLACK) -> float | None:
    """The rounds after an event until a measure is back where it was before; None if it is not."""
    before = curve[at - 2]
    assert before is not None
    found = first_round(curve[at - 1 :], lambda value: value >= before - slack)
    return None if found is None else found - 1


def seconds(work: Callable[[], object], times: int = 5) -> float:
    """The seconds that some work takes: the shortest of several times, the first left out."""
    work()
    taken = []
    for _ in range(times):
        start = perf_counter()
        work()
        taken.append(perf_counter() - start)
    return min(taken)


def mean_of_rounds(curve: Curve, first: int, last: int) -> float | None:
    """The mean of a curve over some rounds, the last one left out; None where it has no value in them."""
    known = [value for value in curve[first - 1 : last - 1] if value is not None]
    return sum(known) / len(known) if known else None


def overlap(one: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    """The mean Jaccard index of two rounds' unstable weights, (clients, places) each, over the clients."""
    shares = []
    for places, others in zip(one.tolist(), other.tolist(), strict=True):
        common = len(set(places) & set(others))
        shares.append(common / (len(places) + len(others) - common))
    return sum(shares) / len(shares)
