"""Features of a user's own table."""

from pathlib import Path

import numpy as np
import pytest
from own_table import ROWS, table, warnings_of

from own_data import SITES


def test_a_table_without_fault_is_without_warning(tmp_path: Path) -> None:
    assert warnings_of(tmp_path, table(count=np.arange(ROWS) % 7, sex=["f", "m"] * (ROWS // 2))) == ()


@pytest.mark.parametrize("wrong", ["-", "<5", "1,234.5"])
def test_a_measurement_that_a_few_texts_keep_from_being_a_feature_is_named(tmp_path: Path, wrong: str) -> None:
    columns = table()
    columns["b"] = [wrong if row == 7 else f"{value:.3f}" for row, value in enumerate(columns["b"])]
    (warning,) = warnings_of(tmp_path, columns)
    assert f"the column 'b' is no input: 1 of its {ROWS} values is no number, such as {wrong!r}" in warning
    assert warnings_of(tmp_path, columns, data={"inputs": ["a", "c"]}) == ()


def test_texts_that_are_seldom_numbers_are_texts(tmp_path: Path) -> None:
    words = [str(row) if row % 2 else "word" for row in range(ROWS)]
    assert warnings_of(tmp_path, table(note=words)) == ()


def test_a_feature_that_says_which_client_a_sample_is_from_is_named(tmp_path: Path) -> None:
    """Clients of one distribution were split into groups by the number of the row."""
    columns = table()
    number = np.unique(columns["site"], return_inverse=True)[1]
    found = warnings_of(tmp_path, {**columns, "ward": number, "sample": np.arange(ROWS)})
    assert len(found) == 2 and "'ward'" in found[0] and "'sample'" in found[1]
    assert warnings_of(tmp_path, {**columns, "ward": number // 2}) == ()


def test_values_that_may_stand_for_a_missing_one_are_named(tmp_path: Path) -> None:
    """One of twenty is -9999, beside numbers around 60; a feature of 0 and 1, and one with an outlier, have none."""
    rng = np.random.default_rng(0)
    humidity = np.where(np.arange(ROWS) % 20 == 0, -9999, rng.normal(60, 10, ROWS))
    outlier = np.where(np.arange(ROWS) == 5, 1000, rng.normal(60, 10, ROWS))
    found = warnings_of(tmp_path, table(humidity=humidity, outlier=outlier, rain=np.arange(ROWS) % 9 == 0))
    (warning,) = found
    assert f"{-(-ROWS // 20)} of {ROWS} values of the feature 'humidity'" in warning and "are -9999, far" in warning


def test_a_feature_that_only_rises_is_a_time(tmp_path: Path) -> None:
    """Every site has the same hours."""
    per_site = ROWS // len(SITES)
    (warning,) = warnings_of(tmp_path, table(hours=np.arange(ROWS) % per_site))
    assert "the feature 'hours' only rises" in warning
    assert warnings_of(tmp_path, table(hours=np.arange(ROWS) % (per_site // 2))) == ()


def test_numbers_with_a_decimal_comma_are_named(tmp_path: Path) -> None:
    columns = table()
    columns["b"] = [f"{value:.2f}".replace(".", ",") for value in columns["b"]]
    (warning,) = warnings_of(tmp_path, columns)
    assert "the column 'b' is no input" in warning and "decimal comma" in warning
