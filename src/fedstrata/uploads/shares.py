"""How many of so many things a share of them is."""

from __future__ import annotations

from math import ceil


def rounded_up(share: float, count: int) -> int:
    """The number of things that a share of so many is, rounded up: at least one of any, for a share above 0."""
    if not count or not share:
        return 0
    # 0.07 of 100 is 7.000000000000001 by floating point.
    return max(1, ceil(round(share * count, 9)))
