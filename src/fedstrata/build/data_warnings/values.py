"""What looks wrong with the values of features, whatever their source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product

import numpy as np
from numpy.typing import NDArray

from fedstrata.base.quoting import listed, shown
from fedstrata.build.data_warnings.run_data import RunData
from fedstrata.core import evenly_spread
from fedstrata.data.column_roles import CLIENT_COLUMN, SPLIT_COLUMN, number_in_other_writing
from fedstrata.data.dataset import is_number

_Numbers = NDArray[np.float64]

_NUMBERS_SHARE = 0.8
"""The share of the texts of a column that are numbers from which on the others look like mistakes."""

_TEXTS = 1000
"""The number of texts of a column that are looked at to tell whether it holds numbers."""

_FEWEST_ROWS = 8
"""Clients are compared that have at least so many samples: the values of fewer may lie apart by chance."""

_FEWEST_CODES = 3
"""A value that stands for a missing one occurs so many times."""

_MOST_CODES = 3
"""So many values at either end of a feature may stand for missing ones."""

_CODE_DISTANCE = 3.0
"""The distance of such a value from all others, as a multiple of their range; of 0 and 1 it is ten times as large."""


def numbers_among_texts(data: RunData) -> Iterator[str]:
    """Columns of texts, most of which are numbers: a dash or a thousands separator makes texts of all of them."""
    dataset = data.dataset
    if data.experiment.data.inputs is not None or not dataset.feature_names:
        return
    roles = (data.client_column, dataset.unit, CLIENT_COLUMN, SPLIT_COLUMN)
    columns = {name: values for name, values in dataset.columns.items() if name not in roles}
    columns |= {name: np.array(texts) for name, texts in zip(dataset.feature_names, dataset.texts, strict=False)}
    for name, values in columns.items():
        if values.dtype.kind != "U":
            continue
        texts = [text for text in values[evenly_spread(len(values), _TEXTS).numpy()].tolist() if text]
        numbers = sum(is_number(text) or number_in_other_writing(text) for text in texts)
        others = [text for text in np.unique(values).tolist() if text and not is_number(text)]
        if others and numbers >= _NUMBERS_SHARE * len(texts):
            yield (
                f"the column {name!r} holds texts, most of which look like numbers: {shown(others[0])} is none. Write "
                "them as 1234.5, leave these rows out, or list the features in data.inputs"
            )


def telling_features(data: RunData) -> Iterator[str]:
    """Features that tell which client or row a sample is of: numbers of sites, running numbers and times."""
    found = []
    for name, clients in data.features():
        values = [own for own in clients if len(own) >= _FEWEST_ROWS]
        if values and (_rises(values) or _names_clients(values)):
            found.append(name)
    if found:
        yield (
            f"{listed(found)} may be a time, a running number or that of a site: it tells which client or row a "
            "sample is of. Leave it out of the inputs, unless it is a measurement"
        )


def _rises(clients: Sequence[_Numbers]) -> bool:
    """Whether a feature, (samples, readings), only rises from row to row of every client, or inside every signal."""
    steps = [np.diff(values, axis=1 if values.shape[1] > 1 else 0) for values in clients]
    return all(bool((each >= 0).all() and (each > 0).any()) for each in steps)


def _names_clients(clients: Sequence[_Numbers]) -> bool:
    """Whether no two clients have values of a feature in common: it has few values, or their ranges lie apart."""
    levels = [np.unique(values[np.isfinite(values)]) for values in clients]
    if len(clients) < 2 or not all(map(len, levels)):
        return False
    count = sum(map(len, levels))
    few = count <= 2 * len(clients) and count == len(np.unique(np.concatenate(levels)))
    ranges = sorted((own[0], own[-1]) for own in levels)
    # The ranges of two clients may lie apart because the clients differ.
    return few or (len(clients) > 2 and all(most < least for (_, most), (least, _) in pairwise(ranges)))


def missing_codes(data: RunData) -> Iterator[str]:
    """Features with a value far from all others, again and again: -9999 stands for a value that is missing."""
    found = []
    for name, clients in data.features():
        values = np.concatenate(clients).ravel()
        values = values[np.isfinite(values)]
        if codes := _codes(values):
            counts = " and ".join(f"{code:g} ({(values == code).sum():,} times)" for code in codes)
            found.append(f"{name} has {counts}")
    if found:
        yield f"values far from all others may stand for missing ones: {listed(found)}. Fill them in, or leave rows out"


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
