"""Rows of named columns, some at a time: the one form in which samples come, whatever holds them.

A `Table` is a file or an object in memory, with columns of one value that say whose rows they are. Every error names
the file or object, the column and the row, counted from 0.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedstrata.base.errors import DataError, RowError
from fedstrata.base.limits import COLUMN_CHARACTERS, COLUMNS, MIB, expansion_problem, memory_problem
from fedstrata.data.column_roles import refuse_same_names

ROWS = 4096
"""The largest number of rows that are read at a time."""

ROWS_BYTES = 16 * MIB
"""The largest number of bytes in them, unless a row has more."""


@dataclass(frozen=True, eq=False)
class Table(ABC):
    """Some samples: rows of a file or of an object in memory, and what is known of all of them.

    Attributes:
        place: Where it is, for messages: the path of a file, or of a folder.
        constants: The value of each further column whose rows are all alike, such as the client and the split.
        files: The file that each row is; empty where rows are no files.
        codes: The columns of texts that become whole numbers where all of them are: see `as_numbers`.
    """

    place: str
    constants: Mapping[str, str | int] = field(default_factory=dict, kw_only=True)
    files: Sequence[Path] = field(default=(), kw_only=True)
    codes: ClassVar[frozenset[str]] = frozenset()

    @property
    def stored(self) -> int:
        """The bytes that it takes where it is; those of a file, unless a class says otherwise."""
        return os.stat(self.place).st_size

    @property
    @abstractmethod
    def own_schema(self) -> Any:
        """The ``pyarrow.Schema`` of what is there.

        Raises:
            DataError: When it is broken.
        """

    @abstractmethod
    def batches(self, columns: list[str]) -> Iterator[Any]:
        """Yield a ``pyarrow.RecordBatch`` of some columns that are there after the other.

        Args:
            columns: The columns.

        Raises:
            DataError: When it is broken.
        """

    @cached_property
    def schema(self) -> Any:
        """Return the ``pyarrow.Schema`` of all columns, in which dictionaries are written out.

        Raises:
            DataError: When two columns have one name, or what is there is broken.
        """
        own = self.own_schema
        refuse_same_names(own.names, self.place)
        if taken := [column for column in self.constants if column in own.names]:
            raise DataError(f"{self.place} has a column {taken[0]!r}, whose name is needed for more; rename it")
        fields = [each.with_type(_plain_type(each.type)) for each in own]
        fields += [pa.field(name, pa.scalar(value).type) for name, value in self.constants.items()]
        return pa.schema(fields, own.metadata)

    def chunks(self, columns: Sequence[str]) -> Iterator[dict[str, Chunk]]:
        """Read some columns, and yield the next rows of each by its name.

        Raises:
            DataError: When it is broken, lacks a column, or takes far more memory than it takes where it is.
        """
        require_columns(self.place, self.schema, columns)
        own = [column for column in columns if column not in self.constants]
        first_row = decoded = 0
        # Without any column of its own, one tells how many rows there are: if there is one, one of little content.
        light = [each.name for each in self.own_schema if is_scalar(each.type)] or self.own_schema.names
        for batch in self.batches(own or light[:1]):
            if not len(batch):
                continue
            rows = {name: pa.repeat(self.constants[name], len(batch)) for name in columns if name in self.constants}
            rows |= {name: batch.column(name).cast(_plain_type(batch.column(name).type)) for name in own}
            decoded += sum(rows[name].nbytes for name in own)
            if problem := expansion_problem(decoded, self.stored):
                raise DataError(f"{self.place}: {problem}")
            yield {name: Chunk(self, name, first_row, rows[name]) for name in columns}
            first_row += len(batch)


@dataclass(frozen=True, eq=False)
class MemoryTable(Table):
    """A ``pyarrow.Table``.

    Attributes:
        rows: Its rows.
    """

    rows: Any

    @property
    def own_schema(self) -> Any:
        """Return the schema of the rows."""
        return self.rows.schema

    @property
    def stored(self) -> int:
        """Return the bytes of the rows."""
        return int(self.rows.nbytes)

    def batches(self, columns: list[str]) -> Iterator[Any]:
        """Yield the rows."""
        rows = self.rows.select(columns)
        yield from rows.to_batches(max(1, min(ROWS, len(rows) * ROWS_BYTES // max(1, rows.nbytes))))


@dataclass(frozen=True, eq=False)
class Chunk:
    """Consecutive rows of one column.

    Attributes:
        table: What holds them.
        column: The name of the column.
        first_row: The number of the first row in the table.
        values: The rows, as a ``pyarrow.Array``. A dictionary is written out.
    """

    table: Table
    column: str
    first_row: int
    values: Any

    @property
    def place(self) -> str:
        """Return where the rows come from, for a message."""
        return self.table.place

    def error(self, row: int, problem: str) -> DataError:
        """Return the error that tells the problem of a row, which is counted from the first of this chunk."""
        row += self.first_row
        if self.table.files:
            return DataError(f"{self.table.files[row]} {problem}")
        return RowError(self.place, row, f"of column {self.column!r} {problem}")

    def arrays(self) -> np.ndarray:
        """Return the rows of a column of lists or tensors of numbers as one array, (rows, ...).

        Raises:
            DataError: When a value is missing, or lists differ in their length.
        """
        tensor = is_tensor(self.values.type)
        values = self.values.storage if tensor else self.values
        shape = [len(values)]
        while True:
            # At this level of nesting, each row has as many lists or numbers.
            per_row = prod(shape[1:])
            if values.null_count:
                raise self.error(int(pc.index(values.is_null(), True).as_py()) // per_row, "holds a missing value")
            if not is_list(values.type):
                break
            lengths = pc.list_value_length(values).to_numpy()
            shape.append(int(lengths[0]))
            wrong = (lengths != shape[-1]) | (lengths == 0)
            if wrong.any():
                place = int(np.argmax(wrong))
                problem = f"holds a list of {lengths[place]}; expected {shape[-1] or 'some numbers'}"
                raise self.error(place // per_row, problem)
            values = values.flatten()
        if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
            raise DataError(f"{self.place}: column {self.column!r} holds {self.values.type}; expected lists of numbers")
        numbers: np.ndarray = self.values.to_numpy_ndarray() if tensor else values.to_numpy().reshape(shape)
        return numbers


def read_column(tables: Sequence[Table], column: str) -> np.ndarray:
    """Read one column of one value per row, (rows,).

    Raises:
        DataError: When there is no such column, or a table has no rows.
    """
    parts = list[Any]()
    for table in tables:
        rows = [chunks[column].values for chunks in table.chunks([column])]
        refuse_no_rows(len(rows), table.place)
        parts += rows
    return joined(tables, column, common_schema(tables, [column]).field(column).type, parts)


def joined(tables: Sequence[Table], column: str, kind: Any, parts: Sequence[Any]) -> np.ndarray:
    """Return the rows of a column of scalars of some tables as `to_numpy` does, (rows,).

    Args:
        tables: The tables.
        column: The name of the column.
        kind: The Arrow type that all rows get.
        parts: The rows, a ``pyarrow.Array`` after the other.

    Raises:
        DataError: When a text is too long, or a value is none of this type.
    """
    called = f"{tables[0].place}: column {column!r}"
    try:
        values = pa.chunked_array([part.cast(kind) for part in parts], kind).combine_chunks()
    except pa.ArrowException as error:
        raise DataError(f"{called}: {error}; make it alike in all files") from None
    if is_text(values.type):
        # numpy gives every text the space of the longest.
        longest = pc.max(pc.utf8_length(values)).as_py() or 0
        if longest > COLUMN_CHARACTERS:
            raise DataError(f"{called} holds a text of {longest:,} characters; expected at most {COLUMN_CHARACTERS:,}")
        if problem := memory_problem(4 * longest * len(values), sum(table.stored for table in tables)):
            raise DataError(f"{called}: {problem}")
    if any(column in table.codes for table in tables):
        values = as_numbers(values)
    # What Arrow holds must not be written to.
    return np.array(to_numpy(values))


def common_schema(tables: Sequence[Table], columns: Collection[str] | None = None) -> Any:
    """Return the ``pyarrow.Schema`` of all tables: the narrowest types that hold what each of them holds.

    Args:
        tables: The tables.
        columns: The columns that count, which all have; None for all that any has.

    Raises:
        DataError: When the tables differ in the kind of a column.
    """
    common = pa.schema([each for each in tables[0].schema if columns is None or each.name in columns])
    common = common.with_metadata(tables[0].schema.metadata)
    for table in tables[1:]:
        own = [each for each in table.schema if columns is None or each.name in columns]
        others = pa.schema([each for each in own if not _alike(each, common)])
        try:
            common = pa.unify_schemas([common, others], promote_options="permissive")
        except pa.ArrowException as error:
            raise DataError(
                f"{table.place}: {error}, as in {tables[0].place}; make the column alike in all files"
            ) from None
    return common


def _alike(column: Any, schema: Any) -> bool:
    """Return whether a column of arrays can be put behind one of a schema: of one shape, both of pixels or neither."""
    known: Any = schema.field(column.name).type if column.name in schema.names else None
    same_shape = is_tensor(column.type) and is_tensor(known) and column.type.shape == known.shape
    return same_shape and (column.type.value_type == pa.uint8()) == (known.value_type == pa.uint8())


def refuse_no_rows(rows: int | bool, place: str) -> None:
    """Refuse a table that has the names of its columns alone."""
    if not rows:
        raise DataError(f"{place} holds no samples; expected a row for each, found none")


def refuse_many_columns(columns: int, place: str) -> None:
    """Refuse a table whose columns would take more time and memory than their values."""
    if columns > COLUMNS:
        raise DataError(f"{place} has {columns:,} columns; expected at most {COLUMNS:,}")


def require_columns(place: str, schema: Any, columns: Collection[str]) -> None:
    """Refuse a table whose ``pyarrow.Schema`` lacks a column."""
    for column in columns:
        if column not in schema.names:
            raise DataError(f"{place} has no column {column!r}; it has {', '.join(schema.names)}")


def _plain_type(kind: Any) -> Any:
    """Return the type of the values of a dictionary, and the usual type of texts."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.string() if pa.types.is_string_view(kind) else kind


