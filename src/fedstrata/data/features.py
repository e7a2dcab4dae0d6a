"""Make samples of columns of numbers: some are features, one holds the classes, and every other one is kept.

Columns become arrays as a ``.npz`` file has them: ``x`` holds the features, ``y`` the classes, and every other column
is a further array.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedstrata.base.errors import DataError, RowError
from fedstrata.base.lazy_torch import torch
from fedstrata.data.column_roles import label_column, may_be_feature
from fedstrata.data.dataset import Dataset, finite_float32
from fedstrata.data.mapped import Inputs
from fedstrata.data.npz import RESERVED_NAMES, dataset_of_arrays, refuse_missing_classes
from fedstrata.data.options import ReadOptions


def dataset_of_columns(
    name: str,
    columns: Mapping[str, np.ndarray],
    options: ReadOptions,
    place: str,
) -> Dataset:
    """Make a data set of columns of numbers, of which some are features and one holds the classes.

    Args:
        name: The name of the data set.
        columns: The columns by their names, (samples,) each.
        options: The columns that are inputs and classes.
        place: Where the columns come from, for messages.

    Raises:
        DataError: When a column is missing, or holds something that does not fit.
    """
    options.refuse_windows(place)
    label = label_column(columns, options, place)
    features = feature_columns(columns, options, place)
    inputs = torch.from_numpy(finite_features(columns, features, place))
    rest = {key: values for key, values in columns.items() if key not in features}
    return dataset_of_features(name, features, inputs, rest, label, place)


def finite_features(
    columns: Mapping[str, np.ndarray], features: Sequence[str], place: str, first_row: int = 0
) -> np.ndarray:
    """Put features beside each other, (rows, features) float32.

    Args:
        columns: The columns by their names, (rows,) each.
        features: The columns that are features.
        place: Where the columns come from, for messages.
        first_row: The number of their first row.

    Raises:
        DataError: When a number is missing or not finite.
    """
    for feature in features:
        missing = np.flatnonzero(~np.isfinite(columns[feature].astype(np.float64)))
        if len(missing):
            others = f", and so do {len(missing) - 1} others" if len(missing) > 1 else ""
            raise RowError(
                place,
                first_row + int(missing[0]),
                f"of column {feature!r} holds no finite number{others}; fill it in, leave the row out, or name other "
                "columns in data.inputs",
            )
    numbers = [
        finite_float32(columns[feature], place, f"column {feature!r}", first_row)[:, None] for feature in features
    ]
    return np.concatenate(numbers, axis=1)


def dataset_of_features(
    name: str,
    features: Sequence[str],
    inputs: Inputs,
    columns: Mapping[str, np.ndarray],
    label: str,
    place: str,
    other_labels: np.ndarray | None = None,
) -> Dataset:
    """Make a data set of features, and of the other columns of their table.

    Args:
        name: The name of the data set.
        features: The names of the features.
        inputs: The features, (samples, features) float32.
        columns: The other columns by their names, (samples,) each.
        label: The column of the classes.
        place: Where the columns come from, for messages.
        other_labels: The classes of the samples of the other split, so that a class means the same in both.

    Raises:
        DataError: When a column holds something that does not fit.
    """
    # The arrays below are called y, and not as the column is.
    called = f"column {label!r}"
    refuse_missing_classes(columns[label], place, called)
    arrays = {"y": _as_classes(columns[label])}
    if other_labels is not None:
        refuse_missing_classes(other_labels, f"{place}, the other split", called)
        arrays["y_test"] = _as_classes(other_labels)
    # Arrays of these names would be taken for inputs, classes or test samples.
    further = {
        key: values
        for key, values in columns.items()
        if key != label and key not in RESERVED_NAMES and not key.endswith("_test")
    }
    dataset = dataset_of_arrays(name, arrays | further, "train", place, inputs, called)
    return replace(dataset, feature_names=tuple(features))


def _as_classes(values: np.ndarray) -> np.ndarray:
    """Return a column of classes; false and true are classes 0 and 1."""
    return values.astype(np.int64) if values.dtype.kind == "b" else values


def feature_columns(columns: Mapping[str, np.ndarray], options: ReadOptions, place: str) -> tuple[str, ...]:
    """Return the names of the columns that are the features of a sample, in their order.

    Raises:
        DataError: When there is none, or a column that is named holds no numbers.
    """
    label = label_column(columns, options, place)
    numbers = [name for name, values in columns.items() if values.dtype.kind in "iufb"]
    if options.inputs:
        for name in options.inputs:
            if name not in numbers or name == label:
                found = f"no column {name!r}, only {', '.join(columns)}"
                if name in columns:
                    found = f"classes in {name!r}" if name == label else f"texts in {name!r}"
                raise DataError(f"data.inputs: expected columns of numbers, {place} has {found}")
        return options.inputs
    features = tuple(name for name in numbers if name != label and may_be_feature(name, options))
    if not features:
        raise DataError(
            f"{place}: expected columns of numbers beside {label!r}, found {', '.join(columns)}; name the features in "
            "data.inputs"
        )
    return features
