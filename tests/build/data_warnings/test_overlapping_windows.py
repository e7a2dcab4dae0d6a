"""Consecutive samples that are windows of one recording."""

from pathlib import Path

import numpy as np

from own_data import Arrays, arrays, built, without


def windows(step: int) -> Arrays:
    """Windows of 16 readings of one long noisy signal."""
    signal = np.random.default_rng(3).normal(size=16 * 192).astype(np.float32)
    x = np.stack([signal[start : start + 16] for start in range(0, 192 * step, step)])
    return without(arrays(), "trial") | {"x": x[:, None]}


def test_windows_that_overlap_are_noticed_where_no_column_tells_of_them(tmp_path: Path) -> None:
    (warning,) = built(tmp_path, windows(step=8)).warnings
    assert "overlap" in warning and "data.unit" in warning
    assert built(tmp_path, windows(step=16)).warnings == ()
