"""Two runs on the same clients, compared test sample by test sample.

McNemar, "Note on the sampling error of the difference between correlated proportions or percentages", Psychometrika
1947, in its exact form: of the samples that only one of two models classifies correctly, each model would have as many
by chance. The interval is that of Bonett and Price, "Adjusted Wald confidence interval for a difference of binomial
proportions based on paired data", Journal of Educational and Behavioral Statistics 2012.
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, ndtri

from fedstrata.records.final_scores import RightSamples

LEVEL = 0.05
"""A difference is clear where its p-value is below."""


class PairedDifference(NamedTuple):
    """How much better a client's accuracy is than in another run.

    Attributes:
        by: The difference of the two accuracies; negative where it is worse.
        low: The lower end of its 95 % interval.
        high: The upper end.
        p: The p-value of the exact test of McNemar.
    """

    by: float
    low: float
    high: float
    p: float

    @property
    def clear(self) -> bool:
        """Whether the difference is more than chance."""
        return self.p < LEVEL


def paired_difference(own: NDArray[np.bool_], other: NDArray[np.bool_]) -> PairedDifference:
    """Compare two models on the same test samples.

    Samples that both classify correctly, or neither, tell nothing about which one is better.

    Args:
        own: Which samples the first model classifies correctly, bool (s,).
        other: The same of the second model.
    """
    gained = int((own & ~other).sum())
    lost = int((other & ~own).sum())
    # Both tails of the binomial distribution with a probability of one half. scipy.stats would be slow to import.
    p = min(1.0, 2 * float(bdtr(min(gained, lost), gained + lost, 0.5)))
    # One more sample for each model: without it, the interval of two models that agree would have no width.
    adjusted = len(own) + 2
    middle = (gained - lost) / adjusted
    error = sqrt(gained + lost + 2 - (gained - lost) ** 2 / adjusted) / adjusted
    reach = float(ndtri(1 - LEVEL / 2)) * error
    return PairedDifference((gained - lost) / len(own), max(middle - reach, -1.0), min(middle + reach, 1.0), p)


def paired_differences(own: RightSamples, other: RightSamples) -> dict[int, PairedDifference]:
    """Compare two runs for every client that has the same number of test samples in both, by client id."""
    both = sorted(client for client in own.keys() & other.keys() if len(own[client]) == len(other[client]) > 0)
    return {client: paired_difference(own[client], other[client]) for client in both}
