"""Put the samples of several clients, files and splits together into one data set."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedstrata.base.errors import DataError, RowError, first_line
from fedstrata.base.quoting import shown
from fedstrata.data.column_roles import CLIENT_COLUMN, SPLIT_COLUMN, ReadOptions, may_be_feature, refuse_same_names
from fedstrata.data.dataset import Dataset, Split, is_number
from fedstrata.data.mapped import Inputs


@dataclass(frozen=True)
class Part:
    """Some samples, as arrays or as a table.

    Attributes:
        client: The client that holds them; None where a column says it, or nothing does.
        split: What they are for; None likewise.
        arrays: The arrays by their names, ``x``, ``y`` and further columns; None for a table.
        table: The ``pyarrow.Table``, with a row for each sample, or a file with one.
        place: Where they come from, for messages.
    """

    client: str | int | None
    split: Split | None
    arrays: dict[str, np.ndarray] | None
    table: Any = None
    place: str = ""

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.table if self.arrays is None else self.arrays["y"])

    @property
    def who(self) -> str:
        """Return the place of the samples, or the client that holds them, for a message."""
        return self.place or f"client {shown(self.client)}"

    @property
    def role_values(self) -> dict[str, str | int]:
        """Return whose the samples are and for what, as far as it is known, by the column that says so."""
        known = {CLIENT_COLUMN: self.client, SPLIT_COLUMN: self.split}
        return {column: value for column, value in known.items() if value is not None}

    @property
    def role_columns(self) -> dict[str, np.ndarray]:
        """Return the columns that say whose the samples are and for what, as far as it is known."""
        return {column: np.repeat(value, len(self)) for column, value in self.role_values.items()}

    def with_role_columns(self, table: Any) -> Any:
        """Return some rows of the table, a ``pyarrow.Table``, with the columns of roles."""
        import pyarrow as pa

        for column, value in self.role_values.items():
            table = table.append_column(column, pa.array(np.repeat(value, len(table))))
        return table

    @property
    def column_names(self) -> tuple[str, ...]:
        """Return the names of all columns that hold one value per sample."""
        own = self.table.schema.names if self.arrays is None else [key for key in self.arrays if key not in ("x", "y")]
        return (*own, *self.role_values)

    def column(self, name: str) -> np.ndarray:
        """Return one of these columns, (samples,).

        Raises:
            DataError: When there is no such column.
        """
        if name in self.role_columns:
            return self.role_columns[name]
        if self.arrays is not None:
            return self.array(name)
        from fedstrata.data.parquet_columns import read_scalar_column, table_source

        table: Any = table_source(self.who, self.table)
        return read_scalar_column([table], name)

    def array(self, key: str) -> np.ndarray:
        """Return one of the arrays.

        Raises:
            DataError: When there is none of this name.
        """
        if self.arrays is None or key not in self.arrays:
            raise DataError(f"{self.who} has no {key!r}; expected the same columns for each client and split")
        return self.arrays[key]


def put_together(name: str, parts: Sequence[Part], options: ReadOptions, inputs: Inputs | None = None) -> Dataset:
    """Make one data set of some parts, with the columns ``client`` and ``split`` where the parts know them.

    Args:
        name: The name of the data set.
        parts: The parts, all of arrays or all of tables.
        options: The columns that are inputs and classes.
        inputs: The inputs of all parts, if their own arrays have none.

    Raises:
        DataError: When the parts do not fit together.
    """
    try:
        return _of_tables(name, parts, options) if parts[0].arrays is None else _of_arrays(name, parts, options, inputs)
    except RowError as error:
        if error.place != name:
            raise
        raise error.in_part([(part.who, len(part)) for part in parts]) from None


def _of_arrays(name: str, parts: Sequence[Part], options: ReadOptions, inputs: Inputs | None) -> Dataset:
    """Make a data set of parts that are arrays."""
    from fedstrata.data.npz import dataset_of_arrays

    options.refuse_windows(name)
    options.refuse_columns(name)
    arrays: dict[str, np.ndarray] = {}
    for key in parts[0].arrays or {}:
        refuse_other_shapes(key, parts)
        arrays[key] = np.concatenate([part.array(key) for part in parts])
    for column in parts[0].role_columns:
        arrays[column] = np.concatenate([part.role_columns[column] for part in parts])
    return dataset_of_arrays(name, arrays, "train", name, inputs)


def _of_tables(name: str, parts: Sequence[Part], options: ReadOptions) -> Dataset:
    """Make a data set of parts that are tables."""
    import pyarrow as pa

    from fedstrata.data.parquet import dataset_of_table

    table_schema(name, parts, options)
    table = pa.concat_tables([part.with_role_columns(part.table) for part in parts], promote_options="permissive")
    refuse_no_rows(len(table), name)
    return dataset_of_table(name, table, options)


def table_schema(name: str, parts: Sequence[Part], options: ReadOptions) -> Any:
    """Return the ``pyarrow.Schema`` of all parts, which are tables: their columns, and those of roles.

    Args:
        name: The name of the data set.
        parts: The parts.
        options: The columns that are inputs and classes.

    Raises:
        DataError: When the parts differ in their columns, or a column has the name of one of roles.
    """
    import pyarrow as pa

    schemas = []
    for part in parts:
        taken = [column for column in part.role_values if column in part.table.schema.names]
        if taken:
            raise DataError(f"{part.who} has a column {taken[0]!r}, whose name is needed for more; rename it")
        schemas.append(part.with_role_columns(part.table.schema.empty_table()).schema)
    missing = [(part, column) for part in parts for column in schemas[0].names if column not in part.column_names]
    if missing:
        part, column = missing[0]
        raise DataError(f"{part.who} has no column {column!r}; expected the columns of {parts[0].who}")
    refuse_same_names(schemas[0].names, parts[0].who)
    _refuse_further_features(parts, schemas, options)
    try:
        return pa.unify_schemas(schemas, promote_options="permissive")
    except pa.ArrowException as error:
        for part, schema in zip(parts[1:], schemas[1:], strict=True):
            _refuse_other_kinds(parts[0], schemas[0], part, schema)
        raise DataError(f"{name}: expected columns of the same kind for each client ({first_line(error)})") from None


def _refuse_further_features(parts: Sequence[Part], schemas: Sequence[Any], options: ReadOptions) -> None:
    """Refuse a part with a feature that the first part does not have. Other columns may be in some parts alone."""
    import pyarrow as pa

    def is_feature(field: Any) -> bool:
        if options.inputs:
            return field.name in options.inputs
        numbers = pa.types.is_integer(field.type) or pa.types.is_floating(field.type) or pa.types.is_boolean(field.type)
        return numbers and may_be_feature(field.name, options)

    to_do = "take it out of data.inputs" if options.inputs else "take it out, or name the features in data.inputs"
    for part, schema in zip(parts[1:], schemas[1:], strict=True):
        for field in schema:
            if field.name not in schemas[0].names and is_feature(field):
                raise DataError(
                    f"{part.who} has a column {field.name!r}, and {parts[0].who} has none; expected the same features "
                    f"of each client; {to_do}"
                )


def _refuse_other_kinds(first: Part, schema: Any, part: Part, other: Any) -> None:
    """Refuse a part with a column of another kind than in the first part. Texts among numbers are shown.

    Args:
        first: The first part.
        schema: Its ``pyarrow.Schema``.
        part: Another part.
        other: Its schema, with the same columns.

    Raises:
        DataError: For the first such column.
    """
    import pyarrow as pa

    from fedstrata.data.parquet_columns import is_text

    for field in schema:
        kinds = (field, other.field(field.name))
        with suppress(pa.ArrowException):
            pa.unify_schemas([pa.schema([each]) for each in kinds], promote_options="permissive")
            continue
        of_texts = next((each for each, kind in zip((first, part), kinds, strict=True) if is_text(kind.type)), None)
        if of_texts is not None and isinstance(of_texts.table, pa.Table):
            _refuse_first_text(of_texts, field.name, first if of_texts is part else part)
        raise DataError(
            f"{part.who}: expected {field.type} in column {field.name!r}, as of {first.who}, found {kinds[1].type}; "
            "make them alike"
        )


def _refuse_first_text(part: Part, column: str, numbers: Part) -> None:
    """Refuse the first text that is no number in a column that holds numbers in another part."""
    for row, text in enumerate(part.column(column).tolist()):
        if text and not is_number(text):
            raise RowError(
                part.who,
                row,
                f"of column {column!r} holds {shown(text)}; expected a number, as of {numbers.who}; correct it",
            )


def refuse_no_rows(rows: int, place: str) -> None:
    """Refuse a table that has the names of its columns alone."""
    if not rows:
        raise DataError(f"{place} holds no samples; expected a row for each, found none")


def refuse_other_shapes(key: str, parts: Sequence[Part]) -> None:
    """Refuse parts whose arrays cannot be put together."""
    first = parts[0].array(key)
    for part in parts:
        array = part.array(key)
        # Texts of other lengths have other types, and any numbers can be put together but pixels.
        kinds = {"text" if each.dtype.kind == "U" else str(each.dtype == np.uint8) for each in (first, array)}
        if array.shape[1:] != first.shape[1:] or len(kinds) > 1:
            raise DataError(
                f"{part.who}: {key} is {array.dtype} {array.shape}; expected {first.dtype} and samples of shape "
                f"{first.shape[1:]}, as of {parts[0].who}"
            )
