"""Columns, classes and targets that look wrong."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from own_data import PER_TRIAL, SITES, TRIALS, arrays, keys, save
from pyarrow import csv

from fedstrata.config import load_experiment
from fedstrata.runner.build import build_run

ROWS = len(SITES) * TRIALS * PER_TRIAL


def table(**columns: Any) -> dict[str, Any]:
    """Three features, two classes and the sites of `own_data.arrays`, with further columns."""
    made = arrays()
    features = {name: made["x"][:, place] for place, name in enumerate("abc")}
    outcome = np.where(made["y"] == 1, "ill", "well")
    return {**features, "outcome": outcome, "site": made["site"], **columns}


def warnings(folder: Path, columns: dict[str, Any], **tables: Any) -> tuple[str, ...]:
    file = folder / "mine.csv"
    csv.write_csv(pa.table(columns), file)
    data = {"label": "outcome", "unit": "none", **tables.pop("data", {})}
    return build_run(load_experiment({**keys(file, **data), **tables})).warnings


def test_a_table_without_fault_is_without_warning(tmp_path: Path) -> None:
    assert warnings(tmp_path, table(count=np.arange(ROWS) % 7, sex=["f", "m"] * (ROWS // 2))) == ()


@pytest.mark.parametrize("wrong", ["-", "<5", "1,234.5"])
def test_a_measurement_that_a_few_texts_keep_from_being_a_feature_is_named(tmp_path: Path, wrong: str) -> None:
    columns = table()
    columns["b"] = [wrong if row == 7 else f"{value:.3f}" for row, value in enumerate(columns["b"])]
    (warning,) = warnings(tmp_path, columns)
    assert f"the column 'b' is no input: 1 of its {ROWS} values is no number, such as {wrong!r}" in warning
    assert warnings(tmp_path, columns, data={"inputs": ["a", "c"]}) == ()


def test_texts_that_are_seldom_numbers_are_texts(tmp_path: Path) -> None:
    words = [str(row) if row % 2 else "word" for row in range(ROWS)]
    assert warnings(tmp_path, table(note=words)) == ()


def test_a_feature_that_says_which_client_a_sample_is_from_is_named(tmp_path: Path) -> None:
    """Clients of one distribution were split into groups by the number of the row."""
    columns = table()
    number = np.unique(columns["site"], return_inverse=True)[1]
    found = warnings(tmp_path, {**columns, "ward": number, "sample": np.arange(ROWS)})
    assert len(found) == 2 and "'ward'" in found[0] and "'sample'" in found[1]
    assert warnings(tmp_path, {**columns, "ward": number // 2}) == ()


def test_values_that_may_stand_for_a_missing_one_are_named(tmp_path: Path) -> None:
    """One of twenty is -9999, beside numbers around 60; a feature of 0 and 1, and one with an outlier, have none."""
    rng = np.random.default_rng(0)
    humidity = np.where(np.arange(ROWS) % 20 == 0, -9999, rng.normal(60, 10, ROWS))
    outlier = np.where(np.arange(ROWS) == 5, 1000, rng.normal(60, 10, ROWS))
    found = warnings(tmp_path, table(humidity=humidity, outlier=outlier, rain=np.arange(ROWS) % 9 == 0))
    (warning,) = found
    assert f"{-(-ROWS // 20)} of {ROWS} values of the feature 'humidity'" in warning and "are -9999, far" in warning


def test_a_feature_that_only_rises_is_a_time(tmp_path: Path) -> None:
    """Every site has the same hours."""
    per_site = ROWS // len(SITES)
    (warning,) = warnings(tmp_path, table(hours=np.arange(ROWS) % per_site))
    assert "the feature 'hours' only rises" in warning
    assert warnings(tmp_path, table(hours=np.arange(ROWS) % (per_site // 2))) == ()


def test_a_column_of_clients_that_the_partition_does_not_read_is_named(tmp_path: Path) -> None:
    (warning,) = warnings(tmp_path, table(), data={"clients": 4}, partition={"scheme": "iid"})
    assert "partition.column = 'site' to have a client for each of its 4 values" in warning
    columns = table(client=table()["site"])
    del columns["site"]
    (warning,) = warnings(tmp_path, columns, data={"clients": 4}, partition={"scheme": "iid"})
    assert "the column 'client' looks like that of the clients" in warning


def test_classes_and_clients_that_are_called_as_missing_values_are_named(tmp_path: Path) -> None:
    """R writes NA; in a column of texts it is a text."""
    columns = table()
    outcome = [("NA" if row % 5 == 0 else name) for row, name in enumerate(columns["outcome"])]
    site = ["?" if name == "Lyon" else name for name in columns["site"]]
    found = warnings(tmp_path, {**columns, "outcome": outcome, "site": site})
    assert [warning.partition(",")[0] for warning in found] == ["a class is called 'NA'", "a client is called '?'"]


def test_one_class_and_numbers_that_leave_classes_out_are_noticed(tmp_path: Path) -> None:
    (warning,) = warnings(tmp_path, table(outcome=["ill"] * ROWS))
    assert "all samples are of one class, 'ill'" in warning
    (warning,) = warnings(tmp_path, table(outcome=np.arange(ROWS) % 2 + 1))
    assert "1 of the 3 classes have no sample, such as 0" in warning


def test_targets_in_a_unit_that_makes_them_large_are_noticed(tmp_path: Path) -> None:
    made = arrays()
    file = tmp_path / "costs.npz"
    for scale, count in ((12_000.0, 1), (1.0, 0)):
        save(file, made | {"y": scale * made["x"][:, 0]})
        experiment = {**keys(file, unit="trial"), "local": {"loss": "mse"}}
        found = build_run(load_experiment(experiment)).warnings
        assert len(found) == count and all("Unlike inputs they are not normalised" in warning for warning in found)
