"""Make a data set of tables: which columns are inputs, which are classes, and what they hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedstrata.base.errors import DataError, RowError, first_line
from fedstrata.base.lazy_torch import torch
from fedstrata.base.limits import COLUMN_CHARACTERS, expansion_problem, memory_problem
from fedstrata.base.quoting import listed, shown
from fedstrata.data import recordings, tables
from fedstrata.data.answers import Answers, answers_by_rule, answers_of, hugging_face_names, refuse_missing_classes
from fedstrata.data.column_roles import (
    ROW_COLUMN,
    SPLIT_COLUMN,
    TRIAL_COLUMN,
    ReadOptions,
    label_column,
    may_be_feature,
    split_column,
)
from fedstrata.data.dataset import Dataset, channel_statistics, check_sample_size, finite_float32, is_number, is_test
from fedstrata.data.images import has_colour, pixels_of
from fedstrata.data.mapped import InputWriter
from fedstrata.data.preparation import GAPS
from fedstrata.data.registry import DatasetInfo
from fedstrata.data.tables import Chunk, Table

CATEGORIES = 50
"""The largest number of different texts in a column of categories."""

_LARGEST = float(np.finfo(np.float32).max)
"""The largest number of a feature."""

_Converted = tuple[np.ndarray, Sequence[int] | None]
"""Samples, and how many of them each row has; None where each row is one."""


@dataclass(frozen=True)
class _Form:
    """What the inputs of tables are.

    Attributes:
        label: The column of classes.
        inputs: The columns of which inputs are made, and which are kept nowhere else.
        convert: The function that makes samples of some rows of these columns, and is given the shape of those before;
            the shape is empty for the first.
        features: The columns that are features, if the rows of a table are.
        texts: The texts of each feature, ascending; none of a column of numbers.
        window: The readings in a window, if inputs are recordings.
    """

    label: str
    inputs: tuple[str, ...]
    convert: Callable[[Mapping[str, Chunk], tuple[int, ...]], _Converted]
    features: tuple[str, ...] = ()
    texts: tuple[tuple[str, ...], ...] = ()
    window: int = 0


def read_tables(
    name: str,
    given: Sequence[Table],
    options: ReadOptions,
    info: DatasetInfo | None = None,
    writer: InputWriter | None = None,
) -> Dataset:
    """Read some tables, whose rows follow each other.

    Args:
        name: The name of the data set.
        given: The tables. The first one says what the columns are.
        options: The columns that are inputs and classes, where they are not known.
        info: What is known of the data set.
        writer: What gets the inputs; by default the memory.

    Returns:
        The samples. Of recordings they are windows, (windows, channels, window) float32; their unit is the recording,
        in the column ``trial``.

    Raises:
        DataError: When the tables do not fit together, or a column or row is missing or broken.
    """
    place = given[0].place
    schema = _common_schema(given)
    form = _form(given, schema, options, info)
    _refuse_other_inputs(given, form, options)
    writer = writer or InputWriter(place)
    rows = _Rows(schema, form)
    for table in given:
        rows.read(table, writer)
    columns = {SPLIT_COLUMN if key == split_column([key]) else key: column for key, column in rows.columns().items()}
    try:
        answers = _answers(np.concatenate(rows.answers), given, schema, form.label, options, info)
        testing = is_test(columns[SPLIT_COLUMN], place) if SPLIT_COLUMN in columns else np.zeros(rows.count, bool)
    except RowError as error:
        raise error.in_part(rows.of_tables) from None
    # Beside arrays, every further one is a column.
    alone = not (info or form.features or tables.is_tensor(schema.field(form.inputs[0]).type))
    notes = _unread_numbers(columns, form.inputs[0], options) if alone else ()
    if form.window:
        counts = np.array(rows.counts)
        if not counts.any():
            raise DataError(f"{place}: no recording has {form.window} readings; set data.window lower")
        if not info:
            notes = recordings.short_recordings(counts, columns.get(recordings.SUBJECT), form.window) + notes
        columns[TRIAL_COLUMN] = _trials(columns, answers, place, info)
        # Several recordings may be of one trial.
        columns.setdefault(ROW_COLUMN, np.arange(len(counts)))
        columns = {key: np.repeat(column, counts) for key, column in columns.items()}
        answers, testing = answers.repeated(counts), np.repeat(testing, counts)
    if testing.all():
        raise DataError(f"{name}: column {SPLIT_COLUMN!r} marks all samples for testing; mark some train")
    inputs = writer.finish()
    mean, std = (info.mean, info.std) if info else ((), ())
    if not mean and inputs.dtype != torch.float64:
        mean, std = channel_statistics(inputs, torch.from_numpy(np.flatnonzero(~testing)) if testing.any() else None)
    return Dataset(
        name,
        inputs,
        mean=mean,
        std=std,
        columns=columns,
        feature_names=form.features,
        texts=form.texts,
        unit=TRIAL_COLUMN if form.window else None,
        notes=notes,
        **answers.fields,
    )


def _trials(columns: Mapping[str, np.ndarray], answers: Answers, place: str, info: DatasetInfo | None) -> np.ndarray:
    """Return an id for each recording, unique in the data set, (recordings,)."""
    if info:
        return recordings.numbers_of(columns, answers.labels, place)
    names = np.array(answers.class_names)
    return recordings.names_of(columns, names[answers.labels] if len(names) else answers.labels)


class _Rows:
    """What was read of the rows of tables beside their inputs.

    Attributes:
        answers: The column of classes, (rows', ...) each.
        counts: The samples of each row, where a row may have several.
        of_tables: The place of each table, and the number of its rows.
    """

    @property
    def count(self) -> int:
        """Return the number of rows."""
        return sum(count for _, count in self.of_tables)

    def __init__(self, schema: Any, form: _Form) -> None:
        self.answers = list[np.ndarray]()
        self.counts = list[int]()
        self.of_tables = list[tuple[str, int]]()
        self._schema = schema
        self._form = form
        kept = [each.name for each in schema if tables.is_scalar(each.type)]
        self._columns: dict[str, list[np.ndarray]] = {
            name: [] for name in kept if name not in (*form.inputs, form.label)
        }
        self._codes = set[str]()
        self._images = tables.is_image(schema.field(form.inputs[0]).type)
        self._stored = 0

    def read(self, table: Table, writer: InputWriter) -> None:
        """Read the rows of a table."""
        wanted = [*self._form.inputs, self._form.label, *self._columns]
        count = 0
        self._codes |= table.source.codes
        self._stored += table.source.stored
        for chunks in table.chunks([name for name in dict.fromkeys(wanted) if name in table.schema.names]):
            samples, of_rows = self._form.convert(chunks, writer.shape)
            label = chunks[self._form.label]
            rows = len(label.values)
            if len(samples):
                writer.add(samples)
                if self._images and (problem := expansion_problem(writer.nbytes, self._stored)):
                    raise DataError(f"{table.place}: {problem}")
            self.counts += of_rows or []
            self.answers.append(self._learnt(label))
            for name, parts in self._columns.items():
                kind = self._schema.field(name).type
                parts.append(_values(chunks[name], kind) if name in chunks else tables.to_numpy(pa.nulls(rows, kind)))
            count += rows
        tables.refuse_no_rows(count, table.place)
        self.of_tables.append((table.place, count))

    def _learnt(self, chunk: Chunk) -> np.ndarray:
        """Return classes, (rows,), or numbers in place of them, (rows,) or (rows, outputs)."""
        kind = chunk.values.type
        if tables.is_scalar(kind):
            return _values(chunk, self._schema.field(chunk.column).type)
        if not (tables.is_list(kind) or tables.is_tensor(kind)):
            raise DataError(f"{chunk.place}: column {chunk.column!r} holds {kind}; expected integers or texts")
        values = _dense(chunk).reshape(len(chunk.values), -1)
        if self.answers and values.shape[1:] != self.answers[0].shape[1:]:
            raise chunk.error(0, f"has {values.shape[1]} numbers; expected as many as the rows before")
        return values

    def columns(self) -> dict[str, np.ndarray]:
        """Return the further columns, (rows,) each.

        Raises:
            DataError: When the texts of a column take too much memory.
        """
        found = {}
        for name, parts in self._columns.items():
            # numpy gives every text of a column the space of the longest.
            size = max(part.dtype.itemsize for part in parts) * sum(map(len, parts))
            if problem := memory_problem(size, self._stored):
                raise DataError(f"{self.of_tables[0][0]}: column {name!r}: {problem}")
            values = np.concatenate(parts)
            found[name] = tables.as_numbers(values) if name in self._codes else values
        return found


def _values(chunk: Chunk, kind: Any) -> np.ndarray:
    """Return a column of scalars in the type that it has in all tables, (rows,)."""
    # numpy would give all other texts the space of one that is too long.
    if tables.is_text(chunk.values.type):
        lengths = pc.utf8_length(chunk.values)
        longest = pc.max(lengths).as_py() or 0
        if longest > COLUMN_CHARACTERS:
            problem = f"holds a text of {longest:,} characters; expected at most {COLUMN_CHARACTERS:,}"
            raise chunk.error(pc.index(lengths, longest).as_py(), problem)
    try:
        return tables.to_numpy(chunk.values.cast(kind))
    except pa.ArrowException as error:
        found = f"holds a value that {kind} cannot hold ({first_line(error)})"
        raise DataError(f"{chunk.place}: column {chunk.column!r} {found}; make the column alike in all files") from None


def _answers(
    values: np.ndarray, given: Sequence[Table], schema: Any, column: str, options: ReadOptions, info: DatasetInfo | None
) -> Answers:
    """Return what is to be learnt of a column of tables."""
    place = given[0].place
    if (made := answers_by_rule(values, options, column, place)) is not None:
        return made
    called = f"column {column!r}"
    kind = schema.field(column).type
    if info and not (pa.types.is_integer(kind) or tables.is_text(kind)):
        raise DataError(f"{place}: {called} holds {kind}; expected integers or texts")
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        refuse_missing_classes(values != values, place, called)
    names = {hugging_face_names(table.schema.metadata, column) for table in given}
    if len(names) > 1:
        raise DataError(f"{place}: expected the same names of classes in all files, found several in {called}")
    return answers_of(values, place, called, names.pop(), info.classes if info else 0)


# What the inputs are.


def _form(given: Sequence[Table], common: Any, options: ReadOptions, info: DatasetInfo | None) -> _Form:
    """Say what the inputs of tables are, by the columns of the first, in the types that they have in all."""
    schema, place = pa.schema([common.field(name) for name in given[0].schema.names]), given[0].place
    if recordings.holds_recordings(schema) or (info and info.input_column == recordings.SIGNAL):
        return _recordings(schema, place, options, info)
    options.refuse(place, "window", "step")
    label = info.label_column if info else label_column(schema.names, options, place)
    column = info.input_column if info else _input_column(schema, label, options, place)
    if column is None:
        options.refuse(place, "size")
        return _form_of_rows(given, schema, label, options)
    tables.require_columns(place, schema, (column, label))
    kind = schema.field(column).type
    if tables.is_image(kind):
        colour = info.shape[0] == 3 if info else has_colour(chain(*(_chunks(table, column) for table in given)))
        known = info.shape if info else ()
        return _Form(label, (column,), partial(_pixels, column, "RGB" if colour else "L", options.size, known))
    options.refuse(place, "size")
    if not (tables.is_list(kind) or tables.is_tensor(kind)):
        raise DataError(f"{place}: column {column!r} holds {kind}; expected images or lists")
    return _Form(label, (column,), partial(_arrays, column, options.gaps))


def _chunks(table: Table, column: str) -> Any:
    return (chunks[column] for chunks in table.chunks([column]))


def _input_column(schema: Any, label: str, options: ReadOptions, place: str) -> str | None:
    """Return the one column of images or arrays; None where columns of numbers are the inputs."""
    kinds = (tables.is_image, tables.is_list, tables.is_tensor)
    found = [each.name for each in schema if each.name != label and any(fits(each.type) for fits in kinds)]
    if options.inputs:
        chosen = [name for name in found if name in options.inputs]
        if len(found) == 1:
            options.refuse_other_inputs(found[0], place)
        found = chosen
    if len(found) > 1:
        raise DataError(
            f"{place}: expected one column of images or lists, found {' and '.join(found)}; name one in data.inputs"
        )
    return found[0] if found else None


def _form_of_rows(given: Sequence[Table], schema: Any, label: str, options: ReadOptions) -> _Form:
    """The form of the rows of tables, whose features are columns of numbers and of texts."""
    place = given[0].place
    names = [each.name for each in schema if tables.is_scalar(each.type)]
    numbers = [name for name in names if tables.is_number(schema.field(name).type)]
    texts = [name for name in names if tables.is_text(schema.field(name).type)] if options.categories else []
    for name in options.inputs:
        if name not in (*numbers, *texts) or name == label:
            found = f"no column {name!r}, only {', '.join(names)}"
            if name in names:
                found = f"classes in {name!r}" if name == label else f"{schema.field(name).type} in {name!r}"
            raise DataError(f"data.inputs: expected columns of numbers or texts, {place} has {found}")
    wanted = options.inputs or [
        name for name in names if name in (*numbers, *texts) and name != label and may_be_feature(name, options)
    ]
    known = dict(zip(options.inputs, options.texts, strict=True)) if options.texts else {}
    if not known:
        known = _texts_of(given, [name for name in wanted if name in texts], options)
    features = tuple(name for name in wanted if name in known or name in numbers)
    if not features:
        raise DataError(
            f"{place}: expected columns of numbers or texts beside {label!r}, found {', '.join(names)}; name the "
            "features in data.inputs"
        )
    vocabulary = tuple(known.get(name, ()) for name in features)
    kinds = {name: schema.field(name).type for name in features}
    return _Form(label, features, partial(_values_of_features, kinds, vocabulary, options.gaps), features, vocabulary)


def _texts_of(given: Sequence[Table], columns: Sequence[str], options: ReadOptions) -> dict[str, tuple[str, ...]]:
    """Return the texts of each column of texts that is a feature, ascending.

    A column of more texts than `CATEGORIES` is none, unless it is named: it holds notes or names.
    """
    found = {name: set[str]() for name in columns}
    for chunks in chain(*(table.chunks(columns) for table in given if columns)):
        for name, chunk in chunks.items():
            if len(found[name]) <= CATEGORIES:
                found[name] |= set(pc.unique(chunk.values.cast(pa.string())).to_pylist()) - {None, *GAPS}
    for name in options.inputs:
        if len(found.get(name, ())) > CATEGORIES:
            raise DataError(
                f"data.inputs: expected columns of at most {CATEGORIES} texts, found more in {name!r}; leave it out"
            )
    return {name: tuple(sorted(texts)) for name, texts in found.items() if len(texts) <= CATEGORIES}


def _recordings(schema: Any, place: str, options: ReadOptions, info: DatasetInfo | None) -> _Form:
    """The form of recordings. Their classes are in "activity" by default."""
    options.refuse(place, "size")
    options.refuse_other_inputs(recordings.SIGNAL, place)
    if info:
        # Every file of a known data set has its layout.
        needed = (recordings.SIGNAL, TRIAL_COLUMN, recordings.SUBJECT, *recordings.SIZES)
        tables.require_columns(place, schema, needed)
    usual = recordings.ACTIVITY in schema.names and options.label is None
    label = recordings.ACTIVITY if usual else label_column(schema.names, options, place)
    window = options.window or recordings.WINDOW_READINGS
    inputs = (recordings.SIGNAL, *(name for name in recordings.SIZES if name in schema.names))
    return _Form(label, inputs, partial(_windows, window, options.step or window), window=window)


def _windows(window: int, step: int, chunks: Mapping[str, Chunk], shape: tuple[int, ...]) -> _Converted:
    """Make windows of recordings."""
    return recordings.windows_of(chunks, window, step, shape[0] if shape else 0)


def _pixels(
    column: str,
    mode: str,
    size: int | None,
    known: tuple[int, ...],
    chunks: Mapping[str, Chunk],
    shape: tuple[int, ...],
) -> _Converted:
    """Make (rows, channels, height, width) uint8 of images."""
    return pixels_of(chunks[column], mode, size, shape or known), None


def _arrays(column: str, gaps: bool, chunks: Mapping[str, Chunk], shape: tuple[int, ...]) -> _Converted:
    """Make (rows, channels, ...) of arrays: uint8 stays as it is, all other numbers become float32.

    uint8 images may also come as (rows, height, width), and images with one or three channels last. Rows of numbers are
    those of a table without names, float64.
    """
    chunk = chunks[column]
    values = _dense(chunk)
    if values.ndim == 4 and values.shape[1] not in (1, 3) and values.shape[3] in (1, 3):
        values = values.transpose(0, 3, 1, 2)
    if values.dtype == np.uint8 and tables.is_tensor(chunk.values.type):
        values = values[:, None] if values.ndim == 3 else values
    elif values.ndim == 2:
        values = _numbers(chunk, values, gaps)
    else:
        values = finite_float32(values, chunk.place, f"column {column!r}", chunk.first_row)
    if shape and values.shape[1:] != shape:
        raise chunk.error(0, f"has shape {values.shape[1:]}; expected {shape}, as the rows before")
    check_sample_size(values.shape[1:], f"{chunk.place}: column {column!r}")
    return np.ascontiguousarray(values), None


def _values_of_features(
    kinds: Mapping[str, Any],
    texts: Sequence[Sequence[str]],
    gaps: bool,
    chunks: Mapping[str, Chunk],
    shape: object,
) -> _Converted:
    """Put features of some Arrow types beside each other, (rows, features) float64; texts are their places."""
    columns = list[np.ndarray]()
    for (feature, kind), known in zip(kinds.items(), texts, strict=True):
        chunk = chunks[feature]
        if tables.is_text(kind):
            places = pc.index_in(chunk.values.cast(pa.string()), pa.array(known, pa.string()))
            columns.append(places.to_numpy(zero_copy_only=False).astype(np.float64))
        else:
            columns.append(_numbers(chunk, _values(chunk, kind), gaps))
    return np.stack(columns, axis=1), None


def _numbers(chunk: Chunk, values: np.ndarray, gaps: bool) -> np.ndarray:
    """Return numbers of rows, (rows, ...) float64, in which gaps are nan.

    Raises:
        DataError: When a number is too large, or one is missing and may not.
    """
    numbers: np.ndarray = values.astype(np.float64)
    wrong = np.abs(numbers) > _LARGEST if gaps else ~(np.abs(numbers) <= _LARGEST)
    rows = np.flatnonzero(wrong.reshape(len(wrong), -1).any(axis=1))
    if len(rows):
        others = f", and so do {len(rows) - 1} others" if len(rows) > 1 else ""
        advice = "" if gaps else "set data.impute, "
        raise chunk.error(
            int(rows[0]),
            f"holds no finite number{others}; {advice}fill it in, leave the row out, or name other columns in "
            "data.inputs",
        )
    return numbers


def _dense(chunk: Chunk) -> np.ndarray:
    """Return lists, or tensors, as one array, (rows, ...)."""
    values = chunk.values
    if tables.is_tensor(values.type):
        order = values.type.permutation
        if values.null_count or (order and list(order) != sorted(order)):
            raise chunk.error(0, "holds arrays of which some are missing, or whose axes are in another order")
        numbers: np.ndarray = values.storage.flatten().to_numpy()
        return numbers.reshape(len(values), *values.type.shape)
    shape = [len(values)]
    while True:
        # At this level of nesting, each row has as many lists or numbers.
        per_row = prod(shape[1:])
        if values.null_count:
            raise chunk.error(int(pc.index(values.is_null(), True).as_py()) // per_row, "holds a missing value")
        if not tables.is_list(values.type):
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
        raise DataError(f"{chunk.place}: column {chunk.column!r} holds lists of {values.type}; expected numbers")
    numbers = values.to_numpy()
    return numbers.reshape(shape)


def _unread_numbers(columns: Mapping[str, np.ndarray], read: str, options: ReadOptions) -> tuple[str, ...]:
    """A line about columns of numbers that may be features, but are not read, as one column has all inputs."""
    numbers = [name for name, values in columns.items() if values.dtype.kind in "fiu" and may_be_feature(name, options)]
    if not numbers or options.inputs:
        return ()
    are = "is" if len(numbers) == 1 else "are"
    return (
        f"the inputs are those of column {read!r} alone; {listed(list(map(repr, numbers)))} {are} not read. Put these "
        f"numbers into {read!r} if they are features, or set data.inputs = [{read!r}] if they are not",
    )


# Whether tables fit together.


def _common_schema(given: Sequence[Table]) -> Any:
    """Return the ``pyarrow.Schema`` of all tables: the narrowest types that hold what each of them holds.

    Raises:
        DataError: When the tables differ in the kind of a column.
    """
    fields: dict[str, tuple[Table, Any]] = {}
    for table in given:
        for each in table.schema:
            before, known = fields.setdefault(each.name, (table, each))
            if tables.is_tensor(each.type) and _alike(each.type, known.type):
                continue
            with suppress(pa.ArrowException):
                (known,) = pa.unify_schemas([pa.schema([known]), pa.schema([each])], promote_options="permissive")
                fields[each.name] = (before, known)
                continue
            _refuse_other_kinds(each.name, before, table)
    return pa.schema([field for _, field in fields.values()], given[0].schema.metadata)


def _refuse_other_inputs(given: Sequence[Table], form: _Form, options: ReadOptions) -> None:
    """Refuse a table that lacks inputs, classes or owners of the first, or has a feature that the first does not have.

    Other columns may be in some tables alone.
    """
    first = given[0]
    needed = [*form.inputs, form.label, *(name for name in options.kept_out if name in first.schema.names)]
    for table in given[1:]:
        tables.require_columns(table.place, table.schema, needed)
        for each in table.schema if form.features and not options.inputs else ():
            if each.name in first.schema.names or not tables.is_number(each.type):
                continue
            if may_be_feature(each.name, options):
                raise DataError(
                    f"{table.place} has a column {each.name!r}, and {first.place} has none; expected the same features "
                    "of each client; take it out, or name the features in data.inputs"
                )


def _alike(kind: Any, other: Any) -> bool:
    """Return whether two columns of arrays can be put together: of one shape, and both of pixels or neither."""
    same_shape = tables.is_tensor(other) and kind.shape == other.shape
    return same_shape and (kind.value_type == pa.uint8()) == (other.value_type == pa.uint8())


def _refuse_other_kinds(column: str, first: Table, other: Table) -> None:
    """Refuse two tables with a column of different kinds. A text among numbers is shown."""
    kinds = [table.schema.field(column).type for table in (first, other)]
    for table, numbers, kind in ((first, other, kinds[0]), (other, first, kinds[1])):
        if tables.is_text(kind) and tables.is_number(numbers.schema.field(column).type):
            texts = tables.read_column([table], column).tolist()
            row = next((row for row, text in enumerate(texts) if text and not is_number(str(text))), None)
            if row is not None:
                found = f"of column {column!r} holds {shown(texts[row])}"
                raise RowError(table.place, row, f"{found}; expected a number, as of {numbers.place}; correct it")
    raise DataError(
        f"{other.place}: expected {tables.described(kinds[0])} in column {column!r}, as of {first.place}, found "
        f"{tables.described(kinds[1])}; make them alike"
    )