def is_tensor(kind: Any) -> bool:
    """Tell whether an Arrow type is that of arrays of one shape."""
    return isinstance(kind, pa.FixedShapeTensorType)


def is_list(kind: Any) -> bool:
    """Tell whether an Arrow type is a list of any sort."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def has_one_axis(kind: Any) -> bool:
    """Tell whether an Arrow type is that of rows of numbers."""
    return len(kind.shape) == 1 if is_tensor(kind) else is_list(kind) and not is_list(kind.value_type)


def is_image(kind: Any) -> bool:
    """Tell whether an Arrow type is that of encoded images: bytes, or a struct with a field of them."""
    if pa.types.is_struct(kind):
        return bool(kind.get_field_index("bytes") >= 0)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def is_text(kind: Any) -> bool:
    """Tell whether an Arrow type is that of texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_number(kind: Any) -> bool:
    """Tell whether an Arrow type is that of numbers or bools."""
    checks = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean)
    return any(check(kind) for check in checks)


def is_scalar(kind: Any) -> bool:
    """Tell whether an Arrow type is a number, a bool, a text, or a date or time; null is any of them."""
    return bool(is_number(kind) or is_text(kind) or pa.types.is_temporal(kind) or pa.types.is_null(kind))


def to_numpy(values: Any) -> np.ndarray:
    """Return the values of a ``pyarrow.Array`` of scalars, (rows,).

    Dates and times become texts, and decimals floats, or integers if they have no fraction. A missing number is nan, a
    missing text is empty.
    """
    if pa.types.is_temporal(values.type) or pa.types.is_null(values.type):
        values = values.cast(pa.string())
    if pa.types.is_decimal(values.type):
        # Databases export whole numbers, such as those of patients, as decimals without a fraction.
        values = values.cast(pa.int64() if values.type.scale == 0 else pa.float64())
    if is_text(values.type):
        return np.array([text or "" for text in values.to_pylist()], dtype=np.str_)
    if values.null_count:
        return np.from_dlpack(pc.fill_null(values.cast(pa.float64()), np.nan))
    if pa.types.is_boolean(values.type):
        return np.from_dlpack(values.cast(pa.uint8())).astype(np.bool_)
    # Arrow's own way would import pandas.
    return np.from_dlpack(values)


