"""Samples that depend on each other: units that the experiment does not name or keep together, and copies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedstrata.build.data_warnings.names import first_few
from fedstrata.config import Experiment
from fedstrata.config.tables import ALL_INDEPENDENT
from fedstrata.data import DATASETS, Dataset
from fedstrata.data.column_roles import looks_like_unit
from fedstrata.partition import Partition

_COPIES_SHARE = 0.01
"""The share of test samples that equal a training sample from which on there is a warning."""

_COMPARED_NUMBERS = 4096
"""The numbers of a sample that are compared with those of others."""

_DIGESTED_AT_ONCE = 512
"""The number of samples that are read together to be compared."""


def unit_warnings(experiment: Experiment, dataset: Dataset, partition: Partition, own_test: int) -> Iterator[str]:
    """Yield what looks wrong with the units of dependence.

    Args:
        experiment: The experiment.
        dataset: The samples of all clients; the last ones are the test samples of the data set's own, if used.
        partition: The samples of each client.
        own_test: The number of test samples of the data set's own that are used.
    """
    yield from _missing_unit(experiment, dataset, partition)
    yield from _divided_units(dataset, own_test)
    yield from _units_of_several_clients(dataset, partition, own_test)


def _missing_unit(experiment: Experiment, dataset: Dataset, partition: Partition) -> Iterator[str]:
    """Samples that look dependent on each other while the experiment says nothing about it."""
    if experiment.data.unit is not None or experiment.data.name in DATASETS:
        return
    why = (
        "Training and test then share such samples, scores come out too good, and a split test finds groups that "
        "are not there"
    )
    columns = _unit_columns(dataset, partition, str(experiment.partition.get("column", "")))
    if columns:
        names = " and ".join(repr(name) for name in columns)
        unit = columns[0]
        count = len(np.unique(dataset.columns[unit]))
        verb = "looks" if len(columns) == 1 else "look"
        state = f"is {dataset.unit!r} by default" if dataset.unit else "is not set"
        otherwise = (
            f"{dataset.unit!r} if only samples of one {dataset.unit} depend on each other"
            if dataset.unit
            else f"{ALL_INDEPENDENT!r} if all samples are independent"
        )
        yield (
            f"the column {names} {verb} like a unit of dependence, and data.unit {state}: {count:,} values of "
            f"{unit} for {len(dataset):,} samples. Samples of one {unit} resemble each other. {why}. Set data.unit = "
            f"{unit!r}, or data.unit = {otherwise}"
        )


def _unit_columns(dataset: Dataset, partition: Partition, client_column: str) -> list[str]:
    """Return the columns that look like units of dependence, the coarsest first.

    Every client must have at least two values of it and more samples than values: other columns mark the clients
    themselves, or single samples. Where the reader knows the units, as of recordings, only coarser ones are returned.
    """
    held = [np.concatenate(both) for both in zip(partition.train, partition.test, strict=True)]
    most = sum(map(len, held)) if dataset.units is None else sum(_counts(dataset.units, held))
    found = []
    for name, values in dataset.columns.items():
        if name == client_column or not looks_like_unit(name) or values.dtype.kind not in "iuU":
            continue
        counts = _counts(values, held)
        if min(counts) > 1 and sum(counts) < most:
            found.append((sum(counts), name))
    return [name for _, name in sorted(found)]


def _counts(values: NDArray[Any], held: Sequence[NDArray[Any]]) -> list[int]:
    """Return how many different values of a column each client has."""
    return [len(np.unique(values[own])) for own in held]


def _divided_units(dataset: Dataset, own_test: int) -> Iterator[str]:
    """Units with samples in the training data and in the test data that the user supplied."""
    if not own_test or dataset.units is None:
        return
    train, test = np.split(dataset.units, [len(dataset) - own_test])
    both = np.intersect1d(train, test)
    if len(both):
        yield (
            f"{len(both)} values of data.unit = {dataset.unit!r} are in the training and in the test samples of "
            f"{dataset.name} ({first_few(both)}). Scores come out too good. Move each of them to one side"
        )


def _units_of_several_clients(dataset: Dataset, partition: Partition, own_test: int) -> Iterator[str]:
    """Units that one client is tested on while another one trains on them: the clients share models."""
    if own_test or dataset.units is None:
        return
    trained, tested = (np.unique(dataset.units[np.concatenate(parts)]) for parts in (partition.train, partition.test))
    both = np.intersect1d(trained, tested)
    if len(both):
        yield (
            f"{len(both):,} of {len(tested):,} held-out values of data.unit = {dataset.unit!r} are in the training "
            f"samples of other clients as well ({first_few(both)}), with whom models are shared. Scores come out too "
            "good. Partition by a column each of whose values has all samples of its units, or supply test "
            "samples of your own"
        )


def copy_warnings(experiment: Experiment, dataset: Dataset, partition: Partition) -> Iterator[str]:
    """Yield which samples look like copies of others. Known data sets are what they are.

    Args:
        experiment: The experiment.
        dataset: The samples of all clients.
        partition: The samples of each client.
    """
    if experiment.data.copies > 1:
        yield _shared_samples(experiment.data.copies)
    elif experiment.data.name not in DATASETS:
        yield from _copies(dataset, partition)


def _shared_samples(copies: int) -> str:
    """What is said of samples that several clients hold, as the experiment asks."""
    return (
        f"data.copies = {copies}: a test sample of one client may be a training sample of another. "
        "Scores come out too good. Compare them with those of runs with the same key alone"
    )


def _copies(dataset: Dataset, partition: Partition) -> Iterator[str]:
    """Test samples that equal a training sample."""
    train = set(_digests(dataset, partition.train))
    test = sum(map(len, partition.test))
    copies = sum(digest in train for digest in _digests(dataset, partition.test))
    if copies > _COPIES_SHARE * test:
        yield (
            f"{copies:,} of {test:,} test samples equal a training sample. Scores come out too good. Take "
            "copies out, or name a column in data.unit whose equal values keep them together"
        )


def _digests(dataset: Dataset, parts: Sequence[NDArray[Any]]) -> Iterator[int]:
    """Yield a number for each sample that equal samples share. A part of a large sample tells it from others."""
    for own in parts:
        for index in torch.from_numpy(own).split(_DIGESTED_AT_ONCE):
            values = dataset.gather(index).flatten(1)[:, :_COMPARED_NUMBERS].contiguous()
            yield from (hash(row.tobytes()) for row in values.numpy())
