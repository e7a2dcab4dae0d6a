"""Make samples of columns: numbers that are features, or recordings of sensors that are cut into windows.

Columns of numbers become arrays as a ``.npz`` file has them: ``x`` holds the features, ``y`` the classes, and every
other column is a further array.

A recording is a row: its class, the trial that it is, its signal, and further columns such as the subject. The signal
is a list of readings, each a list of the channels; or a flat list, time-major, with its length and channels in columns
of these names, as in USC-HAD (Zhang and Sawchuk, "USC-HAD: a daily activity dataset for ubiquitous activity recognition
using wearable sensors", 2012); or a flat list of one channel.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedstrata.base.errors import DataError, RowError
from fedstrata.data.column_roles import DEFAULT_OPTIONS, TRIAL_COLUMN, ReadOptions, label_column, may_be_feature
from fedstrata.data.dataset import Dataset, channel_statistics
from fedstrata.data.location import Location
from fedstrata.data.mapped import InputWriter
from fedstrata.data.parquet_columns import (
    Chunk,
    is_list,
    read_answers,
    read_chunks,
    read_columns,
    read_schema,
    require_columns,
    unread_numbers,
)


def finite_features(
    columns: Mapping[str, np.ndarray], features: Sequence[str], place: str, first_row: int = 0
) -> np.ndarray:
    """Put features beside each other, (rows, features) float32.

    Args:
        columns: The columns by their names, (rows,) each.
        features: The columns that are features.
        place: Where the columns come from, for messages.
        first_row: The number of their first row.

    Raises:
        DataError: When a number is missing or not finite as float32.
    """
    with np.errstate(over="ignore"):
        numbers = np.stack([columns[feature].astype(np.float32) for feature in features], axis=1)
    wrong = ~np.isfinite(numbers)
    if wrong.any():
        place_of_feature = int(np.argmax(wrong.any(axis=0)))
        missing = np.flatnonzero(wrong[:, place_of_feature])
        others = f", and so do {len(missing) - 1} others" if len(missing) > 1 else ""
        raise RowError(
            place,
            first_row + int(missing[0]),
            f"of column {features[place_of_feature]!r} holds no finite number{others}; fill it in, leave the row out, "
            "or name other columns in data.inputs",
        )
    return numbers


def feature_columns(columns: Mapping[str, np.ndarray], options: ReadOptions, place: str) -> tuple[str, ...]:
    """Return the names of the columns that are the features of a sample, in their order.

    Raises:
        DataError: When there is none, or a column that is named holds no numbers.
    """
    label = label_column(columns, options, place)
    numbers = [name for name, values in columns.items() if values.dtype.kind in "iufb"]
    if options.inputs:
        for name in options.inputs:
            if name not in numbers or name == label:
                found = f"no column {name!r}, only {', '.join(columns)}"
                if name in columns:
                    found = f"classes in {name!r}" if name == label else f"texts in {name!r}"
                raise DataError(f"data.inputs: expected columns of numbers, {place} has {found}")
        return options.inputs
    features = tuple(name for name in numbers if name != label and may_be_feature(name, options))
    if not features:
        raise DataError(
            f"{place}: expected columns of numbers beside {label!r}, found {', '.join(columns)}; name the features in "
            "data.inputs"
        )
    return features


_WINDOW_READINGS = 128
"""The readings in a window: 1.28 s at USC-HAD's 100 Hz."""

_SIGNAL = "signal"
_ACTIVITY = "activity"
_SUBJECT = "subject"
_SIZES = ("length", "channels")
"""The columns of the sizes of flat signals."""


def holds_recordings(schema: Any) -> bool:
    """Return whether files with a ``pyarrow.Schema`` hold recordings: signals that belong to trials."""
    return TRIAL_COLUMN in schema.names and _SIGNAL in schema.names and is_list(schema.field(_SIGNAL).type)


