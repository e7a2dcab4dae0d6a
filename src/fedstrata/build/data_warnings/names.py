"""Names of clients and classes that look wrong, and lists of names for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from numpy.typing import NDArray

from fedstrata.base.quoting import shown
from fedstrata.partition import Partition

_MOST_NAMED = 5
"""The number of clients or values that a warning names."""

_MISSING_NAMES = frozenset({"na", "n/a", "#n/a", "nan", "null", "-", "?", "."})
"""What programs write in lower or upper case where there is no value."""


def missing_value_names(kind: str, names: Sequence[str]) -> Iterator[str]:
    """Yield a warning for each name that programs give missing values.

    Args:
        kind: What has these names, "client" or "class".
        names: The names.
    """
    for name in names:
        if name.strip().lower() in _MISSING_NAMES:
            yield (
                f"a {kind} is called {name!r}, which mostly stands for a missing value. If it does, fill it in or "
                "leave these rows out"
            )


def names_alike(names: Sequence[str]) -> Iterator[str]:
    """Names that differ only in case or spaces, those that are alike together, as a list for people."""
    same: dict[str, list[str]] = {}
    for name in names:
        written = "".join(name.split())
        # Single letters are often meant: a and A.
        same.setdefault(written.casefold() if len(written) > 1 else written, []).append(name)
    for several in same.values():
        if len(several) > 1:
            yield first_few(list(map(repr, several)))


def name_of(partition: Partition, client: int) -> str:
    """Return the name of a client, or its id where it has none."""
    return partition.names[client] if partition.names else str(client)


def first_few(values: Sequence[object] | NDArray[Any]) -> str:
    """Return the first few values for people, and how many more there are."""
    texts = [value if value.startswith("'") else shown(value).strip("'") for value in map(str, values[:_MOST_NAMED])]
    more = f" and {len(values) - _MOST_NAMED} more" if len(values) > _MOST_NAMED else ""
    return ", ".join(texts) + more
