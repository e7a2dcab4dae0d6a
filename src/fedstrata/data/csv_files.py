"""Read CSV files with a header, compressed or not, some rows at a time."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv

from fedstrata.base.errors import DataError, first_line
from fedstrata.base.limits import MIB, memory_limit
from fedstrata.data.column_roles import ReadOptions, holds_codes
from fedstrata.data.location import COMPRESSIONS
from fedstrata.data.preparation import GAPS
from fedstrata.data.tables import Table, refuse_many_columns, refuse_no_rows

_BLOCK_BYTES = MIB
"""The bytes of a file that are parsed at a time. No row may have more."""

_MEMORY_SHARE = 8
"""The rows of a file are kept that takes at most this part of the memory that data may take."""

_OTHER_MARKS = {";": "semicolons", "\t": "tabs", "|": "bars"}
"""What separates columns where programs do not write commas."""

_GAPS = [*csv.ConvertOptions().null_values, *GAPS]
"""What stands for no number."""

_NOT_CONVERTED = re.compile(r"In CSV column #(\d+): (Row #\d+: )?CSV conversion error")
"""What Arrow says of a value that is not of the type of its column."""


@dataclass(frozen=True, eq=False)
class CsvTable(Table):
    """A CSV file. The type of a column is the narrowest that holds all of its values.

    Attributes:
        options: Which columns are codes, which are read as texts: 007 is not 7.
    """

    options: ReadOptions

    @cached_property
    def codes(self) -> frozenset[str]:  # type: ignore[override]  # an attribute all the same
        """Return the columns of codes."""
        return frozenset(name for name in self.own_schema.names if holds_codes(name, self.options))

    @property
    def own_schema(self) -> Any:
        """Return the ``pyarrow.Schema``. The file is read for it.

        Raises:
            DataError: When it is no such file.
        """
        return self._scanned[0]

    @cached_property
    def _scanned(self) -> tuple[Any, list[Any]]:
        """The schema, and all rows of a file that is not large, as ``pyarrow.RecordBatch``."""
        self._check_header()
        if not self._compression and self.stored <= memory_limit() // _MEMORY_SHARE:
            # What is wrong is told below, with its row, which several threads do not know.
            with suppress(DataError):
                return self._scan(whole=True)
        return self._scan(whole=False)

    def _scan(self, *, whole: bool) -> tuple[Any, list[Any]]:
        """Read the file, whole or some rows at a time, until the type of each column holds all of its values."""
        with self._opened({}) as reader:
            schema = reader.schema
            names = schema.names
        # Without any value, no column has a type.
        refuse_no_rows(not all(map(pa.types.is_null, schema.types)), self.place)
        # Known types are read in half of the time.
        types = {each.name: pa.string() if holds_codes(each.name, self.options) else each.type for each in schema}
        while True:
            batches = list[Any]()
            try:
                with self._opened(types, whole=whole) as reader:
                    schema = reader.schema
                    for batch in reader:
                        if whole:
                            batches.append(batch)
            except _WrongTypeError as error:
                types[names[error.column]] = _wider(types[names[error.column]])
            else:
                break
        refuse_many_columns(len(schema), self.place)
        for field in schema:
            if pa.types.is_binary(field.type):
                raise self._not_utf8(f"column {field.name!r}")
        return schema, batches

    def batches(self, columns: list[str]) -> Iterator[Any]:
        """Yield all rows.

        Raises:
            DataError: When a row is broken.
        """
        types = {name: self.own_schema.field(name).type for name in columns}
        kept = self._scanned[1]
        if kept:
            rows = deque(kept)
            # Who reads all columns asks for none again.
            if len(columns) == len(self.own_schema):
                kept.clear()
            while rows:
                yield rows.popleft().select(columns)
                # The allocator would keep what is free for later.
                pa.default_memory_pool().release_unused()
            return
        with self._opened(types, columns) as reader:
            yield from reader

    @property
    def _compression(self) -> str | None:
        return COMPRESSIONS.get(Path(self.place).suffix.lower())

    @contextmanager
    def _opened(
        self, types: Mapping[str, Any], columns: list[str] | None = None, *, whole: bool = False
    ) -> Iterator[Any]:
        """Open a ``pyarrow.RecordBatchReader`` with the types of some columns; whole, it is read by several threads."""
        wrong_rows = list[Any]()

        def note(row: Any) -> str:
            wrong_rows.append(row)
            return "error"

        # With several threads, Arrow does not know the number of a row.
        read = csv.ReadOptions(use_threads=whole, block_size=_BLOCK_BYTES)
        # Values in quotes may go on in the next line, as notes do.
        parse = csv.ParseOptions(newlines_in_values=True, invalid_row_handler=note)
        convert = csv.ConvertOptions(column_types=types, include_columns=columns, null_values=_GAPS)
        try:
            with (
                pa.input_stream(self.place, compression=self._compression) as stream,
                (_read_whole if whole else csv.open_csv)(stream, read, parse, convert) as reader,
            ):
                yield reader
        except UnicodeDecodeError:
            raise self._not_utf8("the header") from None
        except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
            if wrong_rows:
                row = wrong_rows[0]
                raise DataError(
                    f"{self.place}: row {row.number:,} (the header is row 1): expected {row.expected_columns:,} values "
                    f"as in the header, found {row.actual_columns:,}; correct the row"
                ) from None
            if found := _NOT_CONVERTED.match(str(error)):
                raise _WrongTypeError(int(found[1])) from error
            raise DataError(
                f"{self.place} is no readable CSV file with a header ({first_line(error)}); correct the file"
            ) from error

    def _check_header(self) -> None:
        """Refuse what is no text, or a file whose columns are separated by something else than commas."""
        header = b""
        # What else is wrong is found when it is read.
        with suppress(OSError), pa.input_stream(self.place, compression=self._compression) as stream:
            header = stream.read(MIB).partition(b"\n")[0]
        if header.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise self._not_utf8("the header")
        found = next((name for mark, name in _OTHER_MARKS.items() if mark.encode() in header), None)
        if found and b"," not in header:
            raise DataError(
                f"{self.place}: expected columns separated by commas, found {found} in the header; save it with "
                "commas, and with points in numbers"
            )

    def _not_utf8(self, part: str) -> DataError:
        advice = "save the file as UTF-8, which spreadsheets call 'CSV UTF-8'"
        return DataError(f"{self.place}: {part} holds text that is not UTF-8; {advice}")


def _read_whole(*given: Any) -> Any:
    """Return a ``pyarrow.RecordBatchReader`` of a file that is in memory."""
    return csv.read_csv(*given).to_reader()


class _WrongTypeError(Exception):
    """A value that is not of the type of its column, which earlier rows have."""

    def __init__(self, column: int) -> None:
        super().__init__(column)
        self.column = column


def _wider(kind: Any) -> Any:
    """Return the type that holds the values of a narrower one, and more."""
    if pa.types.is_null(kind):
        return pa.int64()
    if pa.types.is_integer(kind):
        return pa.float64()
    # Bytes are texts that are no UTF-8.
    return pa.binary() if pa.types.is_string(kind) else pa.string()
