"""What looks wrong with the features of a user's own table, and with the classes or numbers that networks learn."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from fedstrata.base.quoting import shown
from fedstrata.build.data_warnings.run_data import RunData, samples_of
from fedstrata.core import evenly_spread
from fedstrata.data.column_roles import CLIENT_COLUMN, SPLIT_COLUMN
from fedstrata.data.dataset import is_number

_NUMBERS_SHARE = 0.8
"""The share of the texts of a column that are numbers from which on the others look like mistakes."""

_TEXTS = 1000
"""The number of texts of a column that are looked at to tell whether it holds numbers."""

_COMPARED_CLIENTS = 50
"""The number of clients whose features are compared."""

_COMPARED_ROWS = 64
"""The number of samples of each of these clients."""

_FEWEST_CLIENTS = 3
"""Features are compared between at least so many clients: their values may else lie apart by chance."""

_FEWEST_ROWS = 8
"""Clients are compared that have at least so many samples: the values of fewer may lie apart by chance."""

_LOOKED_AT = 10_000
"""The number of rows in which codes for missing values are looked for, and times."""

_FEWEST_CODES = 3
"""A value that stands for a missing one occurs so many times, beside as many different other ones."""

_CODE_DISTANCE = 3.0
"""Its distance from all others is more than so many times the range of these."""


def numbers_among_texts(data: RunData) -> Iterator[str]:
    """Columns of texts, most of which are numbers: a single dash keeps a measurement from being a feature."""
    dataset = data.dataset
    if data.experiment.data.inputs is not None or not dataset.feature_names:
        return
    known = (data.client_column, dataset.unit, CLIENT_COLUMN, SPLIT_COLUMN)
    for name, values in dataset.columns.items():
        if name in known or values.dtype.kind != "U":
            continue
        texts = [text for text in values[evenly_spread(len(values), _TEXTS).numpy()].tolist() if text]
        if texts and sum(map(_has_decimal_comma, texts)) >= _NUMBERS_SHARE * len(texts):
            yield (
                f"the column {name!r} is no input: its values look like numbers with a decimal comma, such as "
                f"{shown(texts[0])}. Write them with a point"
            )
        elif texts and sum(map(is_number, texts)) >= _NUMBERS_SHARE * len(texts):
            others = [text for text in np.unique(values).tolist() if text and not is_number(text)]
            if others:
                count = int(np.isin(values, others).sum())
                are = "is no number" if count == 1 else "are no numbers"
                yield (
                    f"the column {name!r} is no input: {count:,} of its {len(values):,} values {are}, such as "
                    f"{shown(others[0])}. Correct them or leave these rows out, or list the features in data.inputs"
                )


def _has_decimal_comma(text: str) -> bool:
    """Return whether a text is no number, and would be one with a point for its comma."""
    return text.count(",") == 1 and not is_number(text) and is_number(text.replace(",", "."))


def site_numbers(data: RunData) -> Iterator[str]:
    """Features whose every value belongs to one client, as the number of a site, or of a row of a sorted table."""
    for name in _site_numbers(data):
        yield (
            f"no two clients have values of the feature {name!r} in common, as if it were the number of a site or of a "
            "row: it tells which client a sample is from, and a split test may find groups that mean nothing. Leave it "
            "out of data.inputs, unless it is a measurement"
        )


def _site_numbers(data: RunData) -> list[str]:
    """The names of these features."""
    rows = _compared_rows(data)
    if data.experiment.partition.get("scheme") != "natural" or len(rows) < _FEWEST_CLIENTS:
        return []
    values = [_values(data, own[evenly_spread(len(own), _COMPARED_ROWS).numpy()]) for own in rows]
    found = []
    for place, name in enumerate(data.dataset.feature_names):
        ranges = sorted((float(own[:, place].min()), float(own[:, place].max())) for own in values)
        if all(most < least for (_, most), (least, _) in pairwise(ranges)):
            found.append(name)
    return found


def codes_among_numbers(data: RunData) -> Iterator[str]:
    """Features with one value far from all others, again and again: -9999 stands for a value that is missing."""
    if not data.dataset.feature_names:
        return
    rows = np.sort(np.concatenate(samples_of(data.partition)))
    values = _values(data, rows[evenly_spread(len(rows), _LOOKED_AT).numpy()])
    for place, name in enumerate(data.dataset.feature_names):
        own = values[:, place]
        for code in (own.min(), own.max()):
            others = own[own != code]
            times = len(own) - len(others)
            if times < _FEWEST_CODES or len(np.unique(others)) < _FEWEST_CODES:
                continue
            nearest = np.abs(others - code).min()
            if nearest > _CODE_DISTANCE * (others.max() - others.min()):
                yield (
                    f"{times:,} of {len(own):,} values of the feature {name!r} that were looked at are {code:g}, far "
                    "from all others, as if it stood for a missing value. Fill them in, or leave these rows out: the "
                    "feature is scaled by its mean and standard deviation, so the others become nearly equal"
                )


def times_among_features(data: RunData) -> Iterator[str]:
    """Features that only rise from row to row of every client, as a time does, but for those that are named already."""
    rows = _compared_rows(data)
    rising = set(data.dataset.feature_names if rows else ()) - set(_site_numbers(data))
    for own in rows:
        values = _values(data, own[:_LOOKED_AT])
        rises = (np.diff(values, axis=0) >= 0).all(axis=0) & (values[-1] > values[0])
        rising &= {name for name, only in zip(data.dataset.feature_names, rises, strict=True) if only}
    for name in data.dataset.feature_names:
        if name in rising:
            yield (
                f"the feature {name!r} only rises from row to row of every client, as a time or a counter does: rows "
                "of a later time have values that no model has seen. Leave it out of data.inputs, or use the hour of "
                "the day or the like"
            )


def _compared_rows(data: RunData) -> list[NDArray[np.int64]]:
    """Return the samples of each client whose features are compared; none where samples have no features."""
    rows = samples_of(data.partition) if data.dataset.feature_names else []
    return [own for own in rows if len(own) >= _FEWEST_ROWS][:_COMPARED_CLIENTS]


def _values(data: RunData, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the features of some samples, (samples', features)."""
    return data.dataset.gather(torch.from_numpy(rows)).double().numpy()


