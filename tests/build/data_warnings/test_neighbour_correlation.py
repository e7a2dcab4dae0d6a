"""Rows in the order of time, and windows in that of a recording."""

from pathlib import Path

import numpy as np
import pytest
from own_table import others

from own_data import arrays, built, without


def test_rows_that_resemble_the_rows_before_them_are_noticed(tmp_path: Path) -> None:
    """Measurements that drift are like those before, and rows that are sorted by class are not."""
    rng = np.random.default_rng(0)
    columns = without(arrays(), "trial")
    noise = rng.normal(size=(len(columns["y"]), 3)).astype(np.float32)
    drift = noise.copy()
    for row in range(1, len(drift)):
        drift[row] += 0.9 * drift[row - 1]
    (warning,) = others(built(tmp_path, columns | {"x": drift}))
    assert "samples resemble those before them" in warning and "correlation is 0.7" in warning
    assert others(built(tmp_path, columns | {"x": drift}, unit="none")) == ()
    by_class = np.sort(columns["y"])
    assert (
        others(built(tmp_path, columns | {"y": by_class, "x": noise + 5 * by_class[:, None].astype(np.float32)})) == ()
    )


@pytest.mark.parametrize(("step", "count"), [(4, 1), (8, 1), (16, 0)])
def test_windows_of_one_recording_that_overlap_are_noticed(step: int, count: int, tmp_path: Path) -> None:
    """Windows of 16 readings of one long noisy signal."""
    signal = np.random.default_rng(3).normal(size=16 * 192).astype(np.float32)
    x = np.stack([signal[start : start + 16] for start in range(0, 192 * step, step)])
    found = others(built(tmp_path, without(arrays(), "trial") | {"x": x[:, None]}))
    assert len(found) == count and all("samples resemble those before them" in warning for warning in found)
