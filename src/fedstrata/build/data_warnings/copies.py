"""Samples that depend on each other, while the experiment says nothing about it: of one unit, equal ones, near-copies.

Rows of a table in the order of time resemble the rows before them, and so do windows of one recording. The measure is
the autocorrelation at lag 1 (Box, Jenkins, "Time series analysis: forecasting and control", 1970).

Equal samples, and near-copies such as noisy ones of one image, are looked for with the nearest neighbours of normalised
samples. Around distinct samples the logarithm of the
distance grows from one neighbour to the next in steps whose shares in the whole are the same in every dimension (Facco
et al., "Estimating the intrinsic dimension of datasets by a minimal neighborhood information", 2017). Copies stand out:
some neighbours are close, and one step to the next of them is nearly all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from fedstrata.build.data_warnings.run_data import RunData, first_few
from fedstrata.build.data_warnings.values import missing_codes
from fedstrata.config.tables import ALL_INDEPENDENT
from fedstrata.core import evenly_spread
from fedstrata.data.column_roles import looks_like_unit

_T = TypeVar("_T", np.int64, np.float64)

_NUMBERS = 128
"""The numbers of a sample, evenly spaced, that are compared with those of others."""

_QUERIES = 1000
"""The largest number of samples whose neighbours are looked for at once."""

_READ_AT_ONCE = 2**20
"""The numbers that are read together."""

_COPIES_SHARE = 0.01
"""The share of test samples that equal a training sample, beyond chance, from which on there is a warning."""

_NEIGHBOURS = 16
"""So many of the nearest samples are looked at, equal ones among them."""

_FEWEST_DIFFERENCES = 3
"""Samples of categories and counts differ from the nearest in fewer numbers, so that some are equal by chance."""


def shared_samples(data: RunData) -> Iterator[str]:
    """Samples that several clients hold, as the experiment asks."""
    copies = data.experiment.data.copies
    if copies > 1:
        yield (
            f"data.copies = {copies}: a test sample of one client may be a training sample of another, so that scores "
            "come out too good. Compare them with those of runs with the same key alone"
        )


def equal_samples(data: RunData) -> Iterator[str]:
    """Test samples that equal a training sample, more of them than by chance.

    Chance is told from the training samples: how many of them equal another one, and hardly differ from the nearest
    that they do not equal, as the ages of people do.
    """
    if data.experiment.data.copies > 1:
        return
    rows = np.concatenate(list(data.looked_at.values()))
    testing = np.isin(rows, np.concatenate(data.partition.test))
    if testing.all() or not testing.any():
        return
    values = _normalised(data, rows)
    train, test = values[~testing], _some(values[testing])
    copies = int(_equal(test, train)[0].sum())
    equal, differences = _equal(_some(train), train, itself=1)
    by_chance = float((equal & (differences < _FEWEST_DIFFERENCES)).mean())
    noise = 3 * np.sqrt(by_chance * (1 - by_chance) / len(test))
    if copies > (by_chance + noise + _COPIES_SHARE) * len(test):
        yield (
            f"{copies:,} of {len(test):,} test samples equal a training sample; by chance {by_chance * len(test):,.0f} "
            "would. Scores come out too good. Take copies out, or name a column in data.unit that keeps them together"
        )


def _equal(
    samples: NDArray[np.float64], others: NDArray[np.float64], itself: int = 0
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Compare samples with their nearest neighbours among others.

    Args:
        samples: The samples, (samples, numbers).
        others: The others, (others, numbers).
        itself: How often a sample is among them itself.

    Returns:
        Which samples equal one of them, (samples,), and in how many numbers each differs from the nearest that it does
        not equal, (samples,); 0 where it equals all neighbours.
    """
    search = neighbours_of(others, _NEIGHBOURS)
    differ = (others[search.kneighbors(samples, return_distance=False)] != samples[:, None]).sum(axis=2)
    unequal = np.take_along_axis(differ, (differ > 0).argmax(axis=1)[:, None], axis=1)[:, 0]
    return (differ == 0).sum(axis=1) > itself, unequal


