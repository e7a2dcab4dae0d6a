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
        """Return the values of a decision or an event, with the names of clients in place of their ids."""
        return {key: self._named(value) if key in _VALUES_OF_CLIENTS else value for key, value in values.items()}

    def _named(self, value: Any) -> Any:
        """Return the name of the client that a value of a record means; the value where it is no id."""
        whole = isinstance(value, int | float) and float(value).is_integer()
        return self.of(int(value)) if whole else value


NO_NAMES = ClientNames()
"""Clients that have their ids as names."""
