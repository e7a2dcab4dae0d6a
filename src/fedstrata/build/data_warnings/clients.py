"""Who the clients are, and names of clients and classes that look wrong."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedstrata.build.data_warnings.run_data import RunData, first_few
from fedstrata.data.column_roles import looks_like_client

_MISSING_NAMES = frozenset({"na", "n/a", "#n/a", "nan", "null", "-", "?", "."})
"""What programs write in lower or upper case where there is no value."""


def odd_names(data: RunData) -> Iterator[str]:
    """Clients and classes that are called as missing values are, or differ only in case or spaces.

    The latter are mostly one thing, written in two ways.
    """
    for kind, names in (("client", data.partition.names), ("class", data.dataset.class_names)):
        same: dict[str, list[str]] = {}
        for name in names:
            if name.strip().lower() in _MISSING_NAMES:
                yield f"a {kind} is called {name!r}, as missing values are. Fill it in, or leave these rows out"
            written = "".join(name.split())
            # Single letters are often meant: a and A.
            same.setdefault(written.casefold() if len(written) > 1 else written, []).append(repr(name))
        for several in same.values():
            if len(several) > 1:
                yield (
                    f"the names {first_few(several)} differ only in case or spaces. If they are one {kind}, write its "
                    "name in one way"
                )


def left_out_clients(data: RunData) -> Iterator[str]:
    """Values of the column of the clients that are more than ``data.clients``."""
    column = data.client_column
    if column not in data.dataset.columns:
        return
    values = np.unique(data.dataset.columns[column][: len(data.dataset) - data.own_test])
    n = data.experiment.data.clients
    if n < len(values):
        others = values[~np.isin(values.astype(np.str_), data.partition.names)]
        yield (
            f"the column {column!r} has {len(values)} values, and data.clients = {n}: {first_few(others)} take no "
            "part. Leave data.clients out to have all of them"
        )


def clients_by_chance(data: RunData) -> Iterator[str]:
    """A column that says who the clients are, while the partition does not read it."""
    for name, values in data.dataset.columns.items():
        count = len(np.unique(values))
        by_chance = data.experiment.partition.get("scheme") == "iid"
        if by_chance and looks_like_client(name) and 1 < count < len(data.dataset):
            yield (
                f"the column {name!r} looks like that of the clients, and partition.scheme = 'iid' gives all samples "
                f"to clients at random. Set partition.scheme = 'natural' and partition.column = {name!r} to have a "
                f"client for each of its {count:,} values"
            )
