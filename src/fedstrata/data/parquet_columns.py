"""Read columns of Parquet files in bounded memory, and what is to be learnt of their rows.

The files may be hostile. `opened` refuses a file that would take far more memory than it takes on disk, and every
error names the file, the column and the row, counted from 0.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fedstrata.base.errors import DataError, RowError
from fedstrata.base.limits import (
    COLUMN_CHARACTERS,
    MIB,
    PARQUET_COLUMNS,
    PARQUET_FOOTER_BYTES,
    ROWS_BEYOND_BYTES,
    expansion_problem,
    file_problem,
    memory_problem,
)
from fedstrata.base.quoting import listed
from fedstrata.data.column_roles import ReadOptions, may_be_feature
from fedstrata.data.dataset import check_class_count, check_sample_size, expected_classes, finite_float32
from fedstrata.data.location import Location
from fedstrata.data.npz import Answers, answers_of, refuse_missing_classes

_ROWS = 4096
"""The largest number of rows that are decoded at a time."""

_BUFFER_BYTES = MIB
"""The bytes of a column that are read at a time. A part of a column, which may be the whole of it, is never in memory
at once."""

_ROWS_BYTES = 16 * MIB
"""The largest number of bytes that are decoded at a time."""

_INT64_DIGITS = 18
"""The digits of whole numbers that surely fit into int64."""

_VALUE_BYTES = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
"""The bytes of a decoded value, by its physical type."""


@dataclass(frozen=True, eq=False)
class TableSource:
    """A table in place of a Parquet file.

    Attributes:
        place: Where it comes from, for messages.
        schema: Its ``pyarrow.Schema``.
        tables: The function that yields its rows, some at a time, as ``pyarrow.Table``.
        stored: The bytes that it takes where it is.
    """

    place: str
    schema: Any
    tables: Callable[[], Iterable[Any]]
    stored: int

    def __str__(self) -> str:
        """Return where it comes from."""
        return self.place


def table_source(place: str, table: Any) -> TableSource:
    """Let a ``pyarrow.Table`` stand for a Parquet file."""
    return TableSource(place, table.schema, lambda: (table,), table.nbytes)


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows of one column of a file.

    Attributes:
        file: The file, or the table in place of it.
        column: The name of the column.
        first_row: The number of the first row inside the file.
        values: The rows, as a ``pyarrow.Array``. A dictionary-encoded column is written out.
    """

    file: Path | TableSource
    column: str
    first_row: int
    values: Any

    def error(self, row: int, problem: str) -> RowError:
        """Return the error that tells the problem of a row, which is counted from the first of this chunk."""
        return RowError(str(self.file), self.first_row + row, f"of column {self.column!r} {problem}")


@contextmanager
def opened(file: Path) -> Iterator[Any]:
    """Open a ``pyarrow.parquet.ParquetFile``.

    Raises:
        DataError: When the file, or a part that is read from it inside the block, is no valid Parquet.
    """
    if reason := file_problem(file) or _footer_problem(file):
        raise DataError(f"{file} is no readable Parquet file ({reason}); copy or download it again")
    try:
        with pq.ParquetFile(file, buffer_size=_BUFFER_BYTES, pre_buffer=False) as parquet:
            if problem := _size_problem(parquet.metadata, file.stat().st_size):
                raise DataError(f"{file}: {problem}")
            yield parquet
    # Some of Arrow's errors are Python's own: of memory, of types, of numbers.
    except (pa.ArrowException, OSError, MemoryError, ValueError, OverflowError) as error:
        reason = str(error).split("\n")[0] or "out of memory"
        raise DataError(f"{file} is no readable Parquet file ({reason}); copy or download it again") from error


def _footer_problem(file: Path) -> str:
    """Say what is wrong with the length of the footer, which is read into memory whole; empty when nothing is."""
    try:
        with file.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - 8))
            length = int.from_bytes(stream.read(4), "little")
    except OSError as error:
        return error.strerror or str(error)
    limit = min(size, PARQUET_FOOTER_BYTES)
    return f"its footer has {length:,} bytes; expected at most {limit:,}" if length > limit else ""


def _size_problem(metadata: Any, stored: int) -> str:
    """Say what is hostile about the sizes that a file of `stored` bytes declares; empty when nothing is."""
    if metadata.num_columns > PARQUET_COLUMNS:
        return f"it has {metadata.num_columns:,} columns; expected at most {PARQUET_COLUMNS:,}"
    # A sample takes at least one byte. Rows that are all equal take none, and would be written out one by one.
    if metadata.num_rows > max(ROWS_BEYOND_BYTES, stored):
        return f"it has {metadata.num_rows:,} rows and {stored:,} bytes; expected a byte for each row"
    return expansion_problem(_decoded_bytes(metadata), stored)


