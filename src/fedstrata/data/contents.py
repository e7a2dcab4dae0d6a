"""What the files of a data set hold beside the samples: columns, clients and test samples. Nothing imports torch.

An experiment is checked with these before torch is imported and before any sample is read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstrata.data.dataset import Split
from fedstrata.data.locate import Location
from fedstrata.data.npz import npz_column, npz_column_names
from fedstrata.errors import DataError
from fedstrata.quoting import shown

SPLIT_COLUMN = "split"
"""The column that says of each sample whether it is for training or for testing."""

_SPLITS = ("train", "test")


def column_names(location: Location, split: Split = "train") -> tuple[str, ...]:
    """Return the names of the columns of a split that hold one value per sample; none where there is no such split."""
    files = location.test if split == "test" else location.train
    if not files:
        return ()
    if files[0].suffix == ".npz":
        return npz_column_names(files[0], split)
    from fedstrata.data.parquet_columns import scalar_columns

    return tuple(scalar_columns(files[0]))


def read_column(location: Location, column: str, split: Split = "train") -> NDArray[Any]:
    """Read one column of a split, (samples,).

    Raises:
        DataError: When a file or the column is missing or broken.
    """
    files = location.test if split == "test" else location.train
    if files[0].suffix == ".npz":
        return npz_column(files[0], column, split)
    from fedstrata.data.parquet_columns import read_scalar_column

    return read_scalar_column(files, column)


def has_own_test(location: Location) -> bool:
    """Return whether the data set has test samples of its own: files, arrays, or rows of its column ``split``.

    Raises:
        DataError: When a file is broken, or the column ``split`` holds something else than "train" and "test".
    """
    if location.test:
        return True
    if SPLIT_COLUMN not in column_names(location):
        return False
    return bool(is_test(read_column(location, SPLIT_COLUMN), location.name).any())


def is_test(values: NDArray[Any], name: str) -> NDArray[np.bool_]:
    """Read a column ``split``: whether each sample is for testing, (samples,).

    Args:
        values: The column, (samples,).
        name: The name of the data set, for the message.

    Raises:
        DataError: When a value is not "train" or "test".
    """
    strange = [str(value) for value in np.unique(values) if str(value) not in _SPLITS]
    if strange:
        raise DataError(
            f"{name}: column {SPLIT_COLUMN!r} holds {shown(strange[0])}; expected train or test in every row; "
            "give other samples another file, or the column another name"
        )
    found: NDArray[np.bool_] = values == "test"
    return found


def client_values(location: Location, column: str) -> NDArray[Any]:
    """Return the distinct values of a column, ascending: the clients of the partition ``natural``.

    Only samples for training count.

    Raises:
        DataError: When there is no such column.
    """
    names = column_names(location)
    if column not in names:
        known = ", ".join(names) or "no further columns"
        raise DataError(f"partition.column = {shown(column)}: {location.name} has {known}")
    values = read_column(location, column)
    if location.info is None and SPLIT_COLUMN in names:
        values = values[~is_test(read_column(location, SPLIT_COLUMN), location.name)]
    return np.unique(values)
