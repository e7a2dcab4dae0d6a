"""Make samples of a table: its rows with an image or a list each, or its columns of numbers."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from fedstrata.base.errors import DataError, RowError
from fedstrata.data.column_roles import label_column, refuse_same_names
from fedstrata.data.dataset import Dataset
from fedstrata.data.features import dataset_of_columns
from fedstrata.data.location import Location
from fedstrata.data.options import ReadOptions
from fedstrata.data.parquet import read_parquet
from fedstrata.data.parquet_answers import hugging_face_names
from fedstrata.data.parquet_columns import is_image, is_list, is_scalar, to_numpy


def dataset_of_table(name: str, table: Any, options: ReadOptions, place: str) -> Dataset:
    """Make a data set of a ``pyarrow.Table`` with a row for each sample.

    The inputs are its one column of images or lists, or else its columns of numbers.

    Args:
        name: The name of the data set.
        table: The table.
        options: The columns that are inputs and classes.
        place: Where the table comes from, for messages.

    Raises:
        DataError: When a column is missing, or holds something that does not fit.
    """
    refuse_same_names(table.column_names, place)
    if not any(is_image(field.type) or is_list(field.type) for field in table.schema):
        columns = {
            field.name: to_numpy(table[field.name].combine_chunks()) for field in table.schema if is_scalar(field.type)
        }
        dataset = dataset_of_columns(name, columns, options, place)
        names = hugging_face_names(table.schema.metadata, label_column(columns, options, place))
        return replace(dataset, class_names=names) if len(names) == dataset.classes else dataset
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "train.parquet"
        pq.write_table(table, file)
        try:
            return read_parquet(Location(name, None, (file,)), "train", options)
        except RowError as error:
            raise RowError(place, error.row, error.problem) from None
        except DataError as error:
            raise DataError(str(error).replace(str(file), place)) from None
