"""Numbers, lists and names as people read them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from math import isfinite
from typing import Any

DASH = "\N{EN DASH}"


_MOST_WRITTEN_OUT = 1e6
"""Larger numbers that are not whole have a power of ten."""


_KEY = re.compile(r"[a-z_]+\.[a-z_]+\b")
"""A key of an experiment, at the beginning of a text."""


def format_number(value: Any, digits: int = 3) -> str:
    """Return a number with so many decimals; an integer without decimals, a dash for an unknown number.

    A number of seven digits or more before the point, such as the loss of training that diverges, has a power of ten.
    """
    if isinstance(value, str):
        return value
    if value is None or not isfinite(value):
        return DASH
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.{digits}f}" if abs(value) < _MOST_WRITTEN_OUT else f"{value:.4g}"


def brief(value: Any) -> str:
    """Return a number with four significant digits."""
    if isinstance(value, float) and isfinite(value):
        return f"{value:.4g}"
    return format_number(value)


def size(count: float) -> str:
    """Return bytes in decimal units."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 1000:
            return f"{count:.3g} {unit}"
    return f"{count / 1000:,.3g} TB"


def duration(seconds: float | None) -> str:
    """Return seconds, or minutes and hours where there are many; a dash where they are unknown."""
    if seconds is None:
        return DASH
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {rest} s"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun, such as "1 cluster" or "2 clusters"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def ranges(ids: Iterable[int], most: int | None = None) -> str:
    """Return ids with consecutive ones as a range: 0-4, 7.

    Args:
        ids: The ids.
        most: The number of ranges after which the other ids are only counted; None for no limit.
    """
    runs: list[list[int]] = []
    for each in sorted(ids):
        if runs and each == runs[-1][-1] + 1:
            runs[-1].append(each)
        else:
            runs.append([each])
    texts = [f"{run[0]}{DASH}{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs[:most]]
    more = 0 if most is None else sum(map(len, runs[most:]))
    return ", ".join(texts) + (f" and {more:,} more" if more else "")


def joined(items: Iterable[object]) -> str:
    """Join items as in a sentence: one; one and two; one, two and three."""
    *some, last = [str(item) for item in items] or [""]
    return f"{', '.join(some)} and {last}" if some else last


IN_MEMORY = "memory:"
"""Begins the name of data that a program gave to the run; a digest follows, which says nothing to a reader."""


def data_name(name: str) -> str:
    """Return what the data of a run are called."""
    return "data in memory" if name.startswith(IN_MEMORY) else name


def capital(text: str) -> str:
    """Begin a text with a capital, unless it begins with a key, such as ``data.copies``."""
    return text if _KEY.match(text) else text[:1].upper() + text[1:]


def slug(name: str) -> str:
    """Return a name as part of a file name: lower-case letters, digits and dashes."""
    plain = unicodedata.normalize("NFKD", name).lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-") or "x"
