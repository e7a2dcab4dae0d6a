"""Rows of Parquet files, with every failure traced to its file, column and row."""

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fedstrata.errors import DataError
from fedstrata.limits import (
    COLUMN_CHARACTERS,
    MIB,
    PARQUET_COLUMNS,
    PARQUET_FOOTER_BYTES,
    ROWS_BEYOND_BYTES,
    irregular,
    too_much,
)

_BLOCK = 4096
"""Rows decoded at a time: compressed and decoded forms of a whole file are never held together."""

_BLOCK_BYTES = 128 * MIB
"""Bytes decoded at a time, at most."""

_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
"""Bytes of a value once it is decoded."""


@contextmanager
def opened(file: Path) -> Iterator[Any]:
    """Open a Parquet file.

    Yields:
        The ``pyarrow.parquet.ParquetFile``.

    Raises:
        DataError: when the file, or a part read from it inside the block, is no valid Parquet.
    """
    if reason := irregular(file) or _footer_problem(file):
        raise DataError(f"{file} is no readable Parquet file ({reason}); copy or download it again")
    try:
        with pq.ParquetFile(file) as parquet:
            if problem := _problem(parquet.metadata, file.stat().st_size):
                raise DataError(f"{file}: {problem}")
            yield parquet
    # Arrow's errors of memory and of types are also errors of Python's own; some of its faults are only those.
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
    if length > min(size, PARQUET_FOOTER_BYTES):
        return f"its footer has {length:,} bytes; expected at most {min(size, PARQUET_FOOTER_BYTES):,}"
    return ""


def _problem(metadata: Any, stored: int) -> str:
    """Say what is hostile about what a file says of itself; empty when nothing is.

    Args:
        metadata: the ``pyarrow.parquet.FileMetaData``.
        stored: bytes of the file.
    """
    if metadata.num_columns > PARQUET_COLUMNS:
        return f"it has {metadata.num_columns:,} columns; expected at most {PARQUET_COLUMNS:,}"
    # A sample takes a byte at least. Rows that are all alike take none, and would be written out one by one.
    if metadata.num_rows > max(ROWS_BEYOND_BYTES, stored):
        return f"it has {metadata.num_rows:,} rows and {stored:,} bytes; expected a byte for each row"
    decoded = 0
    for group in range(metadata.num_row_groups):
        for place in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(place)
            values = chunk.num_values * _WIDTHS.get(chunk.physical_type, 1)
            decoded += max(chunk.total_uncompressed_size, values)
    return too_much(decoded, stored)


def _rows_at_once(metadata: Any, columns: Collection[str]) -> int:
    """How many rows can be decoded together, so that not even those of one shared value take much memory.

    A value that many rows share stands in a file once. No value is larger than the part of a column that holds it.

    Args:
        metadata: the ``pyarrow.parquet.FileMetaData``.
        columns: those that are decoded.
    """
    sizes = [1]
    for group in range(metadata.num_row_groups):
        for place in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(place)
            if chunk.path_in_schema.split(".")[0] in columns:
                sizes.append(chunk.total_uncompressed_size)
    return max(1, min(_BLOCK, _BLOCK_BYTES // max(sizes)))


def batches(files: Sequence[Path], columns: Sequence[str]) -> Iterator[tuple[Path, int, Any]]:
    """Walk over some columns of files, in order.

    Yields:
        The file, the number of the first row inside it (from 0), and the ``pyarrow.RecordBatch``.

    Raises:
        DataError: when a file is unreadable or lacks a column.
    """
    for file in files:
        with opened(file) as parquet:
            require(file, parquet.schema_arrow, columns)
            row = 0
            for batch in parquet.iter_batches(
                batch_size=_rows_at_once(parquet.metadata, columns), columns=list(columns)
            ):
                yield file, row, batch
                row += len(batch)


def require(file: Path, schema: Any, columns: Collection[str]) -> None:
    """Check that a file has some columns.

    Raises:
        DataError: naming the first that it lacks, and those it has.
    """
    for column in columns:
        if column not in schema.names:
            raise DataError(f"{file} has no column {column!r}; it has {', '.join(schema.names)}")


def scalars(files: Sequence[Path], skip: Collection[str]) -> dict[str, np.ndarray]:
    """The columns that hold one number, bool or text per row; dates and times as text.

    A missing number is nan, a missing text is empty.

    Args:
        files: shards in order.
        skip: columns that are not wanted.

    Returns:
        Column name -> (rows,), texts as numpy's unicode strings.
    """
    with opened(files[0]) as parquet:
        schema = parquet.schema_arrow
    wanted = [field.name for field in schema if field.name not in skip and _is_scalar(field.type)]
    parts: dict[str, list[np.ndarray]] = {name: [] for name in wanted}
    if wanted:
        longest = dict.fromkeys(wanted, 0)
        rows = 0
        for file, row, batch in batches(files, wanted):
            rows += len(batch)
            for name in wanted:
                longest[name] = max(longest[name], limit_texts(batch.column(name), file, row, name))
                if problem := too_much(4 * longest[name] * rows, sum(each.stat().st_size for each in files)):
                    raise DataError(f"{file}: column {name!r}: {problem}")
                parts[name].append(_numpy(batch.column(name)))
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


def limit_texts(array: Any, file: Path, row: int, column: str) -> int:
    """Refuse a text that is too long: numpy gives every text of a column the space of the longest.

    Args:
        array: of one batch.
        file: for the message.
        row: of the first value, for the message.
        column: its name, for the message.

    Returns:
        Characters of the longest text; 0 where there are no texts.

    Raises:
        DataError: naming file, row and column.
    """
    array = plain(array)
    if not is_text(array.type):
        return 0
    lengths = pc.utf8_length(array)
    longest = int(pc.max(lengths).as_py() or 0)
    if longest > COLUMN_CHARACTERS:
        place = pc.index(lengths, longest).as_py()
        raise DataError(
            f"{file}: row {row + place} of column {column!r} holds a text of {longest:,} characters; expected at most "
            f"{COLUMN_CHARACTERS:,}"
        )
    return longest


def plain(array: Any) -> Any:
    """An Arrow array with a dictionary-encoded column written out."""
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def is_text(kind: Any) -> bool:
    """Whether an Arrow type is a string."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_scalar(kind: Any) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_temporal, is_text)
    return any(test(kind) for test in tests)


def _numpy(array: Any) -> np.ndarray:
    array = plain(array)
    if pa.types.is_temporal(array.type):
        array = array.cast(pa.string())
    if is_text(array.type):
        return np.array([text or "" for text in array.to_pylist()], dtype=np.str_)
    if pa.types.is_boolean(array.type) and array.null_count:
        array = array.cast(pa.int8())
    values: np.ndarray = array.to_numpy(zero_copy_only=False)
    return values
