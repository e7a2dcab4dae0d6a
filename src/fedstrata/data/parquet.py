"""Read data sets in Parquet files: an image, an array or a recording per row, its class, and further columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedstrata.base.errors import DataError
from fedstrata.data.column_roles import DEFAULT_OPTIONS, ReadOptions, label_column
from fedstrata.data.dataset import Dataset, Split, channel_statistics
from fedstrata.data.features import (
    feature_columns,
    finite_features,
    holds_recordings,
    read_recordings,
)
from fedstrata.data.images import read_images
from fedstrata.data.location import Location
from fedstrata.data.mapped import InputWriter
from fedstrata.data.parquet_columns import (
    empty_columns,
    is_image,
    is_list,
    read_answers,
    read_arrays,
    read_chunks,
    read_columns,
    read_schema,
    require_columns,
    scalar_columns,
    table_source,
    to_numpy,
    unread_numbers,
)


def read_parquet(
    location: Location, split: Split, options: ReadOptions = DEFAULT_OPTIONS, writer: InputWriter | None = None
) -> Dataset:
    """Decode one split.

    Args:
        location: The data set, in Parquet files.
        split: The split that is read.
        options: The columns that are inputs and classes, where the registry does not know them.
        writer: What gets the inputs; by default the memory.

    Raises:
        DataError: When a file, column or row is missing or broken.
    """
    info = location.info
    files = location.test if split == "test" else location.train
    writer = writer or InputWriter(str(files[0]))
    schema = read_schema(files[0])
    if holds_recordings(schema) or (info and info.input_column == "signal"):
        return read_recordings(location, files, options, writer)
    options.refuse_windows(str(files[0]))
    if info:
        input_column = info.input_column
        label_column = info.label_column
    else:
        input_column, label_column = _guess_columns(location.train[0], options)
        if not input_column:
            return _read_features(location, split, options, writer)
    require_columns(files[0], schema, (input_column, label_column))
    answers = read_answers(location, files, label_column)
    input_type = schema.field(input_column).type
    if is_image(input_type):
        read_images(files, input_column, len(answers.labels), info.shape if info else None, writer)
    elif is_list(input_type):
        for block in read_arrays(files, input_column):
            writer.add(block, len(answers.labels))
    else:
        raise DataError(f"{files[0]}: column {input_column!r} holds {input_type}; expected images or lists")
    inputs = writer.finish()
    mean, std = (info.mean, info.std) if info and info.mean else channel_statistics(inputs)
    columns = read_columns(files, skip=(input_column, label_column))
    notes = () if info else unread_numbers(columns, input_column, options)
    return Dataset(location.name, inputs, mean=mean, std=std, columns=columns, notes=notes, **answers.fields)


def _read_features(location: Location, split: Split, options: ReadOptions, writer: InputWriter) -> Dataset:
    """Read files whose inputs are columns of numbers."""
    options.refuse_windows(str(location.train[0]))
    files = location.test if split == "test" else location.train
    # Features mean the same in both splits, in whatever order the files have them.
    features = feature_columns(empty_columns(location.train[0]), options, str(location.train[0]))
    label = label_column(scalar_columns(files[0]), options, str(files[0]))
    for chunks in read_chunks(files, features):
        columns = {chunk.column: to_numpy(chunk.values) for chunk in chunks}
        writer.add(finite_features(columns, features, str(chunks[0].file), chunks[0].first_row))
    inputs = writer.finish()
    answers = read_answers(location, files, label)
    mean, std = channel_statistics(inputs)
    further = read_columns(files, skip=(*features, label))
    return Dataset(location.name, inputs, mean=mean, std=std, columns=further, feature_names=features, **answers.fields)


def _guess_columns(file: Path, options: ReadOptions) -> tuple[str, str]:
    """Return the columns of inputs and of classes in a training file that the registry does not know.

    The first is empty where columns of numbers are the inputs, because the file has neither images nor lists.
    """
    schema = read_schema(file)
    label = label_column(schema.names, options, str(file))
    fitting = [field.name for field in schema if is_image(field.type) or is_list(field.type)]
    inputs = [name for name in fitting if name != label]
    if options.inputs:
        inputs = [name for name in inputs if name in options.inputs]
    if len(inputs) > 1:
        raise DataError(
            f"{file}: expected one column of images or lists, found {' and '.join(inputs)}; name one in data.inputs"
        )
    if not inputs:
        return "", label
    options.refuse_other_inputs(inputs[0], str(file))
    return inputs[0], label


def dataset_of_table(name: str, table: Any, options: ReadOptions) -> Dataset:
    """Make a data set of a ``pyarrow.Table`` with a row for each sample.

    The inputs are its one column of images or lists, or else its columns of numbers.

    Args:
        name: The name of the data set, and of the table in messages.
        table: The table.
        options: The columns that are inputs and classes.

    Raises:
        DataError: When a column is missing, or holds something that does not fit.
    """
    # It takes the place of a file.
    source: Any = table_source(name, table)
    return read_parquet(Location(name, None, (source,)), "train", options)
