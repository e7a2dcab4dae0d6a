"""Features that look wrong, whatever the data are read from."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from own_table import ROWS, others, table, warnings_of

from fedstrata.build.build import build_run
from fedstrata.config import load_experiment
from fedstrata.data.memory import keep
from own_data import SITES, arrays, built, keys, save, without

RNG = np.random.default_rng(0)
NORMAL = RNG.normal(60, 10, ROWS)
SITE_OF_ROW = np.repeat(np.arange(len(SITES)), ROWS // len(SITES))

Source = Callable[[Path, NDArray[Any]], tuple[str, ...]]


def of_csv(folder: Path, feature: NDArray[Any]) -> tuple[str, ...]:
    return warnings_of(folder, table(d=feature))


def of_npz(folder: Path, feature: NDArray[Any]) -> tuple[str, ...]:
    made = without(arrays(), "trial")
    return others(built(folder, made | {"x": np.c_[made["x"], feature]}, unit="none"))


def of_arrays(folder: Path, feature: NDArray[Any]) -> tuple[str, ...]:
    made = arrays()
    x = np.c_[made["x"], feature]
    clients = {site: (x[made["site"] == site], made["y"][made["site"] == site]) for site in SITES}
    return of_memory(clients)


def of_signals(folder: Path, feature: NDArray[Any]) -> tuple[str, ...]:
    """Windows of eight readings of four channels, the last of which is the feature."""
    made = arrays()
    x = np.repeat(np.c_[made["x"], feature][:, :, None], 8, axis=2)
    x[:, :3] += 0.1 * np.random.default_rng(1).normal(size=(ROWS, 3, 8))
    clients = {site: (x[made["site"] == site], made["y"][made["site"] == site]) for site in SITES}
    return of_memory(clients)


def of_frames(folder: Path, feature: NDArray[Any]) -> tuple[str, ...]:
    frame = pa.table(table(d=feature))
    parts = {site: frame.filter(pa.compute.equal(frame["site"], site)) for site in SITES}
    return of_memory({site: part.drop_columns(["site"]) for site, part in parts.items()}, label="outcome")


def of_memory(clients: dict[str, Any], **data: Any) -> tuple[str, ...]:
    experiment = keys(Path(keep(clients)), unit="none", **data) | {
        "partition": {"scheme": "natural", "column": "client"}
    }
    return others(build_run(load_experiment(experiment)))


SOURCES = [("'d'", of_csv), ("feature 3", of_npz), ("feature 3", of_arrays), ("'d'", of_frames)]
WRONG = {
    "-9999 (10 times)": np.where(np.arange(ROWS) % 20 == 0, -9999, NORMAL),
    "-9999 (10 times) and 999 (10 times)": np.select(
        [np.arange(ROWS) % 20 == 0, np.arange(ROWS) % 20 == 1], [-9999, 999], NORMAL
    ),
    "-9999 (10 times) and 9999 (10 times)": np.select(
        [np.arange(ROWS) % 20 == 0, np.arange(ROWS) % 20 == 1], [-9999, 9999], NORMAL
    ),
    "9.96921e+36 (10 times)": np.where(np.arange(ROWS) % 20 == 0, 9.96921e36, NORMAL),
    "99 (10 times)": np.where(np.arange(ROWS) % 20 == 0, 99, np.arange(ROWS) % 2),
}


@pytest.mark.parametrize(("name", "source"), SOURCES)
@pytest.mark.parametrize("codes", WRONG)
def test_values_that_may_stand_for_a_missing_one_are_named(
    codes: str, name: str, source: Source, tmp_path: Path
) -> None:
    """Several in one feature do not hide each other."""
    (warning,) = source(tmp_path, WRONG[codes])
    assert f"{name} has {codes}" in warning


def test_codes_in_a_channel_of_signals_are_named(tmp_path: Path) -> None:
    (warning,) = of_signals(tmp_path, WRONG["-9999 (10 times)"])
    assert "feature 3 has -9999 (80 times)" in warning


TELLING = {
    "the number of a site": np.array([3, 1, 5, 4])[SITE_OF_ROW],
    "two numbers of each site": 2 * np.array([3, 1, 5, 4])[SITE_OF_ROW] + np.arange(ROWS) % 2,
    "a measurement of one site each": NORMAL + 1000 * SITE_OF_ROW,
    "the number of a row": np.arange(ROWS),
    "the hours of each site": np.arange(ROWS) % (ROWS // len(SITES)),
    "seconds since 1970": 1_718_012_345 + np.sort(RNG.integers(0, 10**7, ROWS)),
}


@pytest.mark.parametrize(("name", "source"), SOURCES)
@pytest.mark.parametrize("told", TELLING)
def test_features_that_tell_the_client_the_row_or_the_time_are_named(
    told: str, name: str, source: Source, tmp_path: Path
) -> None:
    """Clients of one distribution were split into groups by the number of the row."""
    found = source(tmp_path, TELLING[told])
    assert any(f"{name} may be a time, a running number or that of a site" in warning for warning in found), found


@pytest.mark.parametrize("told", ["the number of a site", "seconds since 1970"])
def test_channels_that_tell_the_client_or_the_time_are_named(told: str, tmp_path: Path) -> None:
    (warning,) = of_signals(tmp_path, TELLING[told])
    assert warning.startswith("feature 3 may be a time")


def test_a_channel_that_rises_in_every_signal_is_a_time() -> None:
    x = RNG.normal(size=(ROWS, 3, 8))
    x[:, 1] = np.arange(8)
    clients = {site: (x[number == SITE_OF_ROW], np.arange(ROWS // 4) % 2) for number, site in enumerate(SITES)}
    (warning,) = of_memory(clients)
    assert warning.startswith("feature 1 may be a time")


@pytest.mark.parametrize(("name", "source"), SOURCES)
@pytest.mark.parametrize(
    "feature",
    [
        np.where(np.arange(ROWS) == 5, 1000, NORMAL),  # an outlier
        np.arange(ROWS) % 9 == 0,
        np.arange(ROWS) % 7,
        SITE_OF_ROW // 2,
        np.arange(ROWS) % (ROWS // len(SITES) // 2),
        np.full(ROWS, 1_718_012_345),
    ],
)
def test_features_without_fault_are_without_warning(
    feature: NDArray[Any], name: str, source: Source, tmp_path: Path
) -> None:
    assert source(tmp_path, feature) == (), name


@pytest.mark.parametrize(
    "written",
    [
        lambda value, row: "-" if row == 7 else f"{value:.3f}",
        lambda value, row: "<5" if row == 7 else f"{value:.3f}",
        lambda value, row: f"{1000 * value:,.1f}",
        lambda value, row: f"{round(1000 * value):,}",
        lambda value, row: f"{value:.2f}".replace(".", ","),
        lambda value, row: f"{value:.2f}".replace("-", "\u2212"),
        lambda value, row: f"{value:.1f} %",
        lambda value, row: f"${value:.1f}",
    ],
)
def test_a_measurement_that_its_writing_keeps_from_being_a_feature_is_named(
    written: Callable[[float, int], str], tmp_path: Path
) -> None:
    columns = table()
    columns["b"] = [written(value, row) for row, value in enumerate(columns["b"])]
    (warning,) = warnings_of(tmp_path, columns)
    assert warning.startswith("the column 'b'") and "look like numbers" in warning
    assert warnings_of(tmp_path, columns, data={"inputs": ["a", "c"]}) == ()


def test_texts_that_are_seldom_numbers_are_texts(tmp_path: Path) -> None:
    words = [str(row) if row % 2 else "word" for row in range(ROWS)]
    assert warnings_of(tmp_path, table(note=words)) == ()
    assert warnings_of(tmp_path, table(day=[f"2024-01-{1 + row % 28:02d}" for row in range(ROWS)])) == ()


def test_of_large_data_some_samples_that_the_seed_draws_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedstrata.build.data_warnings.run_data._MOST_SAMPLES", 120)
    monkeypatch.setattr("fedstrata.build.data_warnings.run_data._FEWEST_OF_CLIENT", 60)
    codes = WRONG["-9999 (10 times)"]
    file = save(tmp_path / "mine.npz", without(arrays(), "trial") | {"x": np.c_[arrays()["x"], codes]})
    found = [others(build_run(load_experiment({**keys(file, unit="none"), "seed": seed}))) for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]
    assert all("has -9999" in line for (line,) in found)