_FAR = 10.0
"""The root mean square of the targets from which on a network that begins near 0 has far to go."""


def classes_without_samples(data: RunData) -> Iterator[str]:
    """One class alone, and whole numbers that leave some out: 1 and 2 are taken for two of the classes 0, 1 and 2."""
    dataset = data.dataset
    if dataset.targets is not None:
        return
    counts = torch.bincount(dataset.labels, minlength=dataset.classes)
    present = torch.nonzero(counts).flatten().tolist()
    if len(present) == 1:
        name = dataset.class_names[present[0]] if dataset.class_names else str(present[0])
        yield (
            f"all samples are of one class, {shown(name)}: there is nothing to learn, and every accuracy is 100 %. "
            "Name the column of the classes in data.label"
        )
    elif not dataset.class_names and len(present) < dataset.classes:
        yield (
            f"{dataset.classes - len(present):,} of the {dataset.classes:,} classes have no sample, such as "
            f"{int((counts == 0).nonzero()[0])}: whole numbers are taken for classes from 0 on. Number them without "
            "gaps, or give them names"
        )


def far_targets(data: RunData) -> Iterator[str]:
    """Numbers to learn in a unit that makes them large. Inputs are normalised, and targets are not."""
    targets = data.dataset.targets
    if targets is None or not targets.is_floating_point() or data.experiment.local.loss == "bce":
        return
    numbers = targets.double()
    if float(numbers.square().mean().sqrt()) > _FAR:
        spread, middle = torch.std_mean(numbers, correction=0)
        yield (
            f"the numbers to learn have the mean {float(middle):.4g} and the standard deviation {float(spread):.4g}. "
            "Unlike inputs they are not normalised: training diverges or takes very many rounds, and groups are not "
            "found. Subtract the mean from them and divide them by the standard deviation"
        )
