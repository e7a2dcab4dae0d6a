"""Samples that equal or resemble others: copies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from numpy.typing import NDArray

from fedstrata.build.data_warnings.names import first_few, name_of
from fedstrata.build.data_warnings.near_copies import near_copies
from fedstrata.config import Experiment
from fedstrata.config.tables import ALL_INDEPENDENT
from fedstrata.data import DATASETS, Dataset
from fedstrata.partition import Partition

_COPIES_SHARE = 0.01
"""The share of test samples that equal a training sample from which on there is a warning."""

_COMPARED_NUMBERS = 4096
"""The numbers of a sample that are compared with those of others."""

_DIGESTED_AT_ONCE = 512
"""The number of samples that are read together to be compared."""


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
        if experiment.data.unit != ALL_INDEPENDENT:
            yield from _near_copies(dataset, partition)


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


def _near_copies(dataset: Dataset, partition: Partition) -> Iterator[str]:
    """Samples that resemble others of their client far more than the rest, and no unit keeps them together."""
    found = near_copies(dataset, partition)
    if found is None:
        return
    name = name_of(partition, found.client)
    others = "one other" if found.copies == 1 else f"{found.copies} others"
    state = "is not set" if dataset.unit is None else f"= {dataset.unit!r} does not keep them together"
    yield (
        f"{found.copied / found.samples:.0%} of {found.samples:,} samples that were compared look like copies with "
        f"noise: mostly {others} of the same client, such as client {first_few([name])}, are far closer to them "
        f"than all the rest, and data.unit {state}. Halves of a client's samples are not independent then: a split "
        "test finds groups that are not there, and scores come out too good. Name a column in data.unit whose equal "
        f"values keep copies together, take copies out, or set data.unit = {ALL_INDEPENDENT!r} if all samples are "
        "independent"
    )
