from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from data_layouts import recordings, write

from fedstrata.base.errors import DataError
from fedstrata.data import Dataset, ReadOptions, load_dataset


@pytest.fixture(autouse=True)
def copies(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("FEDSTRATA_CACHE", str(tmp_path_factory.mktemp("copies")))


def read(root: Path, columns: dict[str, Any], window: int | None = 4) -> Dataset:
    write(root / "usc_had" / "train-00000-of-00001.parquet", columns)
    return load_dataset("usc_had", root, options=ReadOptions(window=window))


def read_own(root: Path, **options: Any) -> Dataset:
    return load_dataset(str(root), options=ReadOptions(**options))


def test_recordings_are_cut_into_windows_that_share_no_samples(tmp_path: Path) -> None:
    data = read(tmp_path, recordings([9, 4]))
    assert data.inputs.shape == (3, 6, 4)
    # Channel 2: time runs along the last axis, and the ninth sample is dropped.
    assert data.inputs[:, 2].tolist() == [[2, 12, 22, 32], [42, 52, 62, 72], [1002, 1012, 1022, 1032]]
    assert data.labels.tolist() == [0, 0, 1]
    assert data.classes == 12


def test_every_window_knows_its_subject_and_its_recording(tmp_path: Path) -> None:
    data = read(tmp_path, recordings([9, 4]) | {"trial": [3, 5]})
    assert data.columns["subject"].tolist() == [1, 1, 2]
    assert data.columns["trial"].tolist() == [10003, 10003, 20105]
    assert data.unit == "trial"


def test_a_recording_shorter_than_a_window_gives_none(tmp_path: Path) -> None:
    assert read(tmp_path, recordings([3, 4])).columns["subject"].tolist() == [2]


def test_the_default_window_is_128_samples(tmp_path: Path) -> None:
    assert read(tmp_path, recordings([300]), None).inputs.shape == (2, 6, 128)


def test_normalisation_is_that_of_all_windows(tmp_path: Path) -> None:
    data = read(tmp_path, recordings([8, 8]))
    values = data.inputs.numpy()
    assert data.mean == pytest.approx(values.mean(axis=(0, 2)), rel=1e-5)
    assert data.std == pytest.approx(values.std(axis=(0, 2)), rel=1e-5)


def test_a_folder_of_the_same_layout_is_known_by_its_columns(tmp_path: Path) -> None:
    columns = recordings([256, 256], channels=3)
    write(tmp_path / "train-0.parquet", columns | {"site": ["a", "b"]}, {"activity": ["sit", "walk"]})
    data = read_own(tmp_path)
    assert data.inputs.shape == (4, 3, 128)
    assert data.class_names == ("sit", "walk")
    assert data.columns["site"].tolist() == ["a", "a", "b", "b"]


FLOATS = pa.list_(pa.float32())


NO_SIZES = "row 1 of column 'signal' has no length or channels"
NOT_FINITE = "row 1 of column 'signal' holds a value that is not a finite"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"length": [4, 5]}, "row 1 of column 'signal' holds 24 values; expected length x channels = 5 x 6"),
        ({"length": [4, None]}, NO_SIZES),
        ({"channels": [6, None]}, NO_SIZES),
        ({"signal": pa.array([None, [0.0] * 24], FLOATS)}, "row 0 of column 'signal' holds a missing value"),
        ({"signal": pa.array([[0.0] * 24, [np.inf] * 24], FLOATS)}, NOT_FINITE),
        ({"signal": pa.array([[0.0] * 24, [None] * 24], FLOATS)}, "row 1 of column 'signal' holds a missing value"),
        ({"length": ["4", "4"]}, "column 'length' holds string; expected integers"),
        ({"signal": ["a", "b"]}, "column 'signal' holds string; expected lists of numbers"),
        ({"channels": [6, 3], "length": [4, 8]}, "row 1 of column 'signal' has 3 channels; expected 6"),
        ({"activity": [0, 12]}, "row 1 of column 'activity' holds no class of 0 to 11; found 12"),
        ({"subject": [1, None]}, "subject and trial must be integers, in every row"),
        ({"trial": ["a", "b"]}, "subject and trial must be integers"),
    ],
)
def test_a_recording_that_contradicts_itself_is_named_by_file_and_row(
    tmp_path: Path, columns: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=f"train-00000-of-00001.parquet: {message}"):
        read(tmp_path, recordings([4, 4]) | columns)


