"""Recordings of a user's own."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from own_table import others

from fedstrata.base.errors import PartitionError
from fedstrata.build.build import build_run
from fedstrata.build.run_setup import RunSetup
from fedstrata.config import load_experiment


def setup_of(folder: Path, rows: list[dict[str, object]], **data: object) -> RunSetup:
    """What a run on recordings of a user's own needs, of which each subject is a client."""
    pq.write_table(pa.Table.from_pylist(rows), folder / "motion.parquet")
    keys = {
        "data": {"name": str(folder / "motion.parquet"), "window": 8, **data},
        "partition": {"scheme": "natural", "column": "subject"},
        "model": {"name": "mlp"},
        "engine": {"name": "loop"},
    }
    return build_run(load_experiment(keys))


def motion(folder: Path, rows: list[dict[str, object]], **data: object) -> tuple[str, ...]:
    return others(setup_of(folder, rows, **data))


def test_recordings_are_counted_as_rows_also_where_several_are_of_one_trial(tmp_path: Path) -> None:
    rows = [row | {"trial": int(str(row["trial"])) // 2} for row in takes()]
    assert setup_of(tmp_path, rows).inputs.endswith("of 30 recordings")


def takes(readings: int = 24) -> list[dict[str, object]]:
    """Five trials of two activities of three subjects."""
    rng = np.random.default_rng(0)
    return [
        {"subject": who, "activity": what, "trial": trial, "signal": rng.normal(size=(readings, 2)).tolist()}
        for who in ("Ada", "Bo", "Cy")
        for what in ("run", "walk")
        for trial in range(5)
    ]


def test_recordings_need_no_word_about_units_but_of_coarser_ones(tmp_path: Path) -> None:
    """The trial is the unit of recordings by default; sessions hold several trials."""
    rows = takes()
    sessions = [row | {"session": int(str(row["trial"])) // 2} for row in rows]
    assert motion(tmp_path, rows) == ()
    (warning,) = motion(tmp_path, sessions)
    assert "'session'" in warning and "Set data.unit = 'session'" in warning
    assert motion(tmp_path, sessions, unit="trial") == ()


@pytest.mark.parametrize(("row", "readings"), [(3, 7), (3, 0), (0, 0)])
def test_recordings_that_are_too_short_are_counted(row: int, readings: int, tmp_path: Path) -> None:
    rows = takes()
    rows[row]["signal"] = [[0.0, 1.0]] * readings
    (warning,) = motion(tmp_path, rows)
    assert warning.startswith("1 of 30 recordings") and "nothing is left" not in warning
    assert motion(tmp_path, rows) == (warning,), "the copy in the cache tells it, too"


def test_a_subject_whose_recordings_are_all_too_short_is_named(tmp_path: Path) -> None:
    rows = [row | ({"signal": [[0.0, 1.0]] * 7} if row["subject"] == "Bo" else {}) for row in takes()]
    with pytest.raises(PartitionError, match=r"10 of 30 recordings .* nothing is left of subject Bo"):
        motion(tmp_path, rows)
    (warning,) = motion(tmp_path, rows, clients=2)
    assert "nothing is left of subject Bo" in warning
