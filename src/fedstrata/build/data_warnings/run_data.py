"""The data of a run, as the checks look at them, and lists of names for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedstrata.base.quoting import listed, shown
from fedstrata.base.randomness import seed_of
from fedstrata.config import Experiment
from fedstrata.data import Dataset
from fedstrata.partition import Partition

_MOST_SAMPLES = 20_000
"""The largest number of samples whose values are looked at."""

_MOST_BYTES = 2**25
"""What they take at most as they are stored."""

_FEWEST_OF_CLIENT = 500
"""Of so many samples of a client, the values are looked at, and not of fewer of more clients."""


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
    def names(self) -> NDArray[np.str_]:
        """The name of each client, or its id where clients have none, (n,)."""
        return np.array(self.partition.names or [str(client) for client in range(len(self.partition.train))])

    @cached_property
    def class_names(self) -> NDArray[np.str_]:
        """The name of each class, or its number where classes have none, (classes,)."""
        return np.array(self.dataset.class_names or [str(label) for label in range(self.dataset.classes)])

    @property
    def labels(self) -> NDArray[np.int64]:
        """The class of each sample, (samples,)."""
        return self.dataset.labels.numpy()

    @property
    def client_column(self) -> str:
        """The column that says who the clients are; empty where the partition reads none."""
        return str(self.experiment.partition.get("column", ""))

    @property
    def has_features(self) -> bool:
        """Whether samples are rows of features or signals, and no images or tokens."""
        return self.dataset.inputs.ndim in (2, 3) and self.dataset.inputs.dtype.is_floating_point

    @cached_property
    def held(self) -> list[NDArray[np.int64]]:
        """The samples of each client, to train and to test on, in the order of the data."""
        parts = zip(self.partition.train, self.partition.test, strict=True)
        return [np.sort(np.concatenate(both)).astype(np.int64) for both in parts]

    @cached_property
    def looked_at(self) -> dict[int, NDArray[np.int64]]:
        """The samples whose values are looked at, by client, ascending: all, or some that the seed draws."""
        size = prod(self.dataset.inputs.shape[1:]) * self.dataset.inputs.dtype.itemsize
        most = max(1, min(_MOST_SAMPLES, _MOST_BYTES // size))
        if sum(map(len, self.held)) <= most:
            return dict(enumerate(self.held))
        rng = np.random.default_rng(seed_of(self.experiment.seed, "data warnings"))
        of_client = max(_FEWEST_OF_CLIENT, most // len(self.held))
        clients = np.sort(rng.permutation(len(self.held))[: max(1, most // of_client)]).tolist()
        return {client: np.sort(rng.permutation(self.held[client])[: min(of_client, most)]) for client in clients}

    def some_clients(self, which: NDArray[np.bool_]) -> str:
        """How many of the clients some are, (n,), and their names, for people."""
        return f"{which.sum()} of {len(which)} clients ({first_few(self.names[which])})"

    def numbers(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """What features, or the channels of signals, are in some samples, (samples', features, readings)."""
        values = self.dataset.gather(torch.from_numpy(rows)).double().numpy()
        return values.reshape(len(values), values.shape[1], -1)

    def features(self) -> Iterator[tuple[str, list[NDArray[np.float64]]]]:
        """Each feature, or channel of signals: what it is called, and its values, (samples', readings) of a client."""
        clients = [self.numbers(rows) for rows in self.looked_at.values()] if self.has_features else []
        for place in range(clients[0].shape[1] if clients else 0):
            names = self.dataset.feature_names
            name = f"the feature {names[place]!r}" if names else f"feature {place}"
            yield name, [values[:, place] for values in clients]

    def class_counts(self, parts: Sequence[NDArray[np.int64]], *, of_units: bool = False) -> NDArray[np.int64]:
        """How many samples of each class, or how many units with such a sample, are in each part, (n, classes)."""
        counts = []
        for own in parts:
            labels = self.labels[own]
            if of_units and self.dataset.units is not None:
                _, unit = np.unique(self.dataset.units[own], return_inverse=True)
                labels = np.unique(np.stack([labels, unit]), axis=1)[0]
            counts.append(np.bincount(labels, minlength=self.dataset.classes))
        return np.stack(counts)


def first_few(values: Sequence[object] | NDArray[Any]) -> str:
    """Return the first few values for people, and how many more there are."""
    return listed([shown(str(value)).strip("'") for value in values])
