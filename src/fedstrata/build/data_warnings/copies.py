"""Samples that equal others, and clients whose samples are near-copies of each other, such as noisy ones of one image.

Where samples are distinct, the volume around a sample grows evenly from one nearest neighbour to the next: the step
j log(r(j+1) / r(j)) has the same distribution at every j, where r(j) is the distance to the j-th nearest neighbour
(Facco et al., "Estimating the intrinsic dimension of datasets by a minimal neighborhood information", 2017). Copies
stand out: j neighbours are close, and the next one is far.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors

from fedstrata.base.randomness import seed_of
from fedstrata.build.data_warnings.run_data import RunData, first_few, samples_of
from fedstrata.config.tables import ALL_INDEPENDENT
from fedstrata.core import evenly_spread
from fedstrata.data import Dataset
from fedstrata.partition import Partition

_COPIES_SHARE = 0.01
"""The share of test samples that equal a training sample from which on there is a warning."""

_COMPARED_NUMBERS = 4096
"""The numbers of a sample that are compared with those of others."""

_DIGESTED_AT_ONCE = 512
"""The number of samples that are read together to be compared."""


def shared_samples(data: RunData) -> Iterator[str]:
    """Samples that several clients hold, as the experiment asks."""
    copies = data.experiment.data.copies
    if copies > 1:
        yield (
            f"data.copies = {copies}: a test sample of one client may be a training sample of another. "
            "Scores come out too good. Compare them with those of runs with the same key alone"
        )


def equal_samples(data: RunData) -> Iterator[str]:
    """Test samples that equal a training sample."""
    if data.experiment.data.copies > 1:
        return
    train = set(_digests(data.dataset, data.partition.train))
    test = sum(map(len, data.partition.test))
    copies = sum(digest in train for digest in _digests(data.dataset, data.partition.test))
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


def noisy_copies(data: RunData) -> Iterator[str]:
    """Samples that resemble others of their client far more than the rest, and no unit keeps them together."""
    if data.experiment.data.copies > 1 or data.experiment.data.unit == ALL_INDEPENDENT:
        return
    copies = near_copies(data.dataset, data.partition)
    if not copies:
        return
    most = max(copies.values())
    others = "one other sample" if most == 1 else f"{most} others"
    unit = data.dataset.unit
    state = "is not set" if unit is None else f"= {unit!r} does not keep them together"
    yield (
        f"samples of client {first_few([data.names[client] for client in copies])} look like copies with noise: up to "
        f"{others} of the same client are far closer to them than the rest, and data.unit {state}. Halves of a "
        "client's samples are not independent then: a split test finds groups that are not there, and scores come out "
        "too good. Name a column in data.unit whose equal values keep copies together, take copies out, or set "
        f"data.unit = {ALL_INDEPENDENT!r} if all samples are independent"
    )


_CLIENTS = 8
"""The largest number of clients that are looked at."""

_ROWS = 2048
"""The largest number of samples of a client among which neighbours are looked for."""

_READ_NUMBERS = 2**21
"""The largest number of numbers that are read, of all samples together."""

_NUMBERS_OF_NEIGHBOURS = 2048
"""The numbers of a sample, evenly spaced, that are compared with those of others."""

_READ_AT_ONCE = 2**18
"""The numbers that are read together."""

_LEVELS = 10
"""The number of values up to which a feature of a table is a category, which tells nothing about copies."""

_COPIES = 16
"""The largest number of copies of a sample, besides itself, that are looked for."""

_FEWEST_COPIES = 3
"""A class has neighbours enough to look for at least so many; else its samples are not compared."""

_FEWEST_SAMPLES = 32
"""The number of compared samples of a client below which their steps tell nothing."""

_COPIED_SHARE = 0.25
"""The share of a client's samples that have to be copied."""

_COPIED_STEP = 5.0
"""The step after the last copy, as a multiple of the mean of the others, from which on there is a warning.

Independent samples reach 3, and 4 on a closed curve. Copies whose noise is a fifth of the features' spread exceed 6.
"""


