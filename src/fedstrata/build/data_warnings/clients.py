"""What looks wrong with the clients of a user's own data: who they are, and how they are called."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedstrata.build.data_warnings.names import first_few, missing_value_names, names_alike
from fedstrata.config import Experiment
from fedstrata.data import DATASETS, Dataset
from fedstrata.data.column_roles import looks_like_client
from fedstrata.partition import Partition


def client_warnings(experiment: Experiment, dataset: Dataset, partition: Partition, own_test: int) -> Iterator[str]:
    """Yield what looks wrong with the clients.

    Args:
        experiment: The experiment.
        dataset: The samples of all clients; the last ones are the test samples of the data set's own, if used.
        partition: The samples of each client.
        own_test: The number of test samples of the data set's own that are used.
    """
    yield from _left_out_clients(experiment, dataset, own_test)
    yield from _similar_names(partition.names)
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


def _similar_names(names: tuple[str, ...]) -> Iterator[str]:
    """Names of clients that differ only in case or spaces: mostly one client, written in two ways."""
    for several in names_alike(names):
        yield f"the clients {several} differ only in case or spaces. If they are one client, write its name in one way"


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
