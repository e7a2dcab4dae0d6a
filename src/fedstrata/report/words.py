"""Numbers, lists and the names of clients as people read them. Records have the ids, `data.json` the names."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Any

from fedstrata.base.quoting import printable

DASH = "\N{EN DASH}"


_MOST_WRITTEN_OUT = 1e6
"""Larger numbers that are not whole have a power of ten."""


_KEY = re.compile(r"[a-z_]+\.[a-z_]+\b")
"""A key of an experiment, at the beginning of a text."""


OUTSIDE = "app"
"""The name of the data of clients that are somewhere else."""


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


MOST_LISTED = 200
"""The number of names, or ranges of ids, after which the other clients are only counted."""

_VALUES_OF_CLIENTS = ("client", "reference")
"""The values of decisions and events that are the id of a client."""


@dataclass(frozen=True)
class ClientNames:
    """The names of the clients of a run.

    Attributes:
        names: The name of each client, by its id, (n,). A client beyond them has its id.
    """

    names: tuple[str, ...] = ()

    @cached_property
    def plain(self) -> bool:
        """Whether all clients have their id as the name."""
        return all(name == str(client) for client, name in enumerate(self.names))

    def of(self, client: int) -> str:
        """Return the name of a client, on one line."""
        return printable(self.names[client]) if 0 <= client < len(self.names) else str(client)

    def listed(self, clients: Iterable[int]) -> str:
        """Return the names of some clients: ``Ghent, Lyon``; of clients without names as ranges of ids: ``0-4, 7``.

        Names that hold commas are separated by semicolons. Of more than `MOST_LISTED` the others are counted.
        """
        if self.plain:
            return ranges(clients, MOST_LISTED)
        everyone = list(clients)
        names = list(map(self.of, everyone[:MOST_LISTED]))
        more = len(everyone) - len(names)
        text = ("; " if any("," in name for name in names) else ", ").join(names)
        return f"{text} and {more:,} more" if more else text

    def in_values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of a decision or an event, with the names of clients in place of their ids."""
        return {key: self._named(value) if key in _VALUES_OF_CLIENTS else value for key, value in values.items()}

    def _named(self, value: Any) -> Any:
        """Return the name of the client that a value of a record means; the value where it is no id."""
        whole = isinstance(value, int | float) and float(value).is_integer()
        return self.of(int(value)) if whole else value


NO_NAMES = ClientNames()
"""Clients that have their ids as names."""
