"""The closest pair of groups while groups merge, without reading the whole matrix for every merge."""

from __future__ import annotations

import numpy as np

from fedstrata.clustering.arrays import Matrix


class Nearest:
    """Keeps, for every group, which group of higher number is closest to it.

    After a merge most groups have the same neighbour as before. The others keep their old distance as a bound, and
    look around anew only when that bound is the least of all (Muellner, "Modern hierarchical, agglomerative
    clustering algorithms", 2011, Section 2.3): about m^2 steps for a whole hierarchy where reading the matrix for
    every merge takes m^3.

    Args:
        between: distances of groups, (m, m), symmetric, infinite on the diagonal and for groups that are gone;
            whoever merges groups changes it.
    """

    def __init__(self, between: Matrix) -> None:
        """Know nothing of anyone."""
        self._between = between
        self._least = np.full(len(between), -np.inf)
        self._nearest = np.zeros(len(between), dtype=np.int64)
        self._stale = np.ones(len(between), dtype=bool)
        # The last group has none of higher number.
        self._least[-1:], self._stale[-1:] = np.inf, False

    def pair(self) -> tuple[int, int]:
        """The closest pair; of equals that of smallest members, the lower one first."""
        while self._stale[row := int(self._least.argmin())]:  # argmin takes the first of equals
            after = self._between[row, row + 1 :]
            self._nearest[row] = row + 1 + after.argmin()
            self._least[row], self._stale[row] = after.min(), False
        return row, int(self._nearest[row])

    def merged(self, kept: int, joined: int) -> None:
        """A group was joined to another one of lower number, whose distances in the matrix are the new ones."""
        known, lost = ~self._stale, (self._nearest == kept) | (self._nearest == joined)
        self._stale |= lost
        least, nearest, stale = self._least[:kept], self._nearest[:kept], self._stale[:kept]
        now = self._between[:kept, kept]
        closer, equal = now < least, (now == least) & known[:kept]
        nearest[equal] = np.minimum(nearest[equal], kept)
        least[closer], nearest[closer] = now[closer], kept
        stale[closer | equal] = False
        self._least[kept], self._stale[kept] = -np.inf, True
        self._least[joined], self._stale[joined] = np.inf, False
