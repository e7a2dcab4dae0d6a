"""Read CSV files with a header, at once or some rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from fedstrata.base.errors import DataError, first_line
from fedstrata.base.limits import MIB, PARQUET_COLUMNS, file_problem, memory_limit
from fedstrata.data.mapped import too_large_for_memory

_BLOCK_BYTES = 16 * MIB
"""The bytes of a file that are parsed at a time."""

_OTHER_MARKS = {";": "semicolons", "\t": "tabs", "|": "bars"}
"""What separates columns where programs do not write commas."""

_HEADER_BYTES = MIB
"""The bytes of a header that are looked at for them."""

_LINES_IN_VALUES = csv.ParseOptions(newlines_in_values=True)
"""Values in quotes may go on in the next line, as notes do. Without this, only files of up to a megabyte may do so."""


_LEADING_ZERO = r"^\s*0[0-9]+\s*$"
"""The form of a code that would lose zeros as a number."""


def no_codes(column: str) -> bool:
    """Return that the values of a column are no codes."""
    return False


def read_csv(file: Path, columns: Sequence[str] = (), codes: Callable[[str], bool] = no_codes) -> Any:
    """Read a CSV file as a ``pyarrow.Table``.

    Args:
        file: The file.
        columns: The columns that are read; by default all.
        codes: The function that says by the name of a column whether its values are codes. Codes of digits are texts if
            one of them begins with 0.

    Raises:
        DataError: When it is no such file, or takes too much memory.
    """
    if reason := file_problem(file):
        raise DataError(f"{file} is no readable file ({reason}); copy or download it again")
    size = csv_bytes(file)
    if not columns and size > memory_limit():
        raise DataError(f"{file}: {too_large_for_memory(size)}")
    _check_marks(file)
    try:
        wanted = csv.ConvertOptions(include_columns=list(columns))
        table = csv.read_csv(file, parse_options=_LINES_IN_VALUES, convert_options=wanted)
        _check_encoding(file, table.schema)
        table = _with_codes(table, file, codes)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise _not_csv(file, error) from error
    if table.num_columns > PARQUET_COLUMNS:
        raise DataError(f"{file} has {table.num_columns:,} columns; expected at most {PARQUET_COLUMNS:,}")
    return table


def _with_codes(table: Any, source: Any, codes: Callable[[str], bool]) -> Any:
    """Give a table the codes that begin with 0 as they are written; Arrow takes them for numbers.

    Args:
        table: The table.
        source: The file or the bytes that it was read from.
        codes: As in `read_csv`.
    """
    names = table.column_names
    numbers = [
        name
        for name, kind in zip(names, table.schema.types, strict=True)
        if codes(name) and names.count(name) == 1 and (pa.types.is_integer(kind) or pa.types.is_floating(kind))
    ]
    if not numbers:
        return table
    options = csv.ConvertOptions(include_columns=numbers, column_types=dict.fromkeys(numbers, pa.string()))
    texts = csv.read_csv(source, parse_options=_LINES_IN_VALUES, convert_options=options)
    for name in numbers:
        if pc.any(pc.match_substring_regex(texts[name], _LEADING_ZERO)).as_py():
            table = table.set_column(names.index(name), name, texts[name])
    return table


def with_texts(schema: Any, columns: Collection[str]) -> Any:
    """Return a ``pyarrow.Schema`` in which some columns of integers are texts."""
    texts = [field for field in schema if field.name in columns and pa.types.is_integer(field.type)]
    return pa.schema([field.with_type(pa.string()) if field in texts else field for field in schema])


def csv_columns(file: Path) -> tuple[str, ...]:
    """Return the names of the columns of a CSV file.

    Raises:
        DataError: When it is no such file.
    """
    _check_marks(file)
    try:
        with csv.open_csv(file, parse_options=_LINES_IN_VALUES) as reader:
            schema = reader.schema
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _not_csv(file, error) from error
    _check_encoding(file, schema)
    return tuple(schema.names)


def _check_marks(file: Path) -> None:
    """Refuse a file whose columns are separated by something else than commas. Others find what else is wrong."""
    with suppress(OSError), file.open("rb") as stream:
        header = stream.readline(_HEADER_BYTES).decode(errors="replace")
        found = next((name for mark, name in _OTHER_MARKS.items() if mark in header), None)
        if found and "," not in header:
            raise DataError(
                f"{file}: expected columns separated by commas, found {found} in the header; save it with commas, and "
                "with points in numbers"
            )


def _check_encoding(file: Path, schema: Any) -> None:
    """Refuse a file whose texts are not UTF-8.

    Args:
        file: The file.
        schema: Its ``pyarrow.Schema``. Arrow makes a column of bytes of such texts.
    """
    advice = "save the file as UTF-8, which spreadsheets call 'CSV UTF-8'"
    try:
        names = schema.names
    except UnicodeDecodeError:
        raise DataError(f"{file}: the header holds text that is not UTF-8; {advice}") from None
    for name, kind in zip(names, schema.types, strict=True):
        if pa.types.is_binary(kind):
            raise DataError(f"{file}: column {name!r} holds text that is not UTF-8; {advice}")


def csv_bytes(file: Path) -> int:
    """Return the bytes that a CSV file takes in memory, at most."""
    # Numbers take at most eight bytes for each of their characters and its comma.
    return 4 * file.stat().st_size


@dataclass(frozen=True)
class CsvFile:
    """A CSV file that is read some rows at a time, with the types that it has when it is read at once.

    Attributes:
        file: The file.
        codes: As in `read_csv`.
        texts: The columns that are texts even if they hold integers.
    """

    file: Path
    codes: Callable[[str], bool] = no_codes
    texts: frozenset[str] = frozenset()

    @cached_property
    def schema(self) -> Any:
        """Return the ``pyarrow.Schema``, for which the whole file is read.

        Raises:
            DataError: When it is no such file.
        """
        schemas = [table.schema for table in self._tables({})]
        if not schemas:
            return read_csv(self.file).schema
        fields = [_common_field([schema.field(place) for schema in schemas]) for place in range(len(schemas[0]))]
        return with_texts(pa.schema(fields), self.texts)

    def tables(self) -> Iterator[Any]:
        """Yield all rows, some at a time, as ``pyarrow.Table``."""
        return self._tables({field.name: field.type for field in self.schema})

    def _tables(self, types: dict[str, Any]) -> Iterator[Any]:
        """Yield all rows; the types of columns that are not given are those of each block."""
        options = csv.ConvertOptions(column_types=types)
        if reason := file_problem(self.file):
            raise DataError(f"{self.file} is no readable file ({reason}); copy or download it again")
        _check_marks(self.file)
        with self.file.open("rb") as stream:
            header = _whole_rows(stream, stream.readline())
            while block := stream.read(_BLOCK_BYTES):
                block = _whole_rows(stream, block + stream.readline())
                try:
                    table = csv.read_csv(
                        BytesIO(header + block), parse_options=_LINES_IN_VALUES, convert_options=options
                    )
                    _check_encoding(self.file, table.schema)
                    if not types:
                        table = _with_codes(table, BytesIO(header + block), self.codes)
                except (pa.ArrowException, ValueError, MemoryError) as error:
                    raise _not_csv(self.file, error) from error
                yield table


def _whole_rows(stream: BinaryIO, block: bytes) -> bytes:
    """Return a block that ends with a line, with further lines as long as it ends inside quotes.

    A quote that is no beginning or end of a value has no partner, so no more lines are read than a block has bytes.
    """
    rest = bytearray()
    quotes = block.count(b'"')
    while quotes % 2 and len(rest) < _BLOCK_BYTES and (line := stream.readline()):
        rest += line
        quotes += line.count(b'"')
    return block + bytes(rest)


def _common_field(fields: Sequence[Any]) -> Any:
    """Return the narrowest type that holds what each block of a column holds: text where numbers stand beside words."""
    try:
        (field,) = pa.unify_schemas([pa.schema([each]) for each in dict.fromkeys(fields)], promote_options="permissive")
        return field
    except pa.ArrowException:
        return pa.field(fields[0].name, pa.string())


def _not_csv(file: Path, error: BaseException) -> DataError:
    """The error about a file that Arrow does not read: which row is wrong, or what Arrow says."""
    if row := _wrong_row(file):
        return DataError(
            f"{file}: row {row.number:,} (the header is row 1): expected {row.expected_columns:,} values as in the "
            f"header, found {row.actual_columns:,}; correct the row"
        )
    return DataError(f"{file} is no readable CSV file with a header ({first_line(error)}); correct the file")


def _wrong_row(file: Path) -> Any:
    """The first row, a ``pyarrow.csv.InvalidRow``, with another number of values than the header; None without one."""
    found = list[Any]()

    def note(row: Any) -> str:
        found.append(row)
        return "error"

    # With several threads, Arrow does not know the number of a row.
    threads = csv.ReadOptions(use_threads=False)
    form = csv.ParseOptions(newlines_in_values=True, invalid_row_handler=note)
    with (
        suppress(pa.ArrowException, OSError, ValueError, MemoryError),
        csv.open_csv(file, read_options=threads, parse_options=form) as batches,
    ):
        for _ in batches:
            pass
    return found[0] if found else None