def read_recordings(
    location: Location, files: Sequence[Path], options: ReadOptions = DEFAULT_OPTIONS, writer: InputWriter | None = None
) -> Dataset:
    """Cut recordings into windows. What is left at the end of a recording is dropped.

    Args:
        location: The data set, in Parquet files.
        files: The files of one split, shards in order.
        options: The column of the classes, "activity" by default, and the readings in a window and between windows.
        writer: What gets the windows; by default the memory.

    Returns:
        The inputs are (windows, channels, window) float32, the labels are the activities; or the targets are the
        numbers of the recordings. The column ``trial`` is unique per recording, and is the unit of independence: of a
        known data set subject * 10000 + activity * 100 + trial, else the three as a text with slashes between them.

    Raises:
        DataError: When a recording is missing, contradicts itself or has other channels than the first.
    """
    options.refuse_other_inputs(_SIGNAL, str(files[0]))
    window = options.window or _WINDOW_READINGS
    schema = read_schema(files[0])
    names = schema.names
    if location.info:
        # Every file of a known data set has its layout.
        require_columns(files[0], schema, (_SIGNAL, TRIAL_COLUMN, _SUBJECT, *_SIZES))
    label = _ACTIVITY if _ACTIVITY in names and options.label is None else label_column(names, options, str(files[0]))
    answers = read_answers(location, files, label)
    columns = read_columns(files, skip=(*_SIZES, label))
    activity = answers.labels
    said = np.array(answers.class_names)[activity] if answers.class_names else activity
    columns[TRIAL_COLUMN] = _numbers(files, columns, activity) if location.info else _texts(columns, said)
    writer = writer or InputWriter(str(files[0]))
    counts = list[int]()
    longest = 0
    for signal in _signals(files, names):
        windows = _windows(signal, window, options.step or window)
        counts.append(len(windows))
        longest = max(longest, len(signal))
        if len(windows):
            writer.add(windows)
    if not any(counts):
        raise DataError(f"{files[0]}: no recording has {window} readings; the longest has {longest}")
    inputs = writer.finish()
    notes: tuple[str, ...] = ()
    if not location.info:
        notes = _short_recordings(counts, columns, window) + unread_numbers(columns, _SIGNAL, options)
    columns = {name: np.repeat(column, counts) for name, column in columns.items()}
    mean, std = channel_statistics(inputs)
    of_windows = answers.repeated(counts)
    return Dataset(
        location.name,
        inputs,
        mean=mean,
        std=std,
        columns=columns,
        unit=TRIAL_COLUMN,
        notes=notes,
        **of_windows.fields,
    )


def _short_recordings(counts: Sequence[int], columns: dict[str, np.ndarray], window: int) -> tuple[str, ...]:
    """Return a line about recordings that are too short for a window, and about subjects of whom nothing is left."""
    short = counts.count(0)
    if not short:
        return ()
    subjects = columns.get(_SUBJECT, np.empty(0, np.str_)).astype(np.str_)
    lost = sorted(set(subjects) - set(subjects[np.array(counts)[: len(subjects)] > 0]))
    missing = f", so that nothing is left of {_SUBJECT} {', '.join(lost)}" if lost else ""
    return (
        f"{short:,} of {len(counts):,} recordings are shorter than a window of {window} readings and give no sample"
        f"{missing}. Set data.window lower to have all of them",
    )


def _signals(files: Sequence[Path], names: Collection[str]) -> Iterator[np.ndarray]:
    """Yield the signal of each recording, (length, channels) float32."""
    channels = 0
    sized = [name for name in _SIZES if name in names]
    for chunks in read_chunks(files, [_SIGNAL, *sized]):
        _check_types(*chunks)
        values, *sizes = chunks
        for row in range(len(values.values)):
            known = {chunk.column: chunk.values[row].as_py() for chunk in sizes}
            signal = _signal(values, row, known)
            channels = channels or signal.shape[1]
            if signal.shape[1] != channels:
                raise values.error(row, f"has {signal.shape[1]} channels; expected {channels}, as before")
            yield signal


