"""Cut recordings of sensors into windows.

A recording is a row: its class, the trial that it is, its signal, and further columns such as the subject. The signal
is a list of readings, each a list of the channels; or a flat list, time-major, with its length and channels in columns
of these names, as in USC-HAD (Zhang and Sawchuk, "USC-HAD: a daily activity dataset for ubiquitous activity recognition
using wearable sensors", 2012); or a flat list of one channel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedstrata.base.errors import DataError
from fedstrata.data.column_roles import TRIAL_COLUMN
from fedstrata.data.tables import Chunk, is_list

WINDOW_READINGS = 128
"""The readings in a window: 1.28 s at USC-HAD's 100 Hz."""

SIGNAL = "signal"
ACTIVITY = "activity"
SUBJECT = "subject"
SIZES = ("length", "channels")
"""The columns of the sizes of flat signals."""


def holds_recordings(schema: Any) -> bool:
    """Return whether a table with a ``pyarrow.Schema`` holds recordings: signals that belong to trials."""
    return TRIAL_COLUMN in schema.names and SIGNAL in schema.names and is_list(schema.field(SIGNAL).type)


def windows_of(chunks: Mapping[str, Chunk], window: int, step: int, channels: int) -> tuple[np.ndarray, list[int]]:
    """Cut some recordings. What is left at the end of one is dropped.

    Args:
        chunks: The columns of the signals and of their sizes, as far as there are any.
        window: The readings in a window.
        step: The readings from the begin of a window to that of the next.
        channels: The channels of recordings before; 0 if these are the first.

    Returns:
        The windows, (windows, channels, window) float32, and how many are of each recording.

    Raises:
        DataError: When a recording is missing, contradicts itself or has other channels than the first.
    """
    signals = chunks[SIGNAL]
    sizes = [chunks[name] for name in SIZES if name in chunks]
    _check_types(signals, *sizes)
    found = []
    for row in range(len(signals.values)):
        signal = _signal(signals, row, {chunk.column: chunk.values[row].as_py() for chunk in sizes})
        if len(signal):
            channels = channels or signal.shape[1]
            if signal.shape[1] != channels:
                raise signals.error(row, f"has {signal.shape[1]} channels; expected {channels}, as before")
        found.append(_windows(signal, window, step))
    counts = list(map(len, found))
    return np.concatenate([windows for windows in found if len(windows)] or found[:1]), counts


def short_recordings(counts: np.ndarray, subjects: np.ndarray | None, window: int) -> tuple[str, ...]:
    """Return a line about recordings that are too short for a window, and about subjects of whom nothing is left.

    Args:
        counts: The windows of each recording, (recordings,).
        subjects: Whose recording it is, (recordings,); None where that is not known.
        window: The readings in a window.
    """
    short = int((counts == 0).sum())
    if not short:
        return ()
    lost = [] if subjects is None else sorted(set(subjects.astype(np.str_)) - set(subjects[counts > 0].astype(np.str_)))
    missing = f", so that nothing is left of {SUBJECT} {', '.join(lost)}" if lost else ""
    return (
        f"{short:,} of {len(counts):,} recordings are shorter than a window of {window} readings and give no sample"
        f"{missing}. Set data.window lower to have all of them",
    )


def names_of(columns: Mapping[str, np.ndarray], activity: np.ndarray) -> np.ndarray:
    """Return an id for each recording as a text, (recordings,). Rows of one trial are parts of one recording."""
    subject = [columns[SUBJECT]] if SUBJECT in columns else []
    parts = [values.astype(np.str_) for values in (*subject, activity, columns[TRIAL_COLUMN])]
    return np.array(["/".join(texts) for texts in zip(*parts, strict=True)])


def numbers_of(columns: Mapping[str, np.ndarray], activity: np.ndarray, place: str) -> np.ndarray:
    """Return a number per recording, unique in the data set: subject * 10000 + activity * 100 + trial, (recordings,).

    Raises:
        DataError: When one is there twice, or a number is missing.
    """
    subject, trial = (columns[name] for name in (SUBJECT, TRIAL_COLUMN))
    if subject.dtype.kind not in "iu" or trial.dtype.kind not in "iu":
        raise DataError(f"{place}: subject and trial must be integers, in every row")
    ids: np.ndarray = subject.astype(np.int64) * 10_000 + activity * 100 + trial.astype(np.int64)
    unique, counts = np.unique(ids, return_counts=True)
    if len(unique) < len(ids):
        row = int(np.flatnonzero(ids == unique[np.argmax(counts > 1)])[1])
        found = f"subject {subject[row]}, activity {activity[row]}, trial {trial[row]}"
        raise DataError(f"{place}: {found} is there twice, again in row {row} of the split; expected it once")
    return ids


def _check_types(signals: Chunk, *sizes: Chunk) -> None:
    """Refuse columns that cannot hold recordings."""
    kind = signals.values.type
    numbers = kind.value_type if is_list(kind) else kind
    numbers = numbers.value_type if is_list(numbers) else numbers
    if not is_list(kind) or not (pa.types.is_integer(numbers) or pa.types.is_floating(numbers)):
        raise DataError(f"{signals.place}: column 'signal' holds {kind}; expected lists of numbers")
    for chunk in sizes:
        if not pa.types.is_integer(chunk.values.type):
            raise DataError(f"{chunk.place}: column {chunk.column!r} holds {chunk.values.type}; expected integers")


def _signal(signals: Chunk, row: int, sizes: dict[str, int | None]) -> np.ndarray:
    """Return one recording, (length, channels) float32.

    Args:
        signals: The signals of some recordings.
        row: The recording.
        sizes: The length and the channels of a flat signal, as far as there are columns of them.

    Returns:
        The readings. An empty recording has neither readings nor channels, (0, 0).
    """
    value = signals.values[row]
    if not value.is_valid or None in sizes.values():
        raise signals.error(row, "has no signal, length or channels")
    readings = value.values
    if not len(readings) and not sizes.get("length"):
        return np.empty((0, 0), dtype=np.float32)
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
