"""Samples that equal others, and clients whose samples are near-copies of each other, such as noisy ones of one image.

Where samples are distinct, the volume around a sample grows evenly from one nearest neighbour to the next. In d
dimensions j log(r(j+1) / r(j)) then has the mean 1/d at every j, where r(j) is the distance to the j-th nearest
neighbour: Facco et al., "Estimating the intrinsic dimension of datasets by a minimal neighborhood information", 2017.
Copies stand out as a step: j neighbours are close, and the next one is far. It is compared with the growth between
farther neighbours, which does not change with the number of copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

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
    found = near_copies(data.dataset, data.partition)
    if found is None:
        return
    others = "one other" if found.copies == 1 else f"{found.copies} others"
    unit = data.dataset.unit
    state = "is not set" if unit is None else f"= {unit!r} does not keep them together"
    yield (
        f"{found.copied / found.samples:.0%} of {found.samples:,} samples that were compared look like copies with "
        f"noise: mostly {others} of the same client, such as client {first_few([data.names[found.client]])}, are far "
        f"closer to them than all the rest, and data.unit {state}. Halves of a client's samples are not independent "
        "then: a split test finds groups that are not there, and scores come out too good. Name a column in data.unit "
        f"whose equal values keep copies together, take copies out, or set data.unit = {ALL_INDEPENDENT!r} if all "
        "samples are independent"
    )


_CLIENTS = 8
"""The largest number of clients that are looked at."""

_QUERIES = 64
"""The number of samples of a client whose neighbours are looked for."""

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

_NEIGHBOURS = 128
"""The largest number of nearest neighbours that are looked at."""

_COPIES = 15
"""The largest number of copies of a sample, besides itself, that are found."""

_LARGEST_STEP = 6.0
"""The size above which a step counts no more, so that a few exact copies in the data do not decide."""

_COPIED_STEP = 1.5
"""The smallest mean step after the last copy; steps of distinct samples have mean 1."""

_DIFFERENCE = 0.8
"""How much the mean step after the last copy exceeds the next one at least."""

_DROP = 0.6
"""The largest share of the step after the last copy that the next one may have.