def test_recordings_that_are_all_shorter_than_a_window_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no recording has 10 readings; set data\.window lower"):
        read(tmp_path, recordings([9, 4]), window=10)


def test_a_file_of_usc_had_without_a_column_of_recordings_is_named(tmp_path: Path) -> None:
    columns = recordings([4])
    del columns["signal"]
    with pytest.raises(DataError, match="has no column 'signal'"):
        read(tmp_path, columns)


def own(root: Path, rows: list[dict[str, Any]], **options: int | str) -> Dataset:
    """Recordings of a user's own."""
    file = root / "motion.parquet"
    pa.parquet.write_table(pa.Table.from_pylist(rows), file)
    return load_dataset(str(file), options=ReadOptions(**options))  # type: ignore[arg-type]  # of several types


def row(length: int, subject: str = "Ada", trial: str = "one", activity: str = "walk") -> dict[str, Any]:
    """Channel c of reading t is 10 t + c."""
    signal = (10.0 * np.arange(length)[:, None] + np.arange(2)).tolist()
    return {"subject": subject, "activity": activity, "trial": trial, "signal": signal}


def test_a_signal_may_be_a_list_of_readings_and_its_people_have_names(tmp_path: Path) -> None:
    data = own(tmp_path, [row(9), row(5, "Bo", activity="run")], window=4)
    assert data.inputs.shape == (3, 2, 4)
    assert data.inputs[1].tolist() == [[40, 50, 60, 70], [41, 51, 61, 71]]
    assert data.class_names == ("run", "walk") and data.labels.tolist() == [1, 1, 0]
    assert data.columns["subject"].tolist() == ["Ada", "Ada", "Bo"]
    assert data.unit == "trial" and data.columns["trial"].tolist() == ["Ada/walk/one"] * 2 + ["Bo/run/one"]


def test_a_step_below_the_window_makes_windows_that_overlap(tmp_path: Path) -> None:
    data = own(tmp_path, [row(9)], window=4, step=2)
    assert data.inputs[:, 0, 0].tolist() == [0, 20, 40] and set(data.columns["trial"]) == {"Ada/walk/one"}


def test_rows_of_one_trial_are_parts_of_one_recording(tmp_path: Path) -> None:
    data = own(tmp_path, [row(4), row(4)], window=4)
    assert len(data) == 2 and len(set(data.columns["trial"])) == 1


def test_a_flat_signal_without_sizes_has_one_channel(tmp_path: Path) -> None:
    data = own(tmp_path, [row(1) | {"signal": [1.0, 2.0, 3.0, 4.0]}], window=2)
    assert data.inputs.tolist() == [[[1.0, 2.0]], [[3.0, 4.0]]]


def test_the_class_may_have_another_name(tmp_path: Path) -> None:
    named = {key: value for key, value in row(4).items() if key != "activity"} | {"posture": "sits"}
    assert own(tmp_path, [named], window=4, label="posture").class_names == ("sits",)


def test_readings_with_other_numbers_of_channels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="row 0 of column 'signal' holds a list of 1; expected 2"):
        own(tmp_path, [row(2) | {"signal": [[1.0, 2.0], [3.0]]}], window=2)


def test_inputs_that_are_no_signal_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "train-0.parquet", recordings([256, 256]) | {"weight": [60.0, 70.0]})
    assert any("'weight' is not read" in note for note in read_own(tmp_path).notes)
    with pytest.raises(DataError, match="expected 'signal' alone"):
        read_own(tmp_path, inputs=("weight",))


def test_recordings_may_have_a_number_to_learn(tmp_path: Path) -> None:
    columns = recordings([8, 4]) | {"pressure": [1013.5, 990.0]}
    write(tmp_path / "train-0.parquet", {name: values for name, values in columns.items() if name != "activity"})
    data = read_own(tmp_path, label="pressure", window=4)
    assert data.targets is not None and data.targets.tolist() == [[1013.5], [1013.5], [990.0]]
    assert len(np.unique(data.columns["trial"])) == 2
