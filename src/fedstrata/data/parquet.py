"""Read Parquet and Arrow files in bounded memory. They may be hostile, so the sizes that they declare are checked."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fedstrata.base.errors import DataError
from fedstrata.base.limits import (
    MIB,
    PARQUET_COLUMNS,
    PARQUET_FOOTER_BYTES,
    ROWS_BEYOND_BYTES,
    expansion_problem,
    file_problem,
)
from fedstrata.data import tables

_BUFFER_BYTES = MIB
"""The bytes of a column that are read at a time. A part of a column, which may be the whole of it, is never in memory
at once."""

_ROWS_BYTES = 16 * MIB
"""The largest number of bytes that are decoded at a time."""

_VALUE_BYTES = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
"""The bytes of a decoded value, by its physical type."""


class ParquetSource(tables.FileSource):
    """A Parquet file."""

    @cached_property
    def schema(self) -> Any:
        """Read the ``pyarrow.Schema``."""
        with self._opened() as parquet:
            return parquet.schema_arrow

    def batches(self, columns: list[str], *, last: bool = False) -> Iterator[Any]:
        """Yield the rows."""
        with self._opened() as parquet:
            yield from parquet.iter_batches(batch_size=_rows_at_once(parquet.metadata, columns), columns=columns)

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        """Open a ``pyarrow.parquet.ParquetFile``.

        Raises:
            DataError: When the file, or a part that is read from it inside the block, is no valid Parquet, or it would
                take far more memory than it takes on disk.
        """
        with (
            _readable(self.file, "Parquet", _footer_problem),
            pq.ParquetFile(self.file, buffer_size=_BUFFER_BYTES, pre_buffer=False) as parquet,
        ):
            if problem := _size_problem(parquet.metadata, self.stored):
                raise DataError(f"{self.file}: {problem}")
            yield parquet


class ArrowSource(tables.FileSource):
    """A file of Arrow, which is also called feather."""

    @cached_property
    def schema(self) -> Any:
        """Read the ``pyarrow.Schema``."""
        with self._opened() as reader:
            return reader.schema

    def batches(self, columns: list[str], *, last: bool = False) -> Iterator[Any]:
        """Yield the rows."""
        decoded = 0
        with self._opened() as reader:
            for place in range(reader.num_record_batches):
                batch = reader.get_batch(place)
                batch.validate(full=True)
                decoded += batch.nbytes
                if problem := expansion_problem(decoded, self.stored):
                    raise DataError(f"{self.file}: {problem}")
                for start in range(0, len(batch), tables.ROWS):
                    yield batch.select(columns).slice(start, tables.ROWS)

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        """Open a ``pyarrow.ipc.RecordBatchFileReader``."""
        with (
            _readable(self.file, "Arrow", file_problem),
            pa.memory_map(str(self.file)) as mapped,
            pa.ipc.open_file(mapped) as reader,
        ):
            yield reader


@contextmanager
def _readable(file: Path, kind: str, find_problem: Callable[[Path], str]) -> Iterator[None]:
    """Turn what is wrong with a file, or with a part that is read from it inside the block, into one line."""
    told = "{file} is no readable {kind} file ({reason}); copy or download it again"
    if reason := file_problem(file) or find_problem(file):
        raise DataError(told.format(file=file, kind=kind, reason=reason))
    try:
        yield
    # Some of Arrow's errors are Python's own: of memory, of types, of numbers.
    except (pa.ArrowException, OSError, MemoryError, ValueError, OverflowError) as error:
        reason = str(error).split("\n")[0] or "out of memory"
        raise DataError(told.format(file=file, kind=kind, reason=reason)) from error


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


def _column_chunks(metadata: Any) -> Iterator[Any]:
    """Yield the ``pyarrow.parquet.ColumnChunkMetaData`` of every column in every row group."""
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for column in range(metadata.num_columns):
            yield row_group.column(column)


def _rows_at_once(metadata: Any, columns: Collection[str]) -> int:
    """Return the number of rows of some columns that can be decoded together in little memory."""
    groups = (metadata.row_group(group) for group in range(metadata.num_row_groups))
    largest = max((_row_bytes(group, columns) for group in groups), default=1)
    return max(1, min(tables.ROWS, int(_ROWS_BYTES // max(1, largest))))


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
