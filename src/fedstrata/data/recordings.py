"""Cut recordings of sensors into windows.

A recording is a row: its class, the trial that it is, its signal, and further columns such as the subject. The signal
is a list of readings, each a list of the channels; or a flat list, time-major, with its length and channels in columns
of these names, as in USC-HAD (Zhang and Sawchuk, "USC-HAD: a daily activity dataset for ubiquitous activity recognition
using wearable sensors", 2012); or a flat list of one channel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedstrata.base.errors import DataError
from fedstrata.data.column_roles import TRIAL_COLUMN
from fedstrata.data.dataset import finite_float32
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


def windows_of(
    chunks: Mapping[str, Chunk], window: int, step: int, shape: Sequence[int]
) -> tuple[np.ndarray, list[int]]:
    """Cut some recordings. What is left at the end of one is dropped.

    Args:
        chunks: The columns of the signals and of their sizes, as far as there are any.
        window: The readings in a window.
        step: The readings from the begin of a window to that of the next.
        shape: The shape of the windows before; empty if these are the first.

    Returns:
        The windows, (windows, channels, window) float32, and how many are of each recording.

    Raises:
        DataError: When a recording is missing, contradicts itself or has other channels than the first.
    """
    signals = chunks[SIGNAL]
    if not is_list(signals.values.type):
        raise DataError(f"{signals.place}: column {SIGNAL!r} holds {signals.values.type}; expected lists of numbers")
    sizes = [chunks[name] for name in SIZES if name in chunks]
    for chunk in sizes:
        if not pa.types.is_integer(chunk.values.type):
            raise DataError(f"{chunk.place}: column {chunk.column!r} holds {chunk.values.type}; expected integers")
    channels = shape[0] if shape else 0
    found = []
    for row in range(len(signals.values)):
        signal = _signal(signals, row, {chunk.column: chunk.values[row].as_py() for chunk in sizes})
        channels = channels or signal.shape[1]
        # An empty recording has no channels.
        if signal.shape[1] not in (channels, 0):
            raise signals.error(row, f"has {signal.shape[1]} channels; expected {channels}, as before")
        if len(signal) < window:
            found.append(np.empty((0, channels, window), np.float32))
        else:
            found.append(np.lib.stride_tricks.sliding_window_view(signal, window, axis=0)[::step])
    return np.concatenate([windows for windows in found if len(windows)] or found[:1]), list(map(len, found))


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
    """Return a number for each recording: subject * 10000 + activity * 100 + trial, (recordings,).

    Raises:
        DataError: When a number is missing.
    """
    subject, trial = (columns[name] for name in (SUBJECT, TRIAL_COLUMN))
    if subject.dtype.kind not in "iu" or trial.dtype.kind not in "iu":
        raise DataError(f"{place}: subject and trial must be integers, in every row")
    ids: np.ndarray = subject.astype(np.int64) * 10_000 + activity * 100 + trial.astype(np.int64)
    return ids


def _signal(signals: Chunk, row: int, sizes: Mapping[str, int | None]) -> np.ndarray:
    """Return one recording, (length, channels) float32.

    Args:
        signals: The signals of some recordings.
        row: The recording.
        sizes: The length and the channels of a flat signal, as far as there are columns of them.

    Returns:
        The readings. An empty recording has neither readings nor channels, (0, 0).
    """
    if None in sizes.values():
        raise signals.error(row, "has no length or channels")
    signal = replace(signals, first_row=signals.first_row + row, values=signals.values[row : row + 1])
    if pc.list_value_length(signal.values)[0].as_py() == 0 and not sizes.get("length"):
        return np.empty((0, 0), np.float32)
    numbers: np.ndarray = finite_float32(signal.arrays(), signal.place, f"column {SIGNAL!r}", signal.first_row)[0]
    if numbers.ndim == 2:
        return numbers
    channels = sizes.get("channels") or 1
    length = sizes.get("length") or len(numbers) // channels
    if min(length, channels) < 1 or numbers.size != length * channels:
        raise signal.error(0, f"holds {numbers.size} values; expected length x channels = {length} x {channels}")
    return numbers.reshape(length, channels)
