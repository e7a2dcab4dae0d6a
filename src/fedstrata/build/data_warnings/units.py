"""Samples that depend on each other, while the experiment says nothing about it.

Rows of a table in the order of time resemble the rows before them, and so do windows of one recording. The measure is
the autocorrelation at lag 1 (Box, Jenkins, "Time series analysis: forecasting and control", 1970).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedstrata.build.data_warnings.run_data import RunData, first_few
from fedstrata.config.tables import ALL_INDEPENDENT
from fedstrata.data.column_roles import looks_like_unit

_SIMILAR_NEIGHBOURS = 0.4
"""The correlation of features with themselves one sample before from which on there is a warning.

That of means of windows is 0.5 where half of each window is in the next one, even of noise.
"""

_FEWEST_ROWS = 40
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
    rows = [own for own in data.looked_at.values() if len(own) >= _FEWEST_ROWS]
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