_LEADING_ZERO = r"^\s*0[0-9]+\s*$"
"""The form of a code that would lose zeros as a number."""


def as_numbers(texts: Any) -> Any:
    """Return a ``pyarrow.Array`` of texts as whole numbers if all are, and none begins with 0 as 007 does."""
    if pc.any(pc.match_substring_regex(texts, _LEADING_ZERO)).as_py():
        return texts
    try:
        return pc.if_else(pc.equal(texts, ""), None, texts).cast(pa.int64())
    # As a float, a code of many digits would be another one.
    except pa.ArrowInvalid:
        return texts


def tensors(array: np.ndarray, place: str) -> Any:
    """Return an array as a column: (rows,) as it is, numbers (rows, ...) as a ``pyarrow.FixedShapeTensorArray``.

    Texts may be (rows, 1), as programs keep the column of a table.

    Args:
        array: Some rows, at least one.
        place: Where it comes from, for messages.

    Raises:
        DataError: When it has several axes, and holds no numbers.
    """
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.shape[1:] == (1,) and array.dtype.kind in "US":
        array = array[:, 0]
    try:
        # Texts without characters take no bytes, however many there are.
        if array.ndim == 1 and array.dtype.itemsize:
            return pa.array(array.astype(np.str_) if array.dtype.kind == "S" else array)
        if array.ndim and array.dtype.kind in "iuf":
            numbers = pa.array(np.ascontiguousarray(array).reshape(-1))
            rows = pa.FixedSizeListArray.from_arrays(numbers, prod(array.shape[1:]))
            return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(numbers.type, array.shape[1:]), rows)
    # Arrow has no complex numbers, none of 128 bits, and no records. Bytes may be no texts.
    except (pa.ArrowException, UnicodeDecodeError):
        pass
    raise DataError(f"{place} is {array.dtype} {array.shape}; expected numbers, or one text for each row")
