"""Samples that depend on each other: units that the experiment does not name, or does not keep together.

Rows of a table in the order of time resemble the rows before them: the measure is the autocorrelation at lag 1 (Box,
Jenkins, "Time series analysis: forecasting and control", 1970). Windows of one recording may overlap.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedstrata.build.data_warnings.run_data import RunData, first_few, samples_of
from fedstrata.config.tables import ALL_INDEPENDENT
from fedstrata.core import evenly_spread
from fedstrata.data import Dataset
from fedstrata.data.column_roles import looks_like_unit

_SIMILAR_NEIGHBOURS = 0.5
"""The correlation of features with themselves one row before from which on there is a warning."""


def missing_unit(data: RunData) -> Iterator[str]:
    """Samples that look dependent on each other while the experiment says nothing about it."""
    dataset = data.dataset
    if data.experiment.data.unit is not None:
        return
    why = (
        "Training and test then share such samples, scores come out too good, and a split test finds groups that "
        "are not there"
    )
    columns = _unit_columns(data)
    if columns:
        names = " and ".join(repr(name) for name in columns)
        unit = columns[0]
        count = len(np.unique(dataset.columns[unit]))
        verb = "looks" if len(columns) == 1 else "look"
        state = f"is {dataset.unit!r} by default" if dataset.unit else "is not set"
        otherwise = (
            f"{dataset.unit!r} if only samples of one {dataset.unit} depend on each other"
            if dataset.unit
            else f"{ALL_INDEPENDENT!r} if all samples are independent"
        )
        yield (
            f"the column {names} {verb} like a unit of dependence, and data.unit {state}: {count:,} values of "
            f"{unit} for {len(dataset):,} samples. Samples of one {unit} resemble each other. {why}. Set data.unit = "
            f"{unit!r}, or data.unit = {otherwise}"
        )
    elif dataset.unit is None and windows_overlap(dataset):
        yield (
            "consecutive samples overlap, as windows of one recording do, and data.unit is not set. "
            f"{why}. Add a column with the recording of each sample and name it in data.unit, or set data.unit = "
            f"{ALL_INDEPENDENT!r}"
        )
    elif dataset.unit is None and (similar := neighbour_correlation(data)) > _SIMILAR_NEIGHBOURS:
        yield (
            "the rows of a client resemble the rows before them, as measurements in the order of time do: their "
            f"correlation is {similar:.2f} (the median of the features), and data.unit is not set. {why}. Add a column "
            f"with the day or week of each row and name it in data.unit, or set data.unit = {ALL_INDEPENDENT!r} if all "
            "rows are independent"
        )


def _unit_columns(data: RunData) -> list[str]:
    """Return the columns that look like units of dependence, the coarsest first.

    Every client must have at least two values of it and more samples than values: other columns mark the clients
    themselves, or single samples. Where the reader knows the units, as of recordings, only coarser ones are returned.
    """
    held = samples_of(data.partition)
    units = data.dataset.units
    most = sum(len(own if units is None else np.unique(units[own])) for own in held)
    found = []
    for name, values in data.dataset.columns.items():
        if name != data.client_column and looks_like_unit(name) and values.dtype.kind in "iuU":
            counts = [len(np.unique(values[own])) for own in held]
            if min(counts) > 1 and sum(counts) < most:
                found.append((sum(counts), name))
    return [name for _, name in sorted(found)]


def divided_units(data: RunData) -> Iterator[str]:
    """Units with samples in the training data and in the test data that the user supplied."""
    dataset = data.dataset
    if not data.own_test or dataset.units is None:
        return
    train, test = np.split(dataset.units, [len(dataset) - data.own_test])
    both = np.intersect1d(train, test)
    if len(both):
        yield (
            f"{len(both)} values of data.unit = {dataset.unit!r} are in the training and in the test samples of "
            f"{dataset.name} ({first_few(both)}). Scores come out too good. Move each of them to one side"
        )


def units_of_several_clients(data: RunData) -> Iterator[str]:
    """Units that one client is tested on while another one trains on them: the clients share models."""
    units = data.dataset.units
    if data.own_test or units is None:
        return
    trained, tested = (np.unique(units[np.concatenate(each)]) for each in (data.partition.train, data.partition.test))
    both = np.intersect1d(trained, tested)
    if len(both):
        yield (
            f"{len(both):,} of {len(tested):,} held-out values of data.unit = {data.dataset.unit!r} are in the "
            f"training samples of other clients as well ({first_few(both)}), with whom models are shared. Scores come "
            "out too good. Partition by a column each of whose values has all samples of its units, or supply test "
            "samples of your own"
        )


_CLIENTS = 50
"""The number of clients that are looked at."""

_ROWS = 2000
"""The number of the first rows of each of them."""

_FEWEST_ROWS = 20
"""Clients are looked at that have at least so many rows."""


def neighbour_correlation(data: RunData) -> float:
    """The correlation of a feature with itself one row before, the median over features and the mean over clients.

    Rows are in the order of the data, and what the means of the classes explain is taken out: in a table that is sorted
    by class, rows resemble their neighbours as well.

    Returns:
        From -1 to 1; 0 where samples are no rows of numbers, or too few.
    """
    if data.dataset.inputs.ndim != 2 or not data.dataset.inputs.is_floating_point():
        return 0.0
    rows = [own[:_ROWS] for own in samples_of(data.partition)[:_CLIENTS] if len(own) >= _FEWEST_ROWS]
    if not rows:
        return 0.0
    by_feature = np.mean([_of_client(data.dataset, own) for own in rows], axis=0)
    return float(np.sort(by_feature)[(len(by_feature) - 1) // 2])


def _of_client(dataset: Dataset, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """The autocorrelation of each feature at lag 1 in some rows, (features,); 0 for a constant one."""
    places = torch.from_numpy(rows)
    values = dataset.gather(places).double().numpy()
    labels = dataset.labels[places].numpy()
    for label in np.unique(labels):
        values[labels == label] -= values[labels == label].mean(axis=0)
    power = np.square(values).sum(axis=0)
    correlation: NDArray[np.float64] = (values[1:] * values[:-1]).sum(axis=0) / np.maximum(power, 1e-30)
    return correlation


_PAIRS = 256
"""The number of consecutive windows that are looked at for an overlap."""

_SHARED_READINGS = 4
"""The fewest equal readings of two windows that count as an overlap; fewer may be chance."""

_OVERLAP_SHARE = 0.2
"""The share of consecutive windows that overlap from which on there is a warning."""


def windows_overlap(dataset: Dataset) -> bool:
    """Return whether many consecutive samples are windows that share readings at their ends.

    Only signals are looked at: inputs of (samples, channels, time) float32.
    """
    inputs = dataset.inputs
    if inputs.ndim != 3 or not inputs.is_floating_point() or len(inputs) < 3 or inputs.shape[2] < 8:
        return False
    pairs = evenly_spread(len(inputs) - 1, _PAIRS).tolist()
    overlaps = [_overlap(inputs[pair].numpy(), inputs[pair + 1].numpy()) for pair in pairs]
    return float(np.mean(overlaps)) >= _OVERLAP_SHARE


def _overlap(window: NDArray[Any], after: NDArray[Any]) -> bool:
    """Return whether a window, (channels, time), ends with readings that the window after it begins with."""
    length = window.shape[1]
    # A constant signal equals itself at every shift.
    if not (window[:, -_SHARED_READINGS:].std(axis=1) > 0).any():
        return False
    steps = np.arange(1, length - _SHARED_READINGS + 1)
    # The first readings of one channel rule out nearly all steps.
    for place in range(_SHARED_READINGS):
        steps = steps[window[0, steps + place] == after[0, place]]
    return any(np.array_equal(window[:, step:], after[:, : length - step]) for step in steps)
