"""Read Parquet and Arrow files in bounded memory, also hostile ones: so many rows at a time as their values allow."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fedstrata.base.errors import DataError
from fedstrata.base.limits import MIB
from fedstrata.data import tables

_BUFFER_BYTES = MIB
"""The bytes of a column that are read at a time. A part of a column, which may be the whole of it, is never in memory
at once."""

_NUMBER_BYTES = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
"""The bytes of a decoded number, by its physical type."""


class ParquetTable(tables.Table):
    """A Parquet file."""

    @cached_property
    def own_schema(self) -> Any:
        """Read the ``pyarrow.Schema``."""
        with self._opened() as parquet:
            return parquet.schema_arrow

    def batches(self, columns: list[str]) -> Iterator[Any]:
        """Yield the rows."""
        with self._opened() as parquet, self._opened(_texts(parquet.schema)) as with_dictionaries:
            for group in range(parquet.num_row_groups):
                some = {"row_groups": [group], "columns": columns}
                first = next(with_dictionaries.iter_batches(batch_size=1, **some), None)
                at_once = tables.ROWS_BYTES // _row_bytes(parquet.metadata.row_group(group), columns, first)
                yield from parquet.iter_batches(batch_size=max(1, min(tables.ROWS, at_once)), **some)

    @contextmanager
    def _opened(self, dictionaries: Sequence[str] = ()) -> Iterator[Any]:
        """Open a ``pyarrow.parquet.ParquetFile``.

        Args:
            dictionaries: The paths of the columns that stay dictionaries.

        Raises:
            DataError: When the file, or a part that is read from it inside the block, is no valid Parquet, or has too
                many columns.
        """
        with (
            _readable(self.place, "Parquet"),
            pq.ParquetFile(
                self.place, buffer_size=_BUFFER_BYTES, pre_buffer=False, read_dictionary=dictionaries
            ) as parquet,
        ):
            tables.refuse_many_columns(parquet.metadata.num_columns, self.place)
            yield parquet


class ArrowTable(tables.Table):
    """A file of Arrow, which is also called feather."""

    @cached_property
    def own_schema(self) -> Any:
        """Read the ``pyarrow.Schema``."""
        with self._opened() as reader:
            return reader.schema

    def batches(self, columns: list[str]) -> Iterator[Any]:
        """Yield the rows."""
        with self._opened() as reader:
            for place in range(reader.num_record_batches):
                batch = reader.get_batch(place)
                batch.validate(full=True)
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


def _texts(schema: Any) -> list[str]:
    """Return the paths of the columns of texts and bytes in a ``pyarrow.parquet.ParquetSchema``."""
    columns = map(schema.column, range(len(schema)))
    return [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]


def _row_bytes(group: Any, columns: Collection[str], first: Any) -> int:
    """Return about how many bytes a row takes in memory: at least those of the largest value that rows may share.

    Args:
        group: The ``pyarrow.parquet.RowGroupMetaData`` of the rows.
        columns: The columns that are read.
        first: The first row as a ``pyarrow.RecordBatch``, whose columns of texts have the dictionaries of all rows;
            None without any row.
    """
    nbytes = 1
    for part in map(group.column, range(group.num_columns)):
        if part.path_in_schema.split(".")[0] in columns:
            numbers = part.num_values * _NUMBER_BYTES.get(part.physical_type, 0)
            nbytes += max(numbers, part.total_uncompressed_size) // max(1, group.num_rows)
    for column in pa.Table.from_batches([first]).flatten().columns if first else ():
        if pa.types.is_dictionary(column.type):
            nbytes += pc.max(pc.binary_length(column.chunk(0).dictionary)).as_py() or 0
    return nbytes