def _decoded_bytes(metadata: Any) -> int:
    """Return the bytes that all columns take once they are decoded."""
    decoded = 0
    for chunk in _column_chunks(metadata):
        values = chunk.num_values * _VALUE_BYTES.get(chunk.physical_type, 1)
        decoded += max(chunk.total_uncompressed_size, values)
    return decoded


def decoded_bytes(file: Path) -> int:
    """Return the bytes that a file takes in memory, whole; raises as `opened`."""
    with opened(file) as parquet:
        return _decoded_bytes(parquet.metadata)


def _column_chunks(metadata: Any) -> Iterator[Any]:
    """Yield the ``pyarrow.parquet.ColumnChunkMetaData`` of every column in every row group."""
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for column in range(metadata.num_columns):
            yield row_group.column(column)


def rows_at_once(metadata: Any, columns: Collection[str]) -> int:
    """Return the number of rows of some columns that can be decoded together in little memory."""
    groups = (metadata.row_group(group) for group in range(metadata.num_row_groups))
    largest = max((_row_bytes(group, columns) for group in groups), default=1)
    return max(1, min(_ROWS, int(_ROWS_BYTES // max(1, largest))))


def _row_bytes(group: Any, columns: Collection[str]) -> float:
    """Return the bytes that a row of a group takes in one of some columns: of numbers on average, of others at most."""
    largest = 0.0
    for place in range(group.num_columns):
        chunk = group.column(place)
        if chunk.path_in_schema.split(".")[0] not in columns:
            continue
        if chunk.physical_type in _VALUE_BYTES:
            size = chunk.num_values * _VALUE_BYTES[chunk.physical_type] / max(1, group.num_rows)
        else:
            # A text that many rows share is stored once. None is larger than the part of the column that holds it.
            size = chunk.total_uncompressed_size
        largest = max(largest, size)
    return largest


def read_schema(file: Path | TableSource) -> Any:
    """Read the ``pyarrow.Schema`` of a file; raises as `opened`."""
    if isinstance(file, TableSource):
        return file.schema
    with opened(file) as parquet:
        return parquet.schema_arrow


def require_columns(file: Path, schema: Any, columns: Collection[str]) -> None:
    """Refuse a file whose ``pyarrow.Schema`` does not have each of the columns once.

    Raises:
        DataError: When a column is missing or there are several of its name.
    """
    for column in columns:
        times = schema.names.count(column)
        if times != 1:
            found = f"{times} columns" if times else "no column"
            raise DataError(f"{file} has {found} {column!r}; it has {', '.join(schema.names)}")


def read_chunks(files: Sequence[Path], columns: Sequence[str]) -> Iterator[tuple[Chunk, ...]]:
    """Read some columns of files, a few thousand rows at a time, and yield the next rows of each column.

    Raises:
        DataError: When a file is unreadable or lacks a column, or a text is too long.
    """
    for file in files:
        require_columns(file, read_schema(file), columns)
        first_row = 0
        for batch in batches(file, list(columns)):
            yield tuple(_chunk(file, column, first_row, batch.column(column)) for column in columns)
            first_row += len(batch)


def batches(file: Path | TableSource, columns: list[str]) -> Iterator[Any]:
    """Yield a ``pyarrow.RecordBatch`` of some columns after the other."""
    if isinstance(file, TableSource):
        for table in file.tables():
            yield from table.select(columns).to_batches(_ROWS)
        return
    with opened(file) as parquet:
        yield from parquet.iter_batches(batch_size=rows_at_once(parquet.metadata, columns), columns=columns)


def stored_bytes(files: Sequence[Path | TableSource]) -> int:
    """Return the bytes that files or tables take where they are."""
    return sum(file.stored if isinstance(file, TableSource) else file.stat().st_size for file in files)


def _row_count(file: Path | TableSource) -> int:
    """Return the number of rows of a file or table."""
    if isinstance(file, TableSource):
        return sum(map(len, file.tables()))
    with opened(file) as parquet:
        return int(parquet.metadata.num_rows)


def is_list(kind: Any) -> bool:
    """Tell whether an Arrow type is a list of any sort."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_image(kind: Any) -> bool:
    """Tell whether an Arrow type is that of encoded images: bytes, or a struct with a field of them."""
    if pa.types.is_struct(kind):
        return bool(kind.get_field_index("bytes") >= 0)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def is_text(kind: Any) -> bool:
    """Tell whether an Arrow type is that of texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _chunk(file: Path | TableSource, column: str, first_row: int, values: Any) -> Chunk:
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    chunk = Chunk(file, column, first_row, values)
    # A text takes its bytes in a table, and may take few in a file.
    if is_text(values.type) and not isinstance(file, TableSource):
        lengths = pc.utf8_length(values)
        longest = pc.max(lengths).as_py() or 0
        if longest > COLUMN_CHARACTERS:
            problem = f"holds a text of {longest:,} characters; expected at most {COLUMN_CHARACTERS:,}"
            raise chunk.error(pc.index(lengths, longest).as_py(), problem)
    return chunk


def first_true(values: Any) -> int:
    """Return the position of the first true value of a ``pyarrow.BooleanArray``."""
    return int(pc.index(values, True).as_py())


def read_arrays(files: Sequence[Path], column: str) -> Iterator[np.ndarray]:
    """Read a column of lists, or lists of lists, of numbers, some rows at a time: (rows, ...) float32.

    Raises:
        DataError: When a row is missing, has another shape or holds a number that is not finite.
    """
    expected: tuple[int, ...] | None = None
    for (chunk,) in read_chunks(files, [column]):
        values = _dense(chunk)
        shape = values.shape[1:]
        expected = expected or shape
        if shape != expected:
            raise chunk.error(0, f"has shape {shape}; expected {expected}, as the rows before")
        check_sample_size(shape, f"{chunk.file}: column {column!r}")
        yield finite_float32(values, str(chunk.file), f"column {column!r}", chunk.first_row)


def _dense(chunk: Chunk) -> np.ndarray:
    """Return the lists of a chunk as one array, (rows, ...)."""
    values = chunk.values
    shape = [len(values)]
    while True:
        # At this level of nesting, each row has as many lists or numbers.
        per_row = prod(shape[1:])
        if values.null_count:
            raise chunk.error(first_true(values.is_null()) // per_row, "holds a missing value")
        if not is_list(values.type):
            break
        lengths = pc.list_value_length(values).to_numpy()
        expected = int(lengths[0])
        if expected == 0:
            raise chunk.error(0, "holds an empty list")
        if (lengths != expected).any():
            place = int(np.argmax(lengths != expected))
            problem = f"holds a list of {lengths[place]}; expected {expected}, as in the rows before"
            raise chunk.error(place // per_row, problem)
        shape.append(expected)
        values = values.flatten()
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        raise DataError(f"{chunk.file}: column {chunk.column!r} holds lists of {values.type}; expected numbers")
    numbers: np.ndarray = values.to_numpy()
    return numbers.reshape(shape)


def scalar_columns(file: Path) -> list[str]:
    """Return the names of the columns that hold one number, bool or text per row."""
    return [field.name for field in read_schema(file) if is_scalar(field.type)]


def empty_columns(file: Path) -> dict[str, np.ndarray]:
    """Return the columns with one number, bool or text per row, without their rows: (0,) of their types."""
    schema = read_schema(file)
    return {field.name: to_numpy(pa.array([], field.type)) for field in schema if is_scalar(field.type)}


def read_scalar_column(files: Sequence[Path], column: str) -> np.ndarray:
    """Read one column as `read_columns` does, (rows,).

    Raises:
        DataError: When there is no such column.
    """
    others = set(scalar_columns(files[0])) - {column}
    columns = read_columns(files, skip=others)
    if column not in columns:
        raise DataError(f"{files[0]} has no column {column!r}; it has {', '.join(sorted(others)) or 'none'}")
    return columns[column]


def read_columns(files: Sequence[Path], skip: Collection[str]) -> dict[str, np.ndarray]:
    """Read the columns that hold one number, bool or text per row, (rows,) each, but for those to skip.

    Dates and times become texts. A missing number is nan, a missing text is empty.

    Raises:
        DataError: When the texts of a column take too much memory.
    """
    wanted = [name for name in scalar_columns(files[0]) if name not in skip]
    if not wanted:
        return {}
    stored = stored_bytes(files)
    parts: dict[str, list[np.ndarray]] = {name: [] for name in wanted}
    largest = dict.fromkeys(wanted, 0)
    rows = 0
    for chunks in read_chunks(files, wanted):
        rows += len(chunks[0].values)
        for chunk in chunks:
            values = to_numpy(chunk.values)
            parts[chunk.column].append(values)
            # numpy gives every text of a column the space of the longest.
            largest[chunk.column] = max(largest[chunk.column], values.dtype.itemsize)
            if problem := memory_problem(largest[chunk.column] * rows, stored):
                raise DataError(f"{chunk.file}: column {chunk.column!r}: {problem}")
    if not rows:
        nothing = empty_columns(files[0])
        return {name: nothing[name] for name in wanted}
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


def is_scalar(kind: Any) -> bool:
    """Tell whether an Arrow type is a number, a decimal, a bool, a text, or a date or time."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_primitive(kind) or pa.types.is_decimal(kind)) or is_text(kind)


def to_numpy(values: Any) -> np.ndarray:
    """Return the values of a ``pyarrow.Array`` of scalars, (rows,); a dictionary is written out.

    Decimals become floats, or integers if they have no fraction.
    """
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_temporal(values.type):
        values = values.cast(pa.string())
    if pa.types.is_decimal(values.type):
        # Databases export whole numbers, such as those of patients, as decimals without a fraction.
        whole = values.type.scale == 0 and values.type.precision <= _INT64_DIGITS
        values = values.cast(pa.int64() if whole else pa.float64())
    if is_text(values.type):
        return np.array([text or "" for text in values.to_pylist()], dtype=np.str_)
    if pa.types.is_boolean(values.type) and values.null_count:
        values = values.cast(pa.int8())
    array: np.ndarray = values.to_numpy(zero_copy_only=False)
    return array


def unread_numbers(columns: Mapping[str, np.ndarray], read: str, options: ReadOptions) -> tuple[str, ...]:
    """A line about columns of numbers that may be features, but are not read, as one column has all inputs.

    Args:
        columns: The columns that are neither inputs nor classes, by their names.
        read: The column of inputs.
        options: How the files are read.
    """
    numbers = [name for name, values in columns.items() if values.dtype.kind in "fiu" and may_be_feature(name, options)]
    if not numbers or options.inputs:
        return ()
    are = "is" if len(numbers) == 1 else "are"
    return (
        f"the inputs are those of column {read!r} alone; {listed(list(map(repr, numbers)))} {are} not read. Put these "
        f"numbers into {read!r} if they are features, or set data.inputs = [{read!r}] if they are not",
    )


def read_answers(location: Location, files: Sequence[Path], column: str) -> Answers:
    """Read a column of classes; of data of a user's own also one of numbers, or of lists.

    Args:
        location: The data set. All its files are read, so that a class means the same in both splits.
        files: The files of one split, shards in order.
        column: The column.

    Raises:
        DataError: When a row has none, or one that does not fit.
    """
    called = f"column {column!r}"
    schema = read_schema(files[0])
    both = {called: _values_to_learn(location, files, column)}
    if not len(both[called]):
        raise DataError(f"{files[0]} has no rows")
    # The other split may have no classes.
    others = [file for file in location.train + location.test if file not in files]
    others = [file for file in others if column in read_schema(file).names]
    values = _values_to_learn(location, others, column) if others else np.empty(0)
    if len(values):
        both[f"{called} of the other split"] = values
    with _rows_of_all(files):
        answers = answers_of(both, str(files[0]))
        if answers.targets is None and not answers.class_names:
            names = hugging_face_names(schema.metadata, column)
            classes = (location.info.classes if location.info else len(names)) or answers.classes
            check_class_count(classes, f"{files[0]}: {called}")
            answers = replace(answers, classes=classes, class_names=names if len(names) == classes else ())
        wrong = (answers.labels < 0) | (answers.labels >= answers.classes)
        if wrong.any():
            row = int(np.argmax(wrong))
            label = int(answers.labels[row])
            problem = f"of {called} holds class {label}; {expected_classes(label, answers.classes)}"
            raise RowError(str(files[0]), row, problem)
    return answers


@contextmanager
def _rows_of_all(files: Sequence[Path]) -> Iterator[None]:
    """Let errors about rows, which are counted from the first of all files, name the file and the row in it."""
    try:
        yield
    except RowError as error:
        raise error.in_part([(str(file), _row_count(file)) for file in files]) from None


def _values_to_learn(location: Location, files: Sequence[Path], column: str) -> np.ndarray:
    """Read a column of classes, numbers or lists.

    Args:
        location: The data set.
        files: Some of its files.
        column: The column.

    Returns:
        Integers, texts or floats, (rows,), or numbers, (rows, outputs).

    Raises:
        DataError: When the column holds something else, or a row has no class.
    """
    kind = read_schema(files[0]).field(column).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    is_class = is_text(kind) or pa.types.is_integer(kind)
    if not is_class and (location.info or not (is_scalar(kind) or is_list(kind))):
        raise DataError(f"{files[0]}: column {column!r} holds {kind}; expected integers or texts")
    if is_list(kind):
        while is_list(kind):
            kind = kind.value_type
        dtype = np.float32 if pa.types.is_floating(kind) else np.int64
        parts = [block.reshape(len(block), -1).astype(dtype) for block in read_arrays(files, column)]
        return np.concatenate(parts) if parts else np.empty(0, dtype)
    values = read_scalar_column(files, column)
    if is_class:
        with _rows_of_all(files):
            refuse_missing_classes(values, str(files[0]), f"column {column!r}")
    return values.astype(np.int64) if values.dtype.kind == "b" else values


def hugging_face_names(metadata: dict[bytes, bytes] | None, column: str) -> tuple[str, ...]:
    """Return the class names that the Hugging Face writer leaves in the schema, if it did."""
    try:
        names = json.loads((metadata or {})[b"huggingface"])["info"]["features"][column]["names"]
        return tuple(str(name) for name in names)
    except (ValueError, KeyError, TypeError, RecursionError):
        return ()
