"""The names of the clients, as every text for people shows them. Records have the ids, `data.json` the names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fedstrata.base.quoting import printable
from fedstrata.report.words import ranges

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
        """Return the values of a decision, with names in place of ids wherever they are formatted."""
        return {
            key: _Named(value, self.of(int(value))) if key in _VALUES_OF_CLIENTS and _is_id(value) else value
            for key, value in values.items()
        }


NO_NAMES = ClientNames()
"""Clients that have their ids as names."""


class _Named(float):
    """The id of a client, which shows the name in every format."""

    name: str

    def __new__(cls, value: float, name: str) -> _Named:
        """Keep the name."""
        made = super().__new__(cls, value)
        made.name = name
        return made

    def __format__(self, spec: str) -> str:
        """Return the name."""
        return self.name

    def __str__(self) -> str:
        """Return the name."""
        return self.name


def _is_id(value: object) -> bool:
    return isinstance(value, int | float) and value == value and float(value).is_integer()