def _texts(columns: dict[str, np.ndarray], activity: np.ndarray) -> np.ndarray:
    """Return an id for each recording as a text, (recordings,). Rows of one trial are parts of one recording."""
    subject = [columns[_SUBJECT]] if _SUBJECT in columns else []
    parts = [values.astype(np.str_) for values in (*subject, activity, columns[TRIAL_COLUMN])]
    return np.array(["/".join(texts) for texts in zip(*parts, strict=True)])


def _numbers(files: Sequence[Path], columns: dict[str, np.ndarray], activity: np.ndarray) -> np.ndarray:
    """Return a number per recording, unique in the data set, (recordings,) int64."""
    subject, trial = (columns.get(name, np.empty(0)) for name in (_SUBJECT, TRIAL_COLUMN))
    if subject.dtype.kind not in "iu" or trial.dtype.kind not in "iu":
        raise DataError(f"{files[0]}: subject and trial must be integers, in every row")
    ids: np.ndarray = subject.astype(np.int64) * 10_000 + activity * 100 + trial.astype(np.int64)
    unique, counts = np.unique(ids, return_counts=True)
    if len(unique) < len(ids):
        row = int(np.flatnonzero(ids == unique[np.argmax(counts > 1)])[1])
        found = f"subject {subject[row]}, activity {activity[row]}, trial {trial[row]}"
        raise DataError(f"{files[0]}: {found} is there twice, again in row {row} of the split; expected it once")
    return ids


def _check_types(signals: Chunk, *sizes: Chunk) -> None:
    """Refuse columns that cannot hold recordings."""
    kind = signals.values.type
    numbers = kind.value_type if is_list(kind) else kind
    numbers = numbers.value_type if is_list(numbers) else numbers
    if not is_list(kind) or not (pa.types.is_integer(numbers) or pa.types.is_floating(numbers)):
        raise DataError(f"{signals.file}: column 'signal' holds {kind}; expected lists of numbers")
    for chunk in sizes:
        if not pa.types.is_integer(chunk.values.type):
            raise DataError(f"{chunk.file}: column {chunk.column!r} holds {chunk.values.type}; expected integers")


def _signal(signals: Chunk, row: int, sizes: dict[str, int | None]) -> np.ndarray:
    """Return one recording, (length, channels) float32.

    Args:
        signals: The signals of some recordings.
        row: The recording.
        sizes: The length and the channels of a flat signal, as far as there are columns of them.
    """
    value = signals.values[row]
    if not value.is_valid or None in sizes.values():
        raise signals.error(row, "has no signal, length or channels")
    readings = value.values
    if is_list(readings.type):
        channels = pc.unique(pc.list_value_length(readings)).to_pylist()
        if len(channels) != 1 or not channels[0]:
            raise signals.error(
                row, f"has readings of {' and '.join(map(str, channels))} channels; expected one number"
            )
        sizes = {"channels": channels[0]}
        readings = readings.flatten()
    numbers = np.asarray(readings, dtype=np.float32)
    channel_count = sizes.get("channels") or 1
    length = sizes.get("length") or numbers.size // channel_count
    if min(length, channel_count) < 1 or numbers.size != length * channel_count:
        expected = f"length x channels = {length} x {channel_count}"
        raise signals.error(row, f"holds {numbers.size} values; expected {expected}")
    if not np.isfinite(numbers).all():
        raise signals.error(row, "holds a value that is not a finite number")
    return numbers.reshape(length, channel_count)


def _windows(signal: Any, window: int, step: int) -> np.ndarray:
    """Cut a recording: (length, channels) -> (windows, channels, window)."""
    if len(signal) < window:
        return np.empty((0, signal.shape[1], window), dtype=np.float32)
    found: np.ndarray = np.lib.stride_tricks.sliding_window_view(signal, window, axis=0)[::step]
    return found
