"""Rows in the order of time."""

from pathlib import Path

import numpy as np

from own_data import arrays, built, without


def test_rows_that_resemble_the_rows_before_them_are_noticed(tmp_path: Path) -> None:
    """Measurements that drift are like those before, and rows that are sorted by class are not."""
    rng = np.random.default_rng(0)
    columns = without(arrays(), "trial")
    noise = rng.normal(size=(len(columns["y"]), 3)).astype(np.float32)
    drift = noise.copy()
    for row in range(1, len(drift)):
        drift[row] += 0.9 * drift[row - 1]
    (warning,) = built(tmp_path, columns | {"x": drift}).warnings
    assert "resemble the rows before them" in warning and "correlation is 0.7" in warning
    assert built(tmp_path, columns | {"x": drift}, unit="none").warnings == ()
    by_class = np.sort(columns["y"])
    assert (
        built(tmp_path, columns | {"y": by_class, "x": noise + 5 * by_class[:, None].astype(np.float32)}).warnings == ()
    )