def neighbours_of(samples: NDArray[np.float64], most: int) -> Any:
    """What finds up to so many nearest neighbours among samples, (samples, numbers)."""
    # It takes a second to import.
    from sklearn.neighbors import NearestNeighbors

    return NearestNeighbors(n_neighbors=min(most, len(samples))).fit(samples)


def _some(values: NDArray[_T]) -> NDArray[_T]:
    """Some of many rows, evenly spaced."""
    some: NDArray[_T] = values[evenly_spread(len(values), _QUERIES).numpy()]
    return some


_CLIENTS = 8
"""The largest number of clients in which near-copies are looked for."""

_STEPS = 7
"""The largest number of copies of a sample, besides itself, that are looked for."""

_FEWEST_OF_CLASS = 20
"""Samples of a class are compared if there are so many: fewer have no neighbours that tell anything."""

_FEWEST_SAMPLES = 32
"""The number of compared samples of a client below which their steps tell nothing."""

_LEVELS = 10
"""The number of values up to which a feature is a category, which tells nothing about copies."""

_COPIED_STEP = 0.58
"""The share of the largest step from which on there is a warning, a mean over the samples of a client.

It is 0.45 for distinct samples in any dimension, and up to 0.54 for counts and on a closed curve. Copies whose noise is
a fifth of the features' spread exceed 0.6.
"""


def noisy_copies(data: RunData) -> Iterator[str]:
    """Samples that resemble others of their client far more than the rest, and no unit keeps them together."""
    unit = data.experiment.data.unit
    if data.experiment.data.copies > 1 or unit == ALL_INDEPENDENT or data.dataset.holds_tokens:
        return
    # Beside codes for missing values, which are far from all others, the rest is near to each other.
    if any(missing_codes(data)):
        return
    clients = np.array(list(data.looked_at))[evenly_spread(len(data.looked_at), _CLIENTS).numpy()]
    copied = [client for client in clients.tolist() if _largest_step(data, client) > _COPIED_STEP]
    if copied:
        yield (
            f"samples of client {first_few(data.names[copied])} look like noisy copies of others of it. Scores "
            "come out too good, and a split test finds groups that are not there. Name a column in data.unit "
            f"whose equal values keep copies together, take copies out, or set data.unit = {ALL_INDEPENDENT!r} if all "
            "samples are independent"
        )


def _largest_step(data: RunData, client: int) -> float:
    """The share of the largest step in all steps between neighbours, a mean over samples; 0 where they are too few.

    A sample is compared with those of its class, as a small class that lies apart from all others is no set of copies.
    Copies of one unit are kept together, so that the first sample of each unit is compared alone.
    """
    own = data.looked_at[client]
    if data.dataset.units is not None:
        own = own[np.unique(data.dataset.units[own], return_index=True)[1]]
    values = _normalised(data, own)
    values = values[:, [len(np.unique(feature)) > _LEVELS for feature in values.T]]
    labels = data.labels[own]
    found = [np.empty(0)]
    for label in np.unique(labels):
        # Equal samples are told by themselves.
        distinct = np.unique(values[labels == label], axis=0)
        if len(distinct) >= _FEWEST_OF_CLASS and distinct.shape[1]:
            search = neighbours_of(distinct, _STEPS + 2)
            distances, _ = search.kneighbors(_some(distinct))
            # The nearest neighbour of a sample is itself.
            steps = np.diff(np.log(np.maximum(distances[:, 1:], 1e-6 * distances[:, -1:])), axis=1)
            found.append(steps.max(axis=1) / np.maximum(steps.sum(axis=1), 1e-9))
    shares = np.concatenate(found)
    return float(shares.mean()) if len(shares) >= _FEWEST_SAMPLES else 0.0


