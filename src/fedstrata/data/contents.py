"""What the files of a data set hold beside the samples: columns, clients and test samples. Nothing imports torch.

An experiment is checked with these before torch is imported and before any sample is read.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstrata.base.errors import DataError
from fedstrata.base.quoting import shown
from fedstrata.data import memory
from fedstrata.data.column_roles import SPLIT_COLUMN
from fedstrata.data.hub import hub_tables
from fedstrata.data.locate_own import client_of
from fedstrata.data.location import Location, ending_of
from fedstrata.data.npz import npz_column, npz_column_names
from fedstrata.data.parts import Part, refuse_no_rows
from fedstrata.data.split_column import is_test


def column_names(location: Location) -> tuple[str, ...]:
    """Return the names of the columns that hold one value per sample for training."""
    if location.kind == "memory":
        return memory.column_names(location.name)
    if location.kind == "hub":
        return tuple(hub_tables(location.name)["train"].column_names)
    if not location.train:
        return ()
    own: tuple[str, ...] = ()
    if location.kind != "images":
        read_names = npz_column_names if _file_kind(location) == "npz" else table_columns
        own = read_names(location.train[0])
    return (*own, location.client_column) if location.client_column else own


def read_column(location: Location, column: str) -> NDArray[Any]:
    """Read one column of the samples for training, (samples,).

    Raises:
        DataError: When a file or the column is missing or broken.
    """
    if location.kind == "memory":
        return memory.read_column(location.name, column)
    if location.kind == "hub":
        return Part(None, None, None, hub_tables(location.name)["train"], location.name).column(column)
    if column == location.client_column:
        # How many samples each client has is known later.
        return np.unique([client_of(file, location) for file in location.train])
    if _file_kind(location) == "npz":
        return np.concatenate([npz_column(file, column, "train") for file in location.train])
    from fedstrata.data.csv_files import read_csv
    from fedstrata.data.parquet_columns import read_scalar_column, to_numpy

    if ending_of(location.train[0]) == ".csv":
        tables = [read_csv(file, [column], codes=column.__eq__) for file in location.train]
        return np.concatenate([to_numpy(table[column].combine_chunks()) for table in tables])
    return read_scalar_column(location.train, column)


def _file_kind(location: Location) -> str:
    """Return the kind of the files, each of which may hold the data of a client."""
    return "npz" if ending_of(location.train[0]) == ".npz" else location.kind


def table_columns(file: Path) -> tuple[str, ...]:
    """Return the names of the columns of a CSV or Parquet file that hold one value per row."""
    from fedstrata.data.csv_files import csv_columns
    from fedstrata.data.parquet_columns import scalar_columns

    return csv_columns(file) if ending_of(file) == ".csv" else tuple(scalar_columns(file))


def has_own_test(location: Location) -> bool:
    """Return whether the data set has test samples of its own: files, arrays, or rows of its column ``split``.

    Raises:
        DataError: When a file is broken, or the column ``split`` holds something else than "train" and "test".
    """
    if location.test or (location.kind == "hub" and "test" in hub_tables(location.name)):
        return True
    if SPLIT_COLUMN not in column_names(location):
        return False
    return bool(_marked_as_test(location).any())


def client_values(location: Location, column: str) -> NDArray[Any]:
    """Return the distinct values of a column, ascending: the clients of the partition ``natural``.

    Only samples for training count.

    Raises:
        DataError: When there is no such column, or there are no samples.
    """
    names = column_names(location)
    if column not in names:
        known = ", ".join(names) or "no further columns"
        raise DataError(f"partition.column = {shown(column)}: {location.name} has {known}")
    values = read_column(location, column)
    refuse_no_rows(len(values), location.name)
    if location.info is None and SPLIT_COLUMN in names and column != location.client_column:
        values = values[~_marked_as_test(location)]
    return np.unique(values)


def _marked_as_test(location: Location) -> NDArray[np.bool_]:
    """Read the column ``split``: whether each sample is for testing, (samples,). An error names the file."""
    if not location.train:
        return is_test(read_column(location, SPLIT_COLUMN), location.name)
    files = [(str(file), replace(location, train=(file,))) for file in location.train]
    return np.concatenate([is_test(read_column(one, SPLIT_COLUMN), place) for place, one in files])
