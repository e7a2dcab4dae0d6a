"""Recordings of motion sensors, cut into windows.

The layout is that of USC-HAD (Zhang and Sawchuk, "USC-HAD: a daily activity dataset for ubiquitous activity
recognition using wearable sensors", 2012) as Parquet: a row per recording, its signal flat and time-major.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fedstrata.data.dataset import Dataset, moments
from fedstrata.data.labels import read_labels, vocabulary
from fedstrata.data.locate import Location
from fedstrata.data.rows import batches, scalars
from fedstrata.errors import DataError
from fedstrata.lazy_torch import torch

RECORDING = frozenset({"subject", "activity", "trial", "signal", "length", "channels"})
"""The columns by which recordings are known."""


def read_recordings(location: Location, files: Sequence[Path], window: int, step: int) -> Dataset:
    """Cut recordings into windows; mean and std of each channel are those of all windows.

    Args:
        location: where the data set is.
        files: of one split, shards in order.
        window: length of a window in samples; 128 are 1.28 s at USC-HAD's 100 Hz.
        step: samples from the start of one window to the start of the next. From `window` on, windows share no
            samples. What is left at the end of a recording is dropped.

    Returns:
        inputs (windows, channels, window) float32, labels the activity; columns ``subject`` and ``trial``. The
        latter is subject * 10000 + activity * 100 + trial, unique in the data set, and the unit of independence.

    Raises:
        DataError: naming file and row of a recording that is missing, contradicts itself or has other channels.
    """
    if window < 1 or step < 1:
        raise DataError(f"window is {window} and step is {step}; expected at least 1 sample each")
    source = location.source
    classes, names = vocabulary(location.train + location.test, "activity", source.classes if source else None)
    activity = read_labels(files, "activity", classes, names)
    columns = scalars(files, skip=("signal", "length", "channels", "activity"))
    recording = _identities(files, columns, activity)
    parts: list[np.ndarray] = []
    longest = 0
    for file, first, batch in batches(files, ["signal", "length", "channels"]):
        for row in range(len(batch)):
            where = f"{file}: row {first + row}"
            signal = _signal(batch.slice(row, 1), where)
            if parts and signal.shape[1] != parts[0].shape[1]:
                raise DataError(f"{where} has {signal.shape[1]} channels; expected {parts[0].shape[1]}, as before")
            longest = max(longest, len(signal))
            parts.append(_windows(signal, window, step))
    inputs = torch.from_numpy(np.concatenate(parts))
    if len(inputs) == 0:
        raise DataError(f"{files[0]}: no recording has {window} samples; the longest has {longest}")
    counts = [len(part) for part in parts]
    columns = {name: np.repeat(column, counts) for name, column in (columns | {"trial": recording}).items()}
    mean, std = moments(inputs)
    labels = torch.from_numpy(np.repeat(activity, counts))
    return Dataset(location.name, inputs, labels, classes, mean, std, columns, "trial", names)


def _identities(files: Sequence[Path], columns: dict[str, np.ndarray], activity: np.ndarray) -> np.ndarray:
    """A number per recording, unique over the data set, (recordings,) int64."""
    subject, trial = (columns.get(name, np.empty(0)) for name in ("subject", "trial"))
    if subject.dtype.kind not in "iu" or trial.dtype.kind not in "iu":
        raise DataError(f"{files[0]}: subject and trial must be integers, in every row")
    recording: np.ndarray = subject.astype(np.int64) * 10_000 + activity * 100 + trial.astype(np.int64)
    unique, counts = np.unique(recording, return_counts=True)
    if len(unique) < len(recording):
        row = int(np.flatnonzero(recording == unique[np.argmax(counts > 1)])[1])
        what = f"subject {subject[row]}, activity {activity[row]}, trial {trial[row]}"
        raise DataError(f"{files[0]}: {what} is there twice, again in row {row} of the split; expected it once")
    return recording


def _signal(batch: Any, where: str) -> np.ndarray:
    """The recording in a batch of one row, (length, channels) float32."""
    values, length, channels = (batch.column(name)[0] for name in ("signal", "length", "channels"))
    if not (values.is_valid and length.is_valid and channels.is_valid):
        raise DataError(f"{where} has no signal, length or channels")
    if not (pa.types.is_integer(values.type.value_type) or pa.types.is_floating(values.type.value_type)):
        raise DataError(f"{where} has a signal of {values.type.value_type}; expected numbers")
    flat = np.asarray(values.values, dtype=np.float32)
    shape = (int(length.as_py()), int(channels.as_py()))
    if min(shape) < 1 or flat.size != shape[0] * shape[1]:
        raise DataError(f"{where} holds {flat.size} values; expected length x channels = {shape[0]} x {shape[1]}")
    if not np.isfinite(flat).all():
        raise DataError(f"{where} holds a value that is not a finite number")
    return flat.reshape(shape)


def _windows(signal: np.ndarray, window: int, step: int) -> np.ndarray:
    """(length, channels) -> (windows, channels, window)."""
    if len(signal) < window:
        return np.empty((0, signal.shape[1], window), dtype=np.float32)
    return np.lib.stride_tricks.sliding_window_view(signal, window, axis=0)[::step]