def near_copies(dataset: Dataset, partition: Partition) -> dict[int, int]:
    """Look for near-copies among the samples of each client, in a bounded number of clients and samples.

    A sample is compared with those of its class, as a class that is small and apart from all others is no set of
    copies. Copies that have one unit are kept together, so that the first sample of each unit is compared alone. A
    client that has more samples than are read at most is judged by some that follow each other.

    Args:
        dataset: The samples of all clients.
        partition: The samples of each client.

    Returns:
        The number of near-copies that samples of a client mostly have, by client; without clients whose samples look
        distinct. That is also so for tokens, and for features with few different values, of which distinct samples may
        be equal.
    """
    if dataset.holds_tokens:
        return {}
    rows = _looked_at(dataset, partition)
    found = {}
    for (client, own), values in zip(rows.items(), _comparable(dataset, list(rows.values())), strict=True):
        units = own if dataset.units is None else dataset.units[own]
        _, first = np.unique(units, return_index=True)
        classes = dataset.labels.numpy()[own[first]]
        by_class = [_steps(values[first[classes == label]]) for label in np.unique(classes)]
        if sum(map(len, by_class)) >= _FEWEST_SAMPLES:
            steps = np.concatenate(by_class)
            there = steps[:, ~np.isnan(steps).all(axis=0)]
            large = np.nanquantile(there, 1 - _COPIED_SHARE, axis=0)
            last = int(large.argmax())
            # Equal distances, as between vertices of a cube, have no other steps.
            if large[last] >= _COPIED_STEP * max(np.delete(large, last).mean(), 1 / 20):
                found[client] = last + 1
    return found


def _steps(values: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return j log(r(j+1) / r(j)) around samples of one class at [sample, j - 1].

    Args:
        values: The samples, (samples', numbers).

    Returns:
        The steps, (samples'', 16). They are nan at a larger j than a quarter of the samples. Samples that equal all of
        their neighbours have none.
    """
    most = min(_COPIES, len(values) // 4)
    if most < _FEWEST_COPIES or values.shape[1] == 0:
        return np.empty((0, _COPIES))
    neighbours = NearestNeighbors(n_neighbors=most + 1).fit(values.astype(np.float64))
    distances, _ = neighbours.kneighbors()
    distances = distances[distances[:, -1] > 0]
    # Exact copies are as far from each other as rounding errors; among several of them there is no step.
    logarithms = np.log(np.maximum(distances, 1e-6 * distances[:, -1:]))
    steps = np.arange(1, most + 1) * np.diff(logarithms, axis=1)
    return np.pad(steps, ((0, 0), (0, _COPIES - most)), constant_values=np.nan)


def _looked_at(dataset: Dataset, partition: Partition) -> dict[int, NDArray[np.int64]]:
    """Return the positions of the samples that are compared, by client: some clients, evenly spaced."""
    affordable = _READ_NUMBERS // prod(dataset.shape)
    held = samples_of(partition)
    # Rather fewer clients than a part of each, in which the copies of a sample may be missing.
    most = int(np.clip(affordable // min(max(map(len, held)), _ROWS), 1, _CLIENTS))
    clients = evenly_spread(len(held), most).tolist()
    each = min(_ROWS, affordable // len(clients))
    return {client: held[client][:each] for client in clients}


def _comparable(dataset: Dataset, rows: list[NDArray[np.int64]]) -> list[NDArray[np.float32]]:
    """Return the numbers of samples that are compared: (samples', numbers) for each array of positions."""
    values = [_read(dataset, own) for own in rows]
    if len(dataset.shape) > 1:
        return values
    together = _without_ties(np.concatenate(values))
    return np.split(together, np.cumsum([len(own) for own in rows])[:-1])


def _read(dataset: Dataset, index: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return normalised samples, of large ones some numbers: (samples',) -> (samples', numbers)."""
    numbers = prod(dataset.shape)
    compared = evenly_spread(numbers, _NUMBERS_OF_NEIGHBOURS)
    parts = torch.from_numpy(index).split(max(1, _READ_AT_ONCE // numbers))
    return np.concatenate([dataset.prepare(part).flatten(1)[:, compared].numpy() for part in parts])


def _without_ties(table: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the features with many values, whose rounding is undone by noise: (samples, features).

    Distinct samples may be equal in categories and counts. Of rounded numbers, equal ones are as far from each other
    as the values that were rounded: up to the smallest difference between two values of the feature.
    """
    rng = np.random.default_rng(seed_of(0, "near copies"))
    kept = np.empty_like(table)
    features = 0
    for feature in table.T:
        levels = np.unique(feature)
        if len(levels) > _LEVELS:
            rounding = float(np.diff(levels).min())
            kept[:, features] = feature + rounding * rng.uniform(-0.5, 0.5, len(feature))
            features += 1
    return kept[:, :features]