def _normalised(data: RunData, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Some numbers of samples, with mean 0 and deviation 1 in each channel: (samples',) -> (samples', numbers)."""
    shape = data.dataset.inputs.shape[1:]
    kept = evenly_spread(prod(shape), _NUMBERS)
    parts = torch.from_numpy(rows).split(max(1, _READ_AT_ONCE // prod(shape)))
    values: NDArray[np.float64] = (
        torch.cat([data.dataset.gather(part).flatten(1)[:, kept] for part in parts]).double().numpy()
    )
    channels = kept.numpy() // prod(shape[1:])
    for channel in np.unique(channels):
        own = values[:, channels == channel]
        values[:, channels == channel] = (own - np.nanmean(own)) / max(float(np.nanstd(own)), 1e-30)
    values[np.isnan(values)] = 0.0
    return values


_SIMILAR_NEIGHBOURS = 0.4
"""The correlation of features with themselves one sample before from which on there is a warning.

That of means of windows is 0.5 where half of each window is in the next one, even of noise.
"""

_FEWEST_OF_CLIENT = 40
"""Clients are looked at that have at least so many samples."""


def missing_unit(data: RunData) -> Iterator[str]:
    """Samples that look dependent on each other while the experiment says nothing about it."""
    dataset = data.dataset
    if data.experiment.data.unit is not None:
        return
    found, remedy = "", "Add a column that says which recording, day or week a sample is of, and name it in data.unit"
    if columns := _unit_columns(data):
        count = len(np.unique(dataset.columns[columns[0]]))
        found = f"samples share the {count:,} values of {first_few(list(map(repr, columns)))}, as those of one unit do"
        remedy = f"Set data.unit = {columns[0]!r}"
    elif dataset.unit is None and (similar := _neighbour_correlation(data)) > _SIMILAR_NEIGHBOURS:
        found = f"samples resemble those before them, as in time or in a recording: the correlation is {similar:.2f}"
    if found:
        state = f"is {dataset.unit!r} by default" if dataset.unit else "is not set"
        yield (
            f"{found}, and data.unit {state}. On both sides of a split they make scores too good, and may be taken for "
            f"groups. {remedy}, or data.unit = {dataset.unit or ALL_INDEPENDENT!r} if that is right"
        )


def _unit_columns(data: RunData) -> list[str]:
    """Return the columns that look like units of dependence, the coarsest first.

    Every client must have at least two values of it and more samples than values: other columns mark the clients
    themselves, or single samples. Where the reader knows the units, as of recordings, only coarser ones are returned.
    """
    units = data.dataset.units
    most = sum(len(own if units is None else np.unique(units[own])) for own in data.held)
    found = []
    for name, values in data.dataset.columns.items():
        if name != data.client_column and looks_like_unit(name) and values.dtype.kind in "iuU":
            counts = [len(np.unique(values[own])) for own in data.held]
            if min(counts) > 1 and sum(counts) < most:
                found.append((sum(counts), name))
    return [name for _, name in sorted(found)]


def _neighbour_correlation(data: RunData) -> float:
    """The correlation of a feature with itself one sample before, the median over features and the mean over clients.

    Of signals it is that of the means of windows. What the means of the classes explain is taken out: in a table that
    is sorted by class, rows resemble their neighbours as well. It is 0 where samples are no numbers, or too few.
    """
    rows = [own for own in data.looked_at.values() if len(own) >= _FEWEST_OF_CLIENT]
    if not data.has_features or not rows:
        return 0.0
    correlations = []
    for own in rows:
        values = data.numbers(own).mean(axis=2)
        for label in np.unique(data.labels[own]):
            of_class = data.labels[own] == label
            values[of_class] -= values[of_class].mean(axis=0)
        correlations.append((values[1:] * values[:-1]).sum(axis=0) / np.maximum(np.square(values).sum(axis=0), 1e-30))
    return float(np.quantile(np.mean(correlations, axis=0), 0.5, method="lower"))