It tells copies from samples on a curve, whose steps are large at all numbers of neighbours.
"""

_FEWEST_SAMPLES = 64
"""The number of samples below which the mean of their steps tells nothing."""

_SAMPLE_STEP = 3.0
"""The step of one sample that is counted as a near-copy; one distinct sample in 20 has it by chance."""

_COPIED_SHARE = 0.1
"""The share of samples with such a step from which on there are near-copies; points on a grid have none."""


@dataclass(frozen=True)
class NearCopies:
    """What was found.

    Attributes:
        samples: The number of samples that were looked at.
        copied: The number of them that have near-copies, > 0.
        copies: The number of near-copies that such samples mostly have, besides themselves.
        client: The client in whose samples most were found.
    """

    samples: int
    copied: int
    copies: int
    client: int


@dataclass(frozen=True)
class _Neighbourhoods:
    """How the distance grows from neighbour to neighbour around some samples of one client.

    Attributes:
        steps: j log(r(j+1) / r(j)) at [query, j - 1]; 0 where j is too large to be a number of copies, (queries, 15).
        next_steps: The same at j + 1, also 0 where j is too large, (queries, 15).
        growth: The same growth between farther neighbours, from half of them to all, at several numbers of neighbours;
            nan where the client has too few samples, (queries, 3).
    """

    steps: NDArray[np.float64]
    next_steps: NDArray[np.float64]
    growth: NDArray[np.float64]


def near_copies(dataset: Dataset, partition: Partition) -> NearCopies | None:
    """Look for near-copies among the samples of each client, in a bounded number of clients and samples.

    Copies that have one unit are kept together, so that only those of different units count. A client that has more
    samples than are read at most is judged by some that follow each other.

    Args:
        dataset: The samples of all clients.
        partition: The samples of each client.

    Returns:
        What was found, or None where samples look distinct. That is also so for tokens, and for features with few
        different values, of which distinct samples may be equal.
    """
    if dataset.holds_tokens:
        return None
    rows = _looked_at(dataset, partition)
    values = _comparable(dataset, list(rows.values()))
    found = {}
    for (client, own), inputs in zip(rows.items(), values, strict=True):
        units = own if dataset.units is None else dataset.units[own]
        neighbourhoods = _neighbourhoods(inputs, dataset.labels.numpy()[own], units)
        if neighbourhoods is not None:
            found[client] = neighbourhoods
    return _judged(found) if found else None


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


def _neighbourhoods(
    values: NDArray[np.float32], classes: NDArray[np.int64], units: NDArray[np.generic]
) -> _Neighbourhoods | None:
    """Return how distances grow around some samples of a client; None where it has too few units.

    A neighbour is the nearest sample of another unit.

    Args:
        values: The samples of the client, (samples', numbers).
        classes: Their classes, (samples',).
        units: Their units, (samples',). Each sample is a unit of its own where all are independent.
    """
    _, first, unit = np.unique(units, return_index=True, return_inverse=True)
    neighbours = min(_NEIGHBOURS, len(first) // 2)
    copies = min(_COPIES, neighbours // 3)
    if copies < 3 or values.shape[1] == 0:
        return None
    queries = evenly_spread(len(values), _QUERIES).numpy()
    # Through inner products, the small distances of copies would lose their digits.
    exact = "donot_use_mm_for_euclid_dist"
    distances = torch.cdist(torch.from_numpy(values[queries]), torch.from_numpy(values), compute_mode=exact).numpy()
    order = np.argsort(unit, kind="stable")
    starts = np.searchsorted(unit[order], np.arange(len(first)))
    to_units = np.minimum.reduceat(distances[:, order], starts, axis=1)
    to_units[np.arange(len(queries)), unit[queries]] = np.inf
    nearest = np.sort(to_units, axis=1)[:, :neighbours]
    complete = nearest[:, -1] > 0
    if not complete.any():
        return None
    queries = queries[complete]
    # Exact copies are as far from each other as rounding errors; among several of them there is no step.
    nearest = np.maximum(nearest[complete], 1e-6 * nearest[complete, -1:])
    rank = np.arange(1, copies + 2)
    steps = rank * np.log(nearest[:, rank] / nearest[:, rank - 1])
    # A class that is small and apart from all others is no set of copies.
    of_class = (classes[queries][:, None] == classes[first]).sum(axis=1, keepdims=True)
    possible = rank[:-1] + 1 <= of_class / 2
    padding = ((0, 0), (0, _COPIES - copies))
    return _Neighbourhoods(
        steps=np.pad(np.where(possible, steps[:, :-1], 0.0), padding),
        next_steps=np.pad(np.where(possible, steps[:, 1:], 0.0), padding),
        growth=_growth(nearest, copies),
    )


def _growth(nearest: NDArray[np.float64], copies: int) -> NDArray[np.float64]:
    """Return the growth of distances, (queries, neighbours), beyond the copies: (queries, 3)."""
    growth = np.full((len(nearest), 3), np.nan)
    last = nearest.shape[1]
    for place in range(growth.shape[1]):
        half = last // 2
        if half <= copies:
            break
        growth[:, place] = np.log(nearest[:, last - 1] / nearest[:, half - 1]) / np.log(last / half)
        last = half
    return growth


def _judged(found: dict[int, _Neighbourhoods]) -> NearCopies | None:
    """Return whether the samples of all clients together are near-copies, and how many."""
    growth = np.concatenate([each.growth for each in found.values()])
    there = ~np.isnan(growth).all(axis=0)
    # Dimensions differ with the distance. The lowest one makes the fewest warnings.
    usual = float(np.nanmedian(growth[:, there], axis=0).max())
    # Equal distances, as between vertices of a cube, tell of no dimension.
    usual = max(usual, 1 / 20)
    steps = {client: _relative(each.steps, usual) for client, each in found.items()}
    mean = np.concatenate(list(steps.values())).mean(axis=0)
    following = np.concatenate([_relative(each.next_steps, usual) for each in found.values()]).mean(axis=0)
    marked = (mean >= _COPIED_STEP) & (mean - following >= _DIFFERENCE) & (following <= _DROP * mean)
    samples = sum(map(len, steps.values()))
    if samples < _FEWEST_SAMPLES or not marked.any():
        return None
    copied = {client: int((each[:, marked].max(axis=1) >= _SAMPLE_STEP).sum()) for client, each in steps.items()}
    if sum(copied.values()) < _COPIED_SHARE * samples:
        return None
    shares = {client: copied[client] / len(each) for client, each in steps.items()}
    return NearCopies(
        samples=samples,
        copied=sum(copied.values()),
        copies=int(np.argmax(np.where(marked, mean, 0.0))) + 1,
        client=max(shares, key=lambda client: shares[client]),
    )


def _relative(steps: NDArray[np.float64], usual: float) -> NDArray[np.float64]:
    """Return steps as multiples of the usual one, the largest ones as `_LARGEST_STEP`."""
    return np.minimum(steps / usual, _LARGEST_STEP)
