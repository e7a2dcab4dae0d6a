"""Whether consecutive samples are windows of one recording that overlap."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstrata.data import Dataset

_PAIRS = 256
"""The number of consecutive windows that are looked at for an overlap."""

_SHARED_READINGS = 4
"""The fewest equal readings of two windows that count as an overlap; fewer may be chance."""

_OVERLAP_SHARE = 0.2
"""The share of consecutive windows that overlap from which on there is a warning."""


def windows_overlap(dataset: Dataset) -> bool:
    """Return whether many consecutive samples are windows that share readings at their ends.

    Only signals are looked at: inputs of (samples, channels, time) float32.
    """
    inputs = dataset.inputs
    if inputs.ndim != 3 or not inputs.is_floating_point() or len(inputs) < 3 or inputs.shape[2] < 8:
        return False
    pairs = np.unique(np.linspace(0, len(inputs) - 2, _PAIRS).astype(np.int64))
    overlaps = [_overlap(inputs[pair].numpy(), inputs[pair + 1].numpy()) for pair in pairs]
    return float(np.mean(overlaps)) >= _OVERLAP_SHARE


def _overlap(window: NDArray[Any], after: NDArray[Any]) -> bool:
    """Return whether a window, (channels, time), ends with readings that the window after it begins with."""
    length = window.shape[1]
    # A constant signal equals itself at every shift.
    if not (window[:, -_SHARED_READINGS:].std(axis=1) > 0).any():
        return False
    steps = np.arange(1, length - _SHARED_READINGS + 1)
    # The first readings of one channel rule out nearly all steps.
    for place in range(_SHARED_READINGS):
        steps = steps[window[0, steps + place] == after[0, place]]
    return any(np.array_equal(window[:, step:], after[:, : length - step]) for step in steps)
