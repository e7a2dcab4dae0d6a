"""Make a data set of tables: which columns are inputs, which are classes, and what they hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedstrata.base.errors import DataError, RowError
from fedstrata.base.lazy_torch import torch
from fedstrata.base.limits import SAMPLE_NUMBERS, expansion_problem
from fedstrata.base.quoting import listed
from fedstrata.data import recordings, tables
from fedstrata.data.answers import Answers, answers_by_rule, answers_of, hugging_face_names
from fedstrata.data.column_roles import (
    ROW_COLUMN,
    SPLIT_COLUMN,
    TRIAL_COLUMN,
    ReadOptions,
    label_column,
    may_be_feature,
    split_column,
)
from fedstrata.data.dataset import Dataset, channel_statistics, finite_float32, is_test, refuse_rows
from fedstrata.data.images import has_colour, pixels_of
from fedstrata.data.mapped import Collect, Inputs, collected
from fedstrata.data.preparation import GAPS
from fedstrata.data.registry import DatasetInfo
from fedstrata.data.tables import Chunk, Table

CATEGORIES = 50
"""The largest number of different texts in a column of categories."""

_LARGEST = float(np.finfo(np.float32).max)
"""The largest number of a feature."""

_Converted = tuple[np.ndarray, Sequence[int]]
"""Samples, and how many of them each row has; nothing where each row is one."""


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
        encoded: Whether inputs are files of images.
    """

    label: str
    inputs: tuple[str, ...]
    convert: Callable[[Mapping[str, Chunk], tuple[int, ...]], _Converted]
    features: tuple[str, ...] = ()
    texts: tuple[tuple[str, ...], ...] = ()
    window: int = 0
    encoded: bool = False


def read_tables(
    name: str,
    given: Sequence[Table],
    options: ReadOptions,
    info: DatasetInfo | None = None,
    collect: Collect | None = None,
) -> Dataset:
    """Read some tables, whose rows follow each other.

    Args:
        name: The name of the data set.
        given: The tables. The first one says what the columns are.
        options: The columns that are inputs and classes, where they are not known.
        info: What is known of the data set.
        collect: What puts the inputs together; by default in memory.

    Returns:
        The samples. Of recordings they are windows, (windows, channels, window) float32; their unit is the recording,
        in the column ``trial``.

    Raises:
        DataError: When the tables do not fit together, or a column or row is missing or broken.
    """
    place = given[0].place
    if info:
        options = replace(options, label=info.label_column, inputs=(info.input_column,))
        tables.require_columns(place, given[0].schema, (info.label_column, info.input_column))
    schema = tables.common_schema(given)
    form = _form(given, schema, options, info)
    options.refuse(place, *(() if form.window else ("window", "step")), *(() if form.encoded else ("size",)))
    _refuse_other_inputs(given, form, options)
    rows = _read_rows(given, schema, form, collect or partial(collected, place=place))
    split = split_column(rows.columns)
    columns = {SPLIT_COLUMN if key == split else key: column for key, column in rows.columns.items()}
    try:
        answers = _answers(rows.answers, given, form.label, options, info)
        testing = is_test(columns[SPLIT_COLUMN], place) if split else np.zeros(len(rows.answers), bool)
    except RowError as error:
        raise error.in_part(rows.of_tables) from None
    # Beside arrays, every further one is a column.
    alone = not (form.features or tables.is_tensor(schema.field(form.inputs[0]).type))
    notes = _unread_numbers(columns, form.inputs[0], options) if alone else ()
    if form.window:
        counts = np.array(rows.counts)
        if info:
            columns[TRIAL_COLUMN] = recordings.numbers_of(columns, answers.labels, place)
        else:
            notes = recordings.short_recordings(counts, columns.get(recordings.SUBJECT), form.window) + notes
            activities = np.array(answers.class_names or range(answers.classes))[answers.labels]
            columns[TRIAL_COLUMN] = recordings.names_of(columns, activities)
        # Several recordings may be of one trial.
        columns.setdefault(ROW_COLUMN, np.arange(len(counts)))
        columns = {key: np.repeat(column, counts) for key, column in columns.items()}
        answers, testing = answers.repeated(counts), np.repeat(testing, counts)
    if testing.all():
        raise DataError(f"{name}: column {SPLIT_COLUMN!r} marks all samples for testing; mark some train")
    inputs = rows.inputs
    mean, std = (info.mean, info.std) if info else ((), ())
    if not mean and (inputs.ndim > 2 or not inputs.dtype.is_floating_point):
        mean, std = channel_statistics(inputs, torch.from_numpy(np.flatnonzero(~testing)) if testing.any() else None)
    return Dataset(
        name,
        inputs,
        torch.from_numpy(answers.labels),
        answers.classes,
        mean,
        std,
        columns,
        unit=TRIAL_COLUMN if form.window else None,
        class_names=answers.class_names,
        feature_names=form.features,
        texts=form.texts,
        targets=None if answers.targets is None else torch.from_numpy(answers.targets),
        notes=notes,
    )


