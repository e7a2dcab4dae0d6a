"""What looks wrong with the features of a user's own table, and with the classes or numbers that networks learn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedstrata.base.quoting import shown
from fedstrata.build.data_warnings.names import missing_value_names, similar_names
from fedstrata.config import Experiment
from fedstrata.data import DATASETS, Dataset
from fedstrata.data.column_roles import CLIENT_COLUMN, SPLIT_COLUMN
from fedstrata.data.dataset import is_number
from fedstrata.partition import Partition

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


def feature_warnings(experiment: Experiment, dataset: Dataset, partition: Partition) -> Iterator[str]:
    """Yield what looks wrong with the features. Known data sets are what they are.

    Args:
        experiment: The experiment.
        dataset: The samples of all clients.
        partition: The samples of each client.
    """
    if experiment.data.name in DATASETS or not dataset.feature_names:
        return
    yield from _numbers_among_texts(experiment, dataset)
    site_numbers = _site_numbers(experiment, dataset, partition)
    yield from map(_about_site_number, site_numbers)
    yield from _codes_among_numbers(dataset, partition)
    yield from _times_among_features(dataset, partition, site_numbers)


def _numbers_among_texts(experiment: Experiment, dataset: Dataset) -> Iterator[str]:
    """Columns of texts, most of which are numbers: a single dash keeps a measurement from being a feature."""
    if experiment.data.inputs is not None:
        return
    known = (experiment.partition.get("column"), dataset.unit, CLIENT_COLUMN, SPLIT_COLUMN)
    for name, values in dataset.columns.items():
        if name in known or values.dtype.kind != "U":
            continue
        looked_at = values[np.unique(np.linspace(0, len(values) - 1, _TEXTS).astype(np.int64))]
        texts = [text for text in looked_at.tolist() if text]
        if texts and sum(map(_has_decimal_comma, texts)) >= _NUMBERS_SHARE * len(texts):
            yield (
                f"the column {name!r} is no input: its values look like numbers with a decimal comma, such as "
                f"{shown(texts[0])}. Write them with a point"
            )
            continue
        if not texts or sum(map(is_number, texts)) < _NUMBERS_SHARE * len(texts):
            continue
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


def _site_numbers(experiment: Experiment, dataset: Dataset, partition: Partition) -> list[str]:
    """Features whose every value belongs to one client, as the number of a site, or of a row of a sorted table."""
    rows = _rows_of_clients(partition)
    if experiment.partition.get("scheme") != "natural" or len(rows) < _FEWEST_CLIENTS:
        return []
    values = [dataset.gather(torch.from_numpy(_some_of(own))).numpy() for own in rows]
    found = []
    for place, name in enumerate(dataset.feature_names):
        ranges = sorted((float(own[:, place].min()), float(own[:, place].max())) for own in values)
        if all(most < least for (_, most), (least, _) in pairwise(ranges)):
            found.append(name)
    return found


def _about_site_number(name: str) -> str:
    """What is said of such a feature."""
    return (
        f"no two clients have values of the feature {name!r} in common, as if it were the number of a site or of a "
        "row: it tells which client a sample is from, and a split test may find groups that mean nothing. Leave it "
        "out of data.inputs, unless it is a measurement"
    )


def _codes_among_numbers(dataset: Dataset, partition: Partition) -> Iterator[str]:
    """Features with one value far from all others, again and again: -9999 stands for a value that is missing."""
    rows = np.concatenate([*partition.train, *partition.test])
    values = dataset.gather(torch.from_numpy(_some_of(np.sort(rows), _LOOKED_AT))).double().numpy()
    for place, name in enumerate(dataset.feature_names):
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


def _times_among_features(dataset: Dataset, partition: Partition, known: Sequence[str]) -> Iterator[str]:
    """Features that only rise from row to row of every client, as a time does, but for those that are named already."""
    rows = list(map(np.sort, _rows_of_clients(partition)))
    if not rows:
        return
    rises = np.ones(len(dataset.feature_names), np.bool_)
    for own in rows:
        values = dataset.gather(torch.from_numpy(own[:_LOOKED_AT].astype(np.int64))).double().numpy()
        rises &= (np.diff(values, axis=0) >= 0).all(axis=0) & (values[-1] > values[0])
    for name in (name for name, rising in zip(dataset.feature_names, rises, strict=True) if rising):
        if name in known:
            continue
        yield (
            f"the feature {name!r} only rises from row to row of every client, as a time or a "
            "counter does: rows of a later time have values that no model has seen. Leave it out of data.inputs, or "
            "use the hour of the day or the like"
        )


def _rows_of_clients(partition: Partition) -> list[NDArray[Any]]:
    """Return the samples of each client that is compared, to train and to test on."""
    rows = [np.concatenate(both) for both in zip(partition.train, partition.test, strict=True)]
    return [own for own in rows if len(own) >= _FEWEST_ROWS][:_COMPARED_CLIENTS]


def _some_of(rows: NDArray[Any], most: int = _COMPARED_ROWS) -> NDArray[np.int64]:
    """Return some of the rows, from the first to the last."""
    return rows[np.unique(np.linspace(0, len(rows) - 1, most).astype(np.int64))].astype(np.int64)


_FAR = 10.0
"""The root mean square of the targets from which on a network that begins near 0 has far to go."""


def target_warnings(experiment: Experiment, dataset: Dataset) -> Iterator[str]:
    """Yield what looks wrong with the targets. Known data sets are what they are.

    Args:
        experiment: The experiment.
        dataset: The samples of all clients.
    """
    if experiment.data.name in DATASETS:
        return
    yield from similar_names("class", dataset.class_names)
    yield from missing_value_names("class", dataset.class_names)
    yield from _classes_without_samples(dataset)
    yield from _far_targets(experiment, dataset)


def _classes_without_samples(dataset: Dataset) -> Iterator[str]:
    """One class alone, and whole numbers that leave some out: 1 and 2 are taken for two of the classes 0, 1 and 2."""
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
        empty = dataset.classes - len(present)
        yield (
            f"{empty:,} of the {dataset.classes:,} classes have no sample, such as "
            f"{next(label for label in range(dataset.classes) if not counts[label])}: whole numbers are taken for "
            "classes from 0 on. Number them without gaps, or give them names"
        )


def _far_targets(experiment: Experiment, dataset: Dataset) -> Iterator[str]:
    """Numbers to learn in a unit that makes them large. Inputs are normalised, and targets are not."""
    targets = dataset.targets
    if targets is None or not targets.is_floating_point() or experiment.local.loss == "bce":
        return
    numbers = targets.double()
    if float(numbers.square().mean().sqrt()) > _FAR:
        spread, middle = torch.std_mean(numbers, correction=0)
        yield (
            f"the numbers to learn have the mean {float(middle):.4g} and the standard deviation {float(spread):.4g}. "
            "Unlike inputs they are not normalised: training diverges or takes very many rounds, and groups are not "
            "found. Subtract the mean from them and divide them by the standard deviation"
        )
