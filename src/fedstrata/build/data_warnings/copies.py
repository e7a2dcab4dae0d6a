"""Samples that depend on each other, while the experiment says nothing about it: of one unit, equal ones, near-copies.

Rows of a table in the order of time resemble the rows before them, and so do windows of one recording. The measure is
the autocorrelation at lag 1 (Box, Jenkins, "Time series analysis: forecasting and control", 1970).

Equal samples, and near-copies such as noisy ones of one image, are told by their nearest neighbours among distinct
samples. Around a sample without copies, the logarithm of the distance grows from one neighbour to the next in steps
whose shares in the whole are the same in every dimension (Facco et al., "Estimating the intrinsic dimension of datasets
by a minimal neighborhood information", 2017). Near-copies stand out: some neighbours are close, and one step to the
next of them is nearly all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

from fedstrata.base.quoting import listed
from fedstrata.build.data_warnings.run_data import RunData, first_few
from fedstrata.build.data_warnings.values import missing_codes
from fedstrata.config.tables import ALL_INDEPENDENT
from fedstrata.core import evenly_spread
from fedstrata.data.column_roles import looks_like_unit

_NUMBERS = 128
"""The numbers of a sample, evenly spaced, that are compared with those of others."""

_QUERIES = 1000
"""The largest number of samples whose neighbours are looked for at once."""

_READ_AT_ONCE = 2**20
"""The numbers that are read together."""

_COPIES_SHARE = 0.01
"""The share of test samples that equal a training sample, beyond chance, from which on there is a warning."""

_FEWEST_DIFFERENCES = 3
"""Samples of categories and counts differ from the nearest in fewer numbers, so that some are equal by chance."""

_CLIENTS = 8
"""The largest number of clients in which near-copies are looked for."""

_STEPS = 7
"""The largest number of copies of a sample, besides itself, that are looked for."""

_FEWEST_OF_CLASS = 20
"""Samples of a class are compared if there are so many: fewer have no neighbours that tell anything."""

_FEWEST_SAMPLES = 32
"""The number of samples of a client below which they tell nothing."""

_LEVELS = 10
"""The number of values up to which a feature is a category, which tells nothing about copies."""

_COPIED_STEP = 0.58
"""The share of the largest step from which on there is a warning, a mean over the samples of a client.

It is 0.45 for distinct samples in any dimension, and up to 0.54 for counts and on a closed curve. Copies whose noise is
a fifth of the features' spread exceed 0.6.
"""

_SIMILAR_NEIGHBOURS = 0.4
"""The correlation of features with themselves one sample before from which on there is a warning.

That of means of windows is 0.5 where half of each window is in the next one, even of noise.
"""


def equal_samples(data: RunData) -> Iterator[str]:
    """Test samples that equal a training sample, more of them than by chance.

    Chance is told from the training samples: how many of them equal another one, and hardly differ from the nearest
    that they do not equal, as the ages of people do.
    """
    rows = np.concatenate(list(data.looked_at.values()))
    testing = np.isin(rows, np.concatenate(data.partition.test))
    if data.experiment.data.copies > 1 or testing.all() or not testing.any():
        return
    distinct, places = np.unique(_normalised(data, rows), axis=0, return_inverse=True)
    train, test = places[~testing], places[testing]
    copies = np.isin(test, train).sum()
    some = train[evenly_spread(len(train), _QUERIES).numpy()]
    nearest = neighbours(distinct, some, 2)[1][:, -1]
    differences = (distinct[nearest] != distinct[some]).sum(axis=1)
    by_chance = ((np.bincount(train)[some] > 1) & (differences < _FEWEST_DIFFERENCES)).mean()
    noise = 3 * np.sqrt(by_chance * (1 - by_chance) / len(test))
    if copies > (by_chance + noise + _COPIES_SHARE) * len(test):
        yield (
            f"{copies:,} of {len(test):,} test samples equal a training sample; by chance {by_chance * len(test):,.0f} "
            "would. Scores come out too good. Take copies out, or name a column in data.unit that keeps them together"
        )


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
            f"samples of client {first_few(data.names[copied])} look like noisy copies of others of it. Scores come "
            "out too good. Name a column in data.unit whose equal values keep copies together, or set data.unit = "
            f"{ALL_INDEPENDENT!r} if all samples are independent"
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
    shares = [np.empty(0)]
    for label in np.unique(labels):
        distinct = np.unique(values[labels == label], axis=0)
        if len(distinct) >= _FEWEST_OF_CLASS and distinct.shape[1]:
            distances, _ = neighbours(distinct, evenly_spread(len(distinct), _QUERIES).numpy(), _STEPS + 2)
            # The nearest neighbour of a sample is itself.
            steps = np.diff(np.log(np.maximum(distances[:, 1:], 1e-6 * distances[:, -1:])), axis=1)
            shares.append(steps.max(axis=1) / np.maximum(steps.sum(axis=1), 1e-9))
    of_samples = np.concatenate(shares)
    return float(of_samples.mean()) if len(of_samples) >= _FEWEST_SAMPLES else 0.0


def neighbours(
    samples: NDArray[np.float64], places: NDArray[np.int64], count: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The distances and the places of the nearest neighbours of some samples among all, themselves first.

    Args:
        samples: All samples, (samples, numbers).
        places: Which of them have their neighbours looked for, (q,).
        count: The number of neighbours, at most that of the samples.

    Returns:
        Both are (q, count).
    """
    # It takes a second to import.
    from sklearn.neighbors import NearestNeighbors

    search = NearestNeighbors(n_neighbors=min(count, len(samples))).fit(samples)
    distances, nearest = search.kneighbors(samples[places])
    return distances, nearest


def _normalised(data: RunData, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Some numbers of samples, as networks read them: (samples',) -> (samples', numbers)."""
    size = prod(data.dataset.shape)
    kept = evenly_spread(size, _NUMBERS)
    parts = torch.from_numpy(rows).split(max(1, _READ_AT_ONCE // size))
    return torch.cat([data.dataset.prepare(part).flatten(1)[:, kept] for part in parts]).double().numpy()


def missing_unit(data: RunData) -> Iterator[str]:
    """Samples that look dependent on each other while the experiment says nothing about it."""
    dataset = data.dataset
    if data.experiment.data.unit is not None:
        return
    if columns := _unit_columns(data):
        count = len(np.unique(dataset.columns[columns[0]]))
        found = f"samples share the {count:,} values of {listed(list(map(repr, columns)))}, as those of one unit do"
        remedy = f"Set data.unit = {columns[0]!r}"
    elif dataset.unit is None and (similar := _neighbour_correlation(data)) > _SIMILAR_NEIGHBOURS:
        found = f"samples resemble those before them, as in time or in a recording: the correlation is {similar:.2f}"
        remedy = "Add a column that says which recording, day or week a sample is of, and name it in data.unit"
    else:
        return
    yield (
        f"{found}, and data.unit does not say so. On both sides of a split they make scores too good, and may be taken "
        f"for groups. {remedy}, or data.unit = {dataset.unit or ALL_INDEPENDENT!r} if that is right"
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
    rows = [own for own in data.looked_at.values() if len(own) >= _FEWEST_SAMPLES]
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