@dataclass(frozen=True)
class _Rows:
    """What was read of the rows of tables.

    Attributes:
        inputs: The samples.
        answers: The column of classes, (rows, ...).
        counts: The samples of each row, where a row may have several.
        columns: The further columns, (rows,) each.
        of_tables: The place of each table, and the number of its rows.
    """

    inputs: Inputs
    answers: np.ndarray
    counts: Sequence[int]
    columns: Mapping[str, np.ndarray]
    of_tables: Sequence[tuple[str, int]]


def _read_rows(given: Sequence[Table], schema: Any, form: _Form, collect: Collect) -> _Rows:
    """Read the rows of tables whose columns have the types of a ``pyarrow.Schema``."""
    answers = list[np.ndarray]()
    counts = list[int]()
    of_tables = list[tuple[str, int]]()
    scalars = {each.name: each.type for each in schema if tables.is_scalar(each.type)}
    parts: dict[str, list[Any]] = {name: [] for name in scalars if name not in form.inputs}
    stored = sum(table.stored for table in given)

    def samples() -> Iterator[np.ndarray]:
        shape, nbytes = (), 0
        for table in given:
            count = 0
            known = [name for name in dict.fromkeys([*form.inputs, form.label, *parts]) if name in table.schema.names]
            for chunks in table.chunks(known):
                converted, of_rows = form.convert(chunks, shape)
                nbytes += converted.nbytes
                if form.encoded and (problem := expansion_problem(nbytes, stored)):
                    raise DataError(f"{table.place}: {problem}")
                if len(converted):
                    shape = converted.shape[1:]
                    yield converted
                counts.extend(of_rows)
                label = chunks[form.label]
                rows = len(label.values)
                count += rows
                if form.label not in scalars:
                    answers.append(label.arrays().reshape(rows, -1))
                    _refuse_other_shape(label, answers[-1], answers[0].shape[1:])
                for name, column in parts.items():
                    column.append(chunks[name].values if name in chunks else pa.nulls(rows))
            tables.refuse_no_rows(count, table.place)
            of_tables.append((table.place, count))
        if form.window and not any(counts):
            raise DataError(f"{given[0].place}: no recording has {form.window} readings; set data.window lower")

    inputs = collect(samples())
    columns = {name: tables.joined(given, name, scalars[name], column) for name, column in parts.items()}
    found = columns.pop(form.label) if form.label in scalars else np.concatenate(answers)
    return _Rows(inputs, found, counts, columns, of_tables)


def _answers(
    values: np.ndarray, given: Sequence[Table], column: str, options: ReadOptions, info: DatasetInfo | None
) -> Answers:
    """Return what is to be learnt of the values of a column of tables."""
    place = given[0].place
    called = f"column {column!r}"
    missing = values == "" if values.dtype.kind == "U" else values != values
    refuse_rows(missing, place, f"of {called} holds no class or number", "fill it in or leave these rows out")
    if (made := answers_by_rule(values, options, column, place)) is not None:
        return made
    names = {hugging_face_names(table.schema.metadata, column) for table in given}
    if len(names) > 1:
        raise DataError(f"{place}: expected the same names of classes in all files, found several in {called}")
    return answers_of(values, place, called, names.pop(), info.classes if info else 0)


