"""Read Parquet and Arrow files in bounded memory. They may be hostile, so the sizes that they declare are checked."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fedstrata.base.errors import DataError
from fedstrata.base.limits import MIB, PARQUET_COLUMNS, ROWS_BEYOND_BYTES, expansion_problem
from fedstrata.data import tables

_BUFFER_BYTES = MIB
"""The bytes of a column that are read at a time. A part of a column, which may be the whole of it, is never in memory
at once."""

_VALUE_BYTES = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
"""The bytes of a decoded value, by its physical type."""


class ParquetSource(tables.Source):
    """A Parquet file."""

    @cached_property
    def schema(self) -> Any:
        """Read the ``pyarrow.Schema``."""
        with self._opened() as parquet:
            return parquet.schema_arrow

    def batches(self, columns: list[str]) -> Iterator[Any]:
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
            _readable(self.place, "Parquet"),
            pq.ParquetFile(self.place, buffer_size=_BUFFER_BYTES, pre_buffer=False) as parquet,
        ):
            if problem := _size_problem(parquet.metadata, self.stored):
                raise DataError(f"{self.place}: {problem}")
            yield parquet


class ArrowSource(tables.Source):
    """A file of Arrow, which is also called feather."""

    @cached_property
    def schema(self) -> Any:
        """Read the ``pyarrow.Schema``."""
        with self._opened() as reader:
            return reader.schema

    def batches(self, columns: list[str]) -> Iterator[Any]:
        """Yield the rows."""
        decoded = 0
        with self._opened() as reader:
            for place in range(reader.num_record_batches):
                batch = reader.get_batch(place)
                batch.validate(full=True)
                decoded += batch.nbytes
                if problem := expansion_problem(decoded, self.stored):
                    raise DataError(f"{self.place}: {problem}")
                for start in range(0, len(batch), tables.ROWS):
                    yield batch.select(columns).slice(start, tables.ROWS)

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        """Open a ``pyarrow.ipc.RecordBatchFileReader``."""
        with (
            _readable(self.place, "Arrow"),
            pa.memory_map(self.place) as mapped,
            pa.ipc.open_file(mapped) as reader,
        ):
            yield reader


@contextmanager
def _readable(file: str, kind: str) -> Iterator[None]:
    """Turn what is wrong with a file, or with a part that is read from it inside the block, into one line."""
    try:
        yield
    # Some of Arrow's errors are Python's own: of memory, of types, of numbers.
    except (pa.ArrowException, OSError, MemoryError, ValueError, OverflowError) as error:
        reason = str(error).split("\n")[0] or "out of memory"
        raise DataError(f"{file} is no readable {kind} file ({reason}); copy or download it again") from error


def _size_problem(metadata: Any, stored: int) -> str:
    """Say what is hostile about the sizes that a file of `stored` bytes declares; empty when nothing is."""
    if metadata.num_columns > PARQUET_COLUMNS:
        return f"it has {metadata.num_columns:,} columns; expected at most {PARQUET_COLUMNS:,}"
    # A sample takes at least one byte. Rows that are all equal take none, and would be written out one by one.
    if metadata.num_rows > max(ROWS_BEYOND_BYTES, stored):
        return f"it has {metadata.num_rows:,} rows and {stored:,} bytes; expected a byte for each row"
    decoded = sum(max(part.total_uncompressed_size, _value_bytes(part)) for _, part in _parts(metadata))
    return expansion_problem(decoded, stored)


def _rows_at_once(metadata: Any, columns: Collection[str]) -> int:
    """Return the number of rows that can be decoded together in little memory, of each of some columns."""
    largest = 1
    for rows, part in _parts(metadata):
        if part.path_in_schema.split(".")[0] in columns:
            # A text that many rows share is stored once. None is larger than the part of the column that holds it.
            numbers = part.physical_type in _VALUE_BYTES
            largest = max(largest, _value_bytes(part) // rows if numbers else part.total_uncompressed_size)
    return max(1, min(tables.ROWS, tables.ROWS_BYTES // largest))


def _parts(metadata: Any) -> Iterator[tuple[int, Any]]:
    """Yield the number of rows, and the ``pyarrow.parquet.ColumnChunkMetaData``, of each part of each column."""
    for place in range(metadata.num_row_groups):
        group = metadata.row_group(place)
        for column in range(metadata.num_columns):
            yield max(1, group.num_rows), group.column(column)


def _value_bytes(part: Any) -> int:
    """Return the bytes that the numbers of a part take once they are decoded; of other values, the fewest."""
    return int(part.num_values * _VALUE_BYTES.get(part.physical_type, 1))
