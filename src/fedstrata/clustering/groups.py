"""Statistics of clients by group, such as the medians of all clusters at once.

A round has many small clusters, and a call for each of them takes longer than what it computes. The arrays are those of
numpy, whose calls on a few numbers take a fraction of the time of torch's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Bools: TypeAlias = NDArray[np.bool_]
Floats: TypeAlias = NDArray[np.floating[Any]]
Ints: TypeAlias = NDArray[np.int64]

_NORMAL_MAD = 0.6745
"""The median absolute deviation of a normal distribution whose standard deviation is 1."""


@dataclass(frozen=True)
class GroupIndex:
    """Which of g groups each of m clients is in.

    Attributes:
        of: The group of each client, 0 to g - 1, (m,).
        count: The number of groups, g. Each has a client.
    """

    of: Ints
    count: int

    @cached_property
    def sizes(self) -> Ints:
        """The number of clients of each group, (g,)."""
        return np.bincount(self.of, minlength=self.count)

    @cached_property
    def _starts(self) -> Ints:
        """How many clients are in the groups before each group, (g,)."""
        return self.sizes.cumsum() - self.sizes

    def counts(self, who: Bools) -> Ints:
        """How many clients of each group are among some, bool (m,): (g,)."""
        return np.bincount(self.of[who], minlength=self.count)

    def sums(self, values: Floats) -> NDArray[np.float64]:
        """The sum of the values of each group, (g,), of a value of each client, (m,)."""
        return np.bincount(self.of, weights=values, minlength=self.count).astype(np.float64, copy=False)

    def medians(self, values: Floats, counted: Bools | None = None) -> Floats:
        """The median of each group, (g,); the lower one of two, and nan where no value counts.

        Args:
            values: A value of each client, (m,). A value of nan does not count.
            counted: Whose values count, bool (m,); None for everyone's.
        """
        if counted is not None:
            values = np.where(counted, values, values.dtype.type(np.nan))
        # Ascending within each group, with nan at its end.
        order = np.lexsort((values, self.of))
        known = self.counts(~np.isnan(values))
        found: Floats = values[order[self._starts + np.maximum(known - 1, 0) // 2]]
        return found

    def modified_z_scores(self, values: Floats) -> Floats:
        """How far each value, (m,), is above the median of its group, in standard deviations, (m,).

        The standard deviation is estimated by the median absolute deviation, which a few outliers do not change:
        Iglewicz and Hoaglin, "How to detect and handle outliers", ASQC 1993.
        """
        deviation = values - self.medians(values)[self.of]
        spread = np.maximum(self.medians(np.abs(deviation)), np.finfo(values.dtype).tiny)
        # Where more than half of the values are equal, others may be infinitely far away.
        with np.errstate(over="ignore"):
            return _NORMAL_MAD * deviation / spread[self.of]

    def without_halves(self, who: Bools) -> Bools:
        """The same clients, bool (m,), without those of groups of which they are half or more, bool (m,)."""
        few: Bools = 2 * self.counts(who) < self.sizes
        return who & few[self.of]


def groups_of(labels: Ints, least: int) -> tuple[Ints, GroupIndex]:
    """The groups of clients that have the same label.

    Args:
        labels: The label of each client, (a,); -1 for one that is in no group.
        least: The least number of clients of a group. Smaller ones are left out.

    Returns:
        The places of the clients in groups, (m,) ascending; and their groups, in ascending order of labels. Not to be
        written to.
    """
    return _groups_of(labels.astype(np.int64, copy=False).tobytes(), least)


@lru_cache(maxsize=8)
def _groups_of(labels: bytes, least: int) -> tuple[Ints, GroupIndex]:
    """The same for the bytes of the labels: several checks ask for the same groups, in one round after the other."""
    of = np.frombuffer(labels, np.int64)
    counts = np.bincount(of[of >= 0])
    enough = counts >= max(least, 1)
    places = np.flatnonzero((of >= 0) & np.append(enough, False)[of])
    groups = (enough.cumsum() - 1)[of[places]]
    for shared in (places, groups):
        shared.setflags(write=False)
    return places, GroupIndex(groups, int(np.count_nonzero(enough)))