# What the inputs are.


def _form(given: Sequence[Table], common: Any, options: ReadOptions, info: DatasetInfo | None) -> _Form:
    """Say what the inputs of tables are, by the columns of the first, in the types that they have in all."""
    place = given[0].place
    schema = pa.schema([common.field(name) for name in given[0].schema.names])
    if recordings.holds_recordings(schema) or (info and info.input_column == recordings.SIGNAL):
        return _recordings(schema, place, options)
    label = label_column(schema.names, options, place)
    column = info.input_column if info else _input_column(schema, label, options, place)
    if column is None:
        return _features(given, schema, label, options)
    kind = schema.field(column).type
    if tables.is_image(kind):
        known = info.shape if info else ()
        colour = known[0] == 3 if known else has_colour(_chunks(given, column))
        mode = "RGB" if colour else "L"
        return _Form(
            label,
            (column,),
            lambda chunks, shape: (pixels_of(chunks[column], mode, options.size, shape or known), ()),
            encoded=True,
        )
    mixed = len({table.schema.field(column).type for table in given if column in table.schema.names}) > 1
    return _Form(label, (column,), lambda chunks, shape: (_arrays(chunks[column], shape, options.gaps, mixed), ()))


def _chunks(given: Sequence[Table], column: str) -> Iterator[Chunk]:
    """Yield the rows of a column of tables."""
    return (chunks[column] for table in given for chunks in table.chunks([column]))


def _input_column(schema: Any, label: str, options: ReadOptions, place: str) -> str | None:
    """Return the one column of images or arrays; None where columns of numbers are the inputs."""
    kinds = (tables.is_image, tables.is_list, tables.is_tensor)
    found = [each.name for each in schema if each.name != label and any(fits(each.type) for fits in kinds)]
    if options.inputs and len(found) > 1:
        found = [name for name in found if name in options.inputs]
    if len(found) > 1:
        raise DataError(
            f"{place}: expected one column of images or lists, found {' and '.join(found)}; name one in data.inputs"
        )
    if not found:
        return None
    options.refuse_other_inputs(found[0], place)
    return str(found[0])


def _features(given: Sequence[Table], schema: Any, label: str, options: ReadOptions) -> _Form:
    """The form of the rows of tables, whose features are columns of numbers and of texts."""
    place = given[0].place
    usable = {
        each.name: each.type
        for each in schema
        if each.name != label and (tables.is_number(each.type) or (tables.is_text(each.type) and options.categories))
    }
    for name in options.inputs:
        if name not in usable:
            found = f"{place} has no such column {name!r}, only {', '.join(usable)}"
            raise DataError(f"data.inputs: expected columns of numbers or texts beside {label!r}; {found}")
    wanted = options.inputs or [name for name in usable if may_be_feature(name, options)]
    if options.texts:
        texts = dict(zip(options.inputs, options.texts, strict=True))
    else:
        texts = _texts_of(given, [name for name in wanted if tables.is_text(usable[name])], options)
    kinds = {name: usable[name] for name in wanted if name in texts or tables.is_number(usable[name])}
    if not kinds:
        raise DataError(
            f"{place}: expected columns of numbers or texts beside {label!r}, found {', '.join(schema.names)}; name "
            "the features in data.inputs"
        )

    def convert(chunks: Mapping[str, Chunk], shape: object) -> _Converted:
        columns = [_feature(chunks[name], kind, texts.get(name, ())) for name, kind in kinds.items()]
        rows = pa.RecordBatch.from_arrays(columns, list(kinds)).to_tensor(null_to_nan=True).to_numpy()
        return _sound(rows, [chunks[name] for name in kinds], options.gaps), ()

    features = tuple(kinds)
    return _Form(label, features, convert, features, tuple(texts.get(name, ()) for name in features))


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


def _recordings(schema: Any, place: str, options: ReadOptions) -> _Form:
    """The form of recordings. Their classes are in "activity" by default."""
    options.refuse_other_inputs(recordings.SIGNAL, place)
    usual = recordings.ACTIVITY in schema.names and options.label is None
    label = recordings.ACTIVITY if usual else label_column(schema.names, options, place)
    window = options.window or recordings.WINDOW_READINGS
    step = options.step or window
    inputs = (recordings.SIGNAL, *(name for name in recordings.SIZES if name in schema.names))
    return _Form(label, inputs, lambda chunks, shape: recordings.windows_of(chunks, window, step, shape), window=window)


