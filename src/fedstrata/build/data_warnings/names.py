"""Who the clients of a user's own data are, names of clients and classes that look wrong, and lists of names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstrata.base.quoting import shown
from fedstrata.config import Experiment
from fedstrata.data import DATASETS, Dataset
from fedstrata.data.column_roles import looks_like_client
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


def similar_names(kind: str, names: Sequence[str]) -> Iterator[str]:
    """Yield a warning for names that differ only in case or spaces: mostly one thing, written in two ways.

    Args:
        kind: What has these names, "client" or "class".
        names: The names.
    """
    same: dict[str, list[str]] = {}
    for name in names:
        written = "".join(name.split())
        # Single letters are often meant: a and A.
        same.setdefault(written.casefold() if len(written) > 1 else written, []).append(name)
    for several in same.values():
        if len(several) > 1:
            kinds = "classes" if kind == "class" else "clients"
            yield (
                f"the {kinds} {first_few(list(map(repr, several)))} differ only in case or spaces. If they are one "
                f"{kind}, write its name in one way"
            )


def name_of(partition: Partition, client: int) -> str:
    """Return the name of a client, or its id where it has none."""
    return partition.names[client] if partition.names else str(client)


def first_few(values: Sequence[object] | NDArray[Any]) -> str:
    """Return the first few values for people, and how many more there are."""
    texts = [value if value.startswith("'") else shown(value).strip("'") for value in map(str, values[:_MOST_NAMED])]
    more = f" and {len(values) - _MOST_NAMED} more" if len(values) > _MOST_NAMED else ""
    return ", ".join(texts) + more


def client_warnings(experiment: Experiment, dataset: Dataset, partition: Partition, own_test: int) -> Iterator[str]:
    """Yield what looks wrong with the clients.

    Args:
        experiment: The experiment.
        dataset: The samples of all clients; the last ones are the test samples of the data set's own, if used.
        partition: The samples of each client.
        own_test: The number of test samples of the data set's own that are used.
    """
    yield from _left_out_clients(experiment, dataset, own_test)
    yield from similar_names("client", partition.names)
    if experiment.data.name not in DATASETS:
        yield from _clients_by_chance(experiment, dataset)
        yield from missing_value_names("client", partition.names)


def _left_out_clients(experiment: Experiment, dataset: Dataset, own_test: int) -> Iterator[str]:
    """Values of the column of the clients that are more than ``data.clients``."""
    column = str(experiment.partition.get("column", ""))
    if column not in dataset.columns:
        return
    values = np.unique(dataset.columns[column][: len(dataset) - own_test])
    n = experiment.data.clients
    if n < len(values):
        yield (
            f"the column {column!r} has {len(values)} values, and data.clients = {n}: {first_few(values[n:])} take no "
            "part. Leave data.clients out to have all of them"
        )


def _clients_by_chance(experiment: Experiment, dataset: Dataset) -> Iterator[str]:
    """A column that says who the clients are, while the partition does not read it."""
    if experiment.partition.get("scheme") != "iid":
        return
    for name, values in dataset.columns.items():
        count = len(np.unique(values))
        if looks_like_client(name) and 1 < count < len(dataset):
            yield (
                f"the column {name!r} looks like that of the clients, and partition.scheme = 'iid' gives all samples "
                f"to {experiment.data.clients} clients at random. Set partition.scheme = 'natural' and "
                f"partition.column = {name!r} to have a client for each of its {count:,} values"
            )
