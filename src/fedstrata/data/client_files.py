"""Read tables in one file per split, or one file per client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from fedstrata.base.errors import DataError, RowError
from fedstrata.base.limits import memory_limit
from fedstrata.data.column_roles import ReadOptions, holds_codes
from fedstrata.data.csv_files import CsvFile, csv_bytes, read_csv, with_texts
from fedstrata.data.dataset import Dataset, Split
from fedstrata.data.location import Location, client_of, ending_of
from fedstrata.data.mapped import InputWriter, too_large_for_memory
from fedstrata.data.npz import archive_bytes, convert_inputs, read_arrays
from fedstrata.data.parquet import read_parquet
from fedstrata.data.parquet_columns import TableSource, batches, decoded_bytes, opened, read_schema
from fedstrata.data.parts import Part, put_together, refuse_no_rows, refuse_other_shapes, table_schema


def bytes_in_memory(location: Location) -> int:
    """Return the bytes that all files take in memory, at most.

    Raises:
        DataError: When a Parquet file is broken.
    """
    by_suffix = {".csv": csv_bytes, ".npz": archive_bytes}
    return sum(by_suffix.get(ending_of(file), decoded_bytes)(file) for file in {*location.train, *location.test})


def read_files(location: Location, options: ReadOptions, writer: InputWriter | None = None) -> Dataset:
    """Read all files of a data set.

    Args:
        location: The data set, of the kind "table" or "clients".
        options: The columns that are inputs and classes.
        writer: What gets the inputs, for which files are read some rows at a time; by default the memory, all at once.

    Returns:
        The samples of both splits. The column ``client`` has the name of the file where there is a file per client, and
        the column ``split`` says which samples are for testing where there are files for that.

    Raises:
        DataError: When a file is broken, the files do not fit together, or they take too much memory.
    """
    if writer is not None:
        archives = ending_of(location.train[0]) == ".npz"
        return (_convert_archives if archives else _convert_tables)(location, options, writer)
    size = bytes_in_memory(location)
    if size > memory_limit():
        raise DataError(f"{location.name}: {too_large_for_memory(size)}")
    parts = list(_parts(location, partial(_read_table, options=options)))
    for part in parts:
        if part.table is not None:
            refuse_no_rows(len(part.table), part.place)
    return put_together(location.name, _with_same_codes(parts, options), options)


def _convert_tables(location: Location, options: ReadOptions, writer: InputWriter) -> Dataset:
    """Read tables some rows at a time."""
    # Every file is read with the columns and types of all of them.
    parts = _with_same_codes(list(_parts(location, partial(_open_table, options=options))), options)
    schema = table_schema(location.name, parts, options)
    for part in parts:
        refuse_no_rows(any(map(len, part.table.tables())), part.place)
    # It takes the place of a file.
    source: Any = TableSource(
        location.name, schema, partial(_all_rows, parts, schema), sum(Path(part.place).stat().st_size for part in parts)
    )
    try:
        return read_parquet(Location(location.name, None, (source,)), "train", options, writer)
    except RowError as error:
        raise error.in_part((part.who, sum(map(len, part.table.tables()))) for part in parts) from None


def _all_rows(parts: Sequence[Part], schema: Any) -> Iterator[Any]:
    """Yield the rows of tables, some at a time, with the columns and types of all of them."""
    for part in parts:
        for rows in part.table.tables():
            # A column that only other files have is empty here.
            yield pa.concat_tables([schema.empty_table(), part.with_role_columns(rows)], promote_options="permissive")


def _convert_archives(location: Location, options: ReadOptions, writer: InputWriter) -> Dataset:
    """Read a ``.npz`` file for each client, one after the other."""
    parts: list[Part] = []
    for part in _parts(location, partial(_read_table, options=options)):
        # An array without rows says what the inputs are.
        inputs = part.array("x")
        parts.append(replace(part, arrays={**(part.arrays or {}), "x": inputs[:0]}))
        refuse_other_shapes("x", [parts[0], parts[-1]])
        writer.add(convert_inputs(inputs, part.who, "x"))
    return put_together(location.name, parts, options, writer.finish())


def _parts(location: Location, read_table: Callable[[Path], Any]) -> Iterator[Part]:
    """Yield what each file holds."""
    splits: tuple[tuple[Split | None, tuple[Path, ...]], ...] = (
        ("train" if location.test else None, location.train),
        ("test", location.test),
    )
    for split, files in splits:
        for file in files:
            client = client_of(file, location) if location.client_column else None
            if ending_of(file) == ".npz":
                named = {"inputs": "x", "labels": "y"}
                arrays = {named.get(key, key): array for key, array in read_arrays(file).items()}
                yield Part(client, split, arrays, place=str(file))
            else:
                yield Part(client, split, None, read_table(file), str(file))


def _read_table(file: Path, options: ReadOptions) -> Any:
    """Read a file as a ``pyarrow.Table``."""
    if ending_of(file) == ".csv":
        return read_csv(file, codes=partial(holds_codes, options=options))
    with opened(file) as parquet:
        return parquet.read()


def _open_table(file: Path, options: ReadOptions) -> CsvFile | _ParquetFile:
    """Return a file that is read some rows at a time."""
    if ending_of(file) == ".csv":
        return CsvFile(file, partial(holds_codes, options=options))
    return _ParquetFile(file)


def _with_same_codes(parts: Sequence[Part], options: ReadOptions) -> list[Part]:
    """Make codes texts in all CSV files if they are in one of them, as where the codes of one file begin with 0."""
    if ending_of(Path(parts[0].place)) != ".csv":
        return list(parts)
    fields = [field for part in parts for field in part.table.schema if holds_codes(field.name, options)]
    texts = frozenset(field.name for field in fields if pa.types.is_string(field.type))
    return [replace(part, table=_with_texts(part.table, texts)) for part in parts]


def _with_texts(table: Any, columns: frozenset[str]) -> Any:
    """Make texts of some columns of integers, of a ``pyarrow.Table`` or of a file that is read some rows at a time."""
    if isinstance(table, CsvFile):
        return replace(table, texts=columns)
    return table.cast(with_texts(table.schema, columns))


@dataclass(frozen=True)
class _ParquetFile:
    """A Parquet file that is read some rows at a time.

    Attributes:
        file: The file.
    """

    file: Path

    @cached_property
    def schema(self) -> Any:
        """Return the ``pyarrow.Schema``."""
        return read_schema(self.file)

    def tables(self) -> Iterator[Any]:
        """Yield all rows, some at a time, as ``pyarrow.Table``."""
        for batch in batches(self.file, self.schema.names):
            yield pa.Table.from_batches([batch])
