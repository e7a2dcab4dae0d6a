"""The data of a run, as the checks look at them, and lists of names for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstrata.base.quoting import listed, shown
from fedstrata.config import Experiment
from fedstrata.data import Dataset
from fedstrata.partition import Partition


@dataclass(frozen=True)
class RunData:
    """The data of a run.

    Attributes:
        experiment: The experiment.
        dataset: The samples of all clients; the last ones are the test samples of the data set's own, if used.
        partition: The samples of each client.
        own_test: The number of test samples of the data set's own that are used.
    """

    experiment: Experiment
    dataset: Dataset
    partition: Partition
    own_test: int

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The name of each client, or its id where clients have none, (n,)."""
        return self.partition.names or tuple(map(str, range(len(self.partition.train))))

    @property
    def labels(self) -> NDArray[np.int64]:
        """The class of each sample, (samples,)."""
        return self.dataset.labels.numpy()

    @property
    def client_column(self) -> str:
        """The column that says who the clients are; empty where the partition reads none."""
        return str(self.experiment.partition.get("column", ""))


def samples_of(partition: Partition) -> list[NDArray[np.int64]]:
    """Return the samples of each client, to train and to test on, in the order of the data."""
    parts = zip(partition.train, partition.test, strict=True)
    return [np.sort(np.concatenate(both)).astype(np.int64) for both in parts]


def first_few(values: Sequence[object] | NDArray[Any]) -> str:
    """Return the first few values for people, and how many more there are."""
    return listed([value if value.startswith("'") else shown(value).strip("'") for value in map(str, values)])