def _arrays(chunk: Chunk, shape: tuple[int, ...], gaps: bool, mixed: bool) -> np.ndarray:
    """Make (rows, channels, ...) of arrays: uint8 stays as it is, all other numbers become float32.

    uint8 images may also come as (rows, height, width), and images with one or three channels last. Rows of numbers are
    those of a table without names, float64; float32 stays as it is unless types are mixed.
    """
    values = chunk.arrays()
    if values.ndim == 4 and values.shape[1] not in (1, 3) and values.shape[3] in (1, 3):
        values = values.transpose(0, 3, 1, 2)
    if values.dtype == np.uint8 and tables.is_tensor(chunk.values.type):
        values = values[:, None] if values.ndim == 3 else values
    elif values.ndim == 2:
        kept = values.dtype == np.float32 and not mixed
        values = _sound(values if kept else values.astype(np.float64), [chunk], gaps)
    else:
        values = finite_float32(values, chunk.place, f"column {chunk.column!r}", chunk.first_row)
    _refuse_other_shape(chunk, values, shape)
    if values[0].size > SAMPLE_NUMBERS:
        raise chunk.error(
            0, f"holds {values[0].size:,} numbers; expected at most {SAMPLE_NUMBERS:,}, so make them smaller"
        )
    return np.ascontiguousarray(values)


def _refuse_other_shape(chunk: Chunk, values: np.ndarray, shape: tuple[int, ...]) -> None:
    """Refuse the values of some rows, (rows, ...), that have another shape than those before, if there are any."""
    if shape and values.shape[1:] != shape:
        raise chunk.error(0, f"has shape {values.shape[1:]}; expected {shape}, as the rows before")


def _feature(chunk: Chunk, kind: Any, texts: Sequence[str]) -> Any:
    """Return a feature of an Arrow type as a ``pyarrow.Array`` of float64, or float32 as it is; texts are places."""
    if tables.is_text(kind):
        return pc.index_in(chunk.values.cast(pa.string()), pa.array(texts, pa.string())).cast(pa.float64())
    # A whole number becomes the nearest float64.
    return chunk.values.cast(kind if kind == pa.float32() else pa.float64(), safe=False)


def _sound(numbers: np.ndarray, chunks: Sequence[Chunk], gaps: bool) -> np.ndarray:
    """Return numbers of rows, (rows, columns), in which gaps are nan; they are of several chunks, or all of one.

    Raises:
        DataError: When a number is too large, or one is missing and may not.
    """
    wrong = np.abs(numbers) > _LARGEST if gaps else ~(np.abs(numbers) <= _LARGEST)
    if wrong.any():
        advice = "fill it in, leave the row out, or name other columns in data.inputs"
        advice = advice if gaps else f"set data.impute, {advice}"
        for chunk, column in zip(chunks, np.hsplit(wrong, len(chunks)), strict=True):
            problem = f"of column {chunk.column!r} holds no finite number"
            refuse_rows(column, chunk.place, problem, advice, chunk.first_row)
    return numbers


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


def _refuse_other_inputs(given: Sequence[Table], form: _Form, options: ReadOptions) -> None:
    """Refuse a table that lacks inputs, classes or owners of the first, or has a feature that the first does not have.

    Other columns may be in some tables alone.
    """
    first = given[0]
    needed = [*form.inputs, form.label, *(name for name in options.kept_out if name in first.schema.names)]
    for table in given[1:]:
        tables.require_columns(table.place, table.schema, needed)
        others = [
            each.name for each in table.schema if tables.is_number(each.type) and may_be_feature(each.name, options)
        ]
        others = [name for name in others if name not in first.schema.names]
        if others and form.features and not options.inputs:
            raise DataError(
                f"{table.place} has a column {others[0]!r}, and {first.place} has none; expected the same features of "
                "each client; take it out, or name the features in data.inputs"
            )
