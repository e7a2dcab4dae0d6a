"""What looks wrong with the values of features, whatever their source, and with the classes or numbers to learn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product

import numpy as np
import torch
from numpy.typing import NDArray

from fedstrata.base.quoting import listed, shown
from fedstrata.build.data_warnings.run_data import RunData
from fedstrata.core import evenly_spread
from fedstrata.data.column_roles import CLIENT_COLUMN, SPLIT_COLUMN, number_in_other_writing
from fedstrata.data.dataset import is_number

_Numbers = NDArray[np.float64]
"""What features, or the channels of signals, are in some samples, (samples', features, readings)."""

_NUMBERS_SHARE = 0.8
"""The share of the texts of a column that are numbers from which on the others look like mistakes."""

_TEXTS = 1000
"""The number of texts of a column that are looked at to tell whether it holds numbers."""

_FEWEST_ROWS = 8
"""Clients are compared that have at least so many samples: the values of fewer may lie apart by chance."""

_CLIENTS = 50
"""The number of clients whose values are compared."""

_READINGS = 100_000
"""The largest number of values of a feature among which codes are looked for."""

_FEWEST_CODES = 3
"""A value that stands for a missing one occurs so many times."""

_MOST_CODES = 3
"""So many values at either end of a feature may stand for missing ones."""

_CODE_DISTANCE = 3.0
"""The distance of such a value from all others, as a multiple of their range; of 0 and 1 it is ten times as large."""

_NUMBERED = 1.1
"""Whole numbers that are all different number the rows if they lie in so many times as many."""

_UNIX_TIMES = (1e9, 2.2e9)
"""Seconds since 1970 from 2001 to 2039."""

_FAR = 10.0
"""The root mean square of the targets from which on a network that begins near 0 has far to go."""


def sampled(data: RunData) -> Iterator[str]:
    """That only some samples of large data were looked at."""
    count, total = (sum(map(len, rows)) for rows in (data.looked_at.values(), data.held))
    if count < total:
        yield (
            f"{count:,} of {total:,} samples, which the seed draws, were checked for codes, times and copies. Others "
            "may have them as well: look at them yourself"
        )


def numbers_among_texts(data: RunData) -> Iterator[str]:
    """Columns of texts, most of which are numbers: a dash or a thousands separator makes texts of all of them."""
    dataset = data.dataset
    if data.experiment.data.inputs is not None or not dataset.feature_names:
        return
    known = (data.client_column, dataset.unit, CLIENT_COLUMN, SPLIT_COLUMN)
    columns = {name: values for name, values in dataset.columns.items() if name not in known}
    columns |= {name: np.array(texts) for name, texts in zip(dataset.feature_names, dataset.texts, strict=False)}
    for name, values in columns.items():
        if values.dtype.kind != "U":
            continue
        texts = [text for text in values[evenly_spread(len(values), _TEXTS).numpy()].tolist() if text]
        numbers = sum(is_number(text) or number_in_other_writing(text) for text in texts)
        others = [text for text in np.unique(values).tolist() if text and not is_number(text)]
        if others and numbers >= _NUMBERS_SHARE * len(texts):
            read = "has an input for each of its texts" if name in dataset.feature_names else "is no input"
            yield (
                f"the column {name!r} {read}, most of which look like numbers: {shown(others[0])} is none. Write numbers "
                "as 1234.5 or -2, leave these rows out, or list the features in data.inputs"
            )


def telling_features(data: RunData) -> Iterator[str]:
    """Features that tell which client, row or time a sample is of: numbers of sites and rows, and times."""
    rows = [own for own in data.looked_at.values() if len(own) >= _FEWEST_ROWS] if data.has_features else []
    clients = [data.numbers(own) for own in rows]
    if not clients:
        return
    everything = np.concatenate(clients)
    found = _rise(clients) | _are_times(everything) | _number_rows(everything, sum(map(len, data.held)))
    if data.experiment.partition.get("scheme") == "natural":
        found |= _name_clients(clients[:_CLIENTS])
    if found.any():
        yield (
            f"{data.features(np.flatnonzero(found).tolist())} may be a time, a running number or that of a site: it "
            "tells which client or row a sample is of, so that other samples have values that no model has seen, and "
            "a split test may find groups that mean nothing. Leave it out of the inputs, unless it is a measurement"
        )


def _rise(clients: Sequence[_Numbers]) -> NDArray[np.bool_]:
    """Which features only rise from row to row of every client, or inside every signal, (features,)."""
    steps = [np.diff(values, axis=2 if values.shape[2] > 1 else 0) for values in clients]
    rising = [(each >= 0).all(axis=(0, 2)) & (each > 0).any(axis=(0, 2)) for each in steps]
    return np.logical_and.reduce(rising)


def _are_times(values: _Numbers) -> NDArray[np.bool_]:
    """Which features are seconds or milliseconds since 1970, (features,)."""
    least, most = np.nanmin(values, axis=(0, 2)), np.nanmax(values, axis=(0, 2))
    seconds = (least > _UNIX_TIMES[0]) & (most < _UNIX_TIMES[1])
    milliseconds = (least > 1000 * _UNIX_TIMES[0]) & (most < 1000 * _UNIX_TIMES[1])
    varies: NDArray[np.bool_] = most > least
    return varies & (seconds | milliseconds)


def _number_rows(values: _Numbers, samples: int) -> NDArray[np.bool_]:
    """Which features are whole numbers that no two rows share, and not many more than there are rows, (features,)."""
    ordered = np.sort(values[:, :, 0], axis=0)
    whole = (ordered == np.round(ordered)).all(axis=0) & (values.shape[2] == 1)
    distinct: NDArray[np.bool_] = (np.diff(ordered, axis=0) > 0).all(axis=0)
    return distinct & whole & (ordered[-1] - ordered[0] < _NUMBERED * samples)


def _name_clients(clients: Sequence[_Numbers]) -> NDArray[np.bool_]:
    """Which features have ranges, or few values, of which no two clients have any in common, (features,)."""
    found = np.zeros(clients[0].shape[1], dtype=np.bool_)
    for place in range(len(found)):
        levels = [np.unique(values[:, place][np.isfinite(values[:, place])]) for values in clients]
        if not all(map(len, levels)):
            continue
        ranges = sorted((own[0], own[-1]) for own in levels)
        apart = all(most < least for (_, most), (least, _) in pairwise(ranges))
        few = sum(map(len, levels)) == len(np.unique(np.concatenate(levels))) <= 2 * len(clients)
        # The ranges of two clients may lie apart because the clients differ.
        found[place] = (len(clients) > 2 and apart) or (len(clients) > 1 and few)
    return found


def missing_codes(data: RunData) -> Iterator[str]:
    """Features with a value far from all others, again and again: -9999 stands for a value that is missing."""
    if not data.has_features:
        return
    values = data.numbers(np.concatenate(list(data.looked_at.values())))
    found = []
    for place in range(values.shape[1]):
        own = values[:, place][np.isfinite(values[:, place])]
        own = own[evenly_spread(len(own), _READINGS).numpy()]
        if len(own) and (codes := _codes(own)):
            counts = " and ".join(f"{code:g} ({(own == code).sum():,} times)" for code in codes)
            found.append(f"{data.features([place])} has {counts}")
    if found:
        yield (
            f"values far from all others may stand for missing ones: {listed(found)}. Fill them in or leave these rows "
            "out, as scaling makes all other values nearly equal"
        )


def _codes(values: NDArray[np.float64]) -> list[float]:
    """Return the values that occur again and again far from the rest, the most that can be set apart from it."""
    levels, counts = np.unique(values, return_counts=True)
    best: list[float] = []
    for low, high in product(range(_MOST_CODES + 1), repeat=2):
        rest = levels[low : len(levels) - high]
        outside = (np.r_[:low, len(levels) - high : len(levels)]).astype(np.int64)
        if len(rest) < 2 or len(outside) <= len(best):
            continue
        distance = np.abs(levels[outside, None] - rest[[0, -1]]).min()
        needed = _CODE_DISTANCE if len(rest) > 2 else 10 * _CODE_DISTANCE
        if counts[outside].min() >= _FEWEST_CODES and distance > needed * (rest[-1] - rest[0]):
            best = levels[outside].tolist()
    return best


def classes_without_samples(data: RunData) -> Iterator[str]:
    """One class alone, and whole numbers that leave some out: 1 and 2 are taken for two of the classes 0, 1 and 2."""
    present = len(np.unique(data.labels))
    unnamed = not data.dataset.class_names and present < data.dataset.classes
    if data.dataset.targets is None and (unnamed or present == 1):
        yield (
            f"only {present} of {data.dataset.classes:,} classes have samples, the first of them "
            f"{data.class_names[data.labels.min()]}. Number classes from 0 without gaps, or name their column in "
            "data.label"
        )


def far_targets(data: RunData) -> Iterator[str]:
    """Numbers to learn in a unit that makes them large. Inputs are normalised, and targets are not."""
    targets = data.dataset.targets
    if targets is None or not targets.is_floating_point() or data.experiment.local.loss == "bce":
        return
    spread, middle = torch.std_mean(targets.double(), correction=0)
    if spread.hypot(middle) > _FAR:
        yield (
            f"the numbers to learn have the mean {float(middle):.4g} and the standard deviation {float(spread):.4g}. "
            "Unlike inputs they are not normalised: training diverges or is slow. Subtract the one, divide by the other"
        )
