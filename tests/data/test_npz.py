from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_layouts import noise

from fedstrata.base.errors import DataError
from fedstrata.data import load_dataset
from fedstrata.data.column_roles import Memory, ReadOptions


@pytest.fixture
def file(root: Path) -> Path:
    return root / "mine.npz"


X = np.arange(12, dtype=np.float64).reshape(3, 4)


@pytest.mark.parametrize(("x", "y"), [("x", "y"), ("inputs", "labels")])
def test_arrays_under_either_name_become_a_dataset(file: Path, x: str, y: str) -> None:
    np.savez(file, **{x: X, y: np.array([0, 2, 1]), "site": np.array(["a", "b", "a"])})  # type: ignore[arg-type]  # allow_pickle is meant
    data = load_dataset(str(file))
    assert np.array_equal(data.inputs.numpy(), X.astype(np.float32))
    assert (data.labels.tolist(), data.classes) == ([0, 2, 1], 3)
    assert data.columns["site"].tolist() == ["a", "b", "a"]


def test_arrays_of_one_axis_are_the_columns_of_a_table(file: Path) -> None:
    np.savez(file, age=[40, 50, 60], dose=[0.5, 1.5, 2.5], site=["a", "b", "a"], label=[["no"], ["yes"], ["yes"]])
    data = load_dataset(str(file), options=ReadOptions(kept_out=("site",)))
    assert data.feature_names == ("age", "dose") and data.inputs.tolist() == [[40, 0.5], [50, 1.5], [60, 2.5]]
    assert (
        data.class_names == ("no", "yes")
        and data.labels.tolist() == [0, 1, 1]
        and data.columns["site"].tolist() == ["a", "b", "a"]
    )


def test_the_test_split_shares_classes_with_the_training_split(file: Path) -> None:
    np.savez(file, x=X, y=[0, 1, 0], x_test=X[:2] + 100, y_test=[3, 0], who=[1, 2, 3], who_test=[4, 5])
    train, test = load_dataset(str(file)), load_dataset(str(file), split="test")
    assert train.classes == test.classes == 4
    assert test.inputs[0].tolist() == [100, 101, 102, 103]
    assert (train.columns["who"].tolist(), test.columns["who"].tolist()) == ([1, 2, 3], [4, 5])


def test_texts_become_classes_in_alphabetical_order_over_both_splits(file: Path) -> None:
    np.savez(file, x=X, y=["dog", "ant", "dog"], x_test=X[:1], y_test=["cat"])
    assert load_dataset(str(file)).class_names == ("ant", "cat", "dog")
    assert load_dataset(str(file)).labels.tolist() == [2, 0, 2]
    assert load_dataset(str(file), split="test").labels.tolist() == [1]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (noise(3, (5, 6)), (1, 5, 6)),
        (noise(3, (5, 6, 3)), (3, 5, 6)),
        (noise(3, (5, 6, 1)), (1, 5, 6)),
        (noise(3, (3, 6, 6)), (3, 6, 6)),
        (noise(3, (7,)), (7,)),
    ],
)
def test_bytes_stay_bytes_and_images_get_their_channels_first(
    file: Path, given: np.ndarray, expected: tuple[int, ...]
) -> None:
    np.savez(file, x=given, y=[0, 1, 2])
    data = load_dataset(str(file))
    assert data.shape == expected
    assert data.inputs.numpy().dtype == np.uint8
    assert data.inputs.sum() == given.sum(dtype=int)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": [0, 1, 2]}, "mine.npz: expected columns of numbers or texts beside 'y', found y"),
        ({"x": X}, "mine.npz: expected one column of classes, .* found none among x"),
        ({"x": X, "inputs": X, "y": [0, 1, 2]}, "mine.npz: expected one column of images or lists, found x and inputs"),
        ({"x": X, "y": [0.0, np.nan, 2.0]}, "mine.npz: row 1 of column 'y' holds no class or number"),
        (
            {"x": X, "y": ["no", "yes", ""]},
            r"mine.npz: row 2 of column 'y' holds no class or number; fill it in or leave these rows out",
        ),
        (
            {"x": X, "y": ["no"] * 3, "x_test": X[:2], "y_test": ["", ""]},
            "row 0 of column 'y' holds no class or number, and so do 1",
        ),
        ({"x": X, "y": [[["a"]]] * 3}, "expected numbers, or one text for each row"),
        ({"x": X, "y": [0, 1, 2], "y_test": [0]}, "mine.npz has no column 'x'; it has y"),
        ({"x": X, "y": [0, 1, 2], "x_test": X[:1], "y_test": ["a"]}, "Field y has incompatible types: int64 vs string"),
        ({"x": X.astype(str), "y": [0, 1, 2]}, "expected numbers"),
        ({"x": X[:0], "y": [0, 1, 2]}, "mine.npz .*y expected length 0 but got length 3"),
        ({"x": X[:0], "y": X[:0, 0]}, "mine.npz holds no samples"),
        ({"x": X[:2], "y": [0, 1, 2]}, "mine.npz .*y expected length 2 but got length 3"),
        ({"x": np.where(X == 5, np.inf, X), "y": [0, 1, 2]}, "row 1 of column 'x' holds no finite number"),
        ({"x": X, "y": [0, -1, 2]}, "row 1 of column 'y' holds no class of 0 to 2; found -1"),
        ({"x": X, "y": [0, 1, 2], "who": [1, 2]}, "mine.npz .*who expected length 3 but got length 2"),
    ],
)
def test_arrays_that_do_not_fit_are_named(file: Path, arrays: dict[str, Any], message: str) -> None:
    np.savez(file, **arrays)
    with pytest.raises(DataError, match=message):
        load_dataset(str(file))


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_several_blocks_are_read_in_order(file: Path, order: Any) -> None:
    x = np.asarray(np.arange(6_000_000.0).reshape(-1, 1000), order=order)
    np.savez(file, x=x, y=np.arange(len(x)))
    assert np.array_equal(load_dataset(str(file)).inputs.numpy(), x.astype(np.float32))


def test_nothing_is_ever_unpickled(file: Path) -> None:
    np.savez(file, x=X, y=np.array([{}, {}, {}], dtype=object))
    with pytest.raises(DataError, match="is no readable"):
        load_dataset(str(file))


def test_a_damaged_array_is_refused(file: Path) -> None:
    np.savez_compressed(file, x=np.random.default_rng(0).random((200, 4)), y=np.zeros(200, int))
    damaged = bytearray(file.read_bytes())
    damaged[300:900] = bytes(600)
    file.write_bytes(damaged)
    with pytest.raises(DataError, match="is no readable"):
        load_dataset(str(file))


def test_test_samples_must_have_the_shape_of_training_samples(file: Path) -> None:
    np.savez(file, x=X, y=[0, 1, 0], x_test=X[:2, :3], y_test=[0, 0])
    with pytest.raises(DataError, match=r"Field x has incompatible types: .*shape=\[4\].* vs .*shape=\[3\]"):
        load_dataset(str(file), split="test")


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_images_with_the_channels_last_have_them_first(file: Path, kind: Any) -> None:
    images = np.arange(3 * 4 * 5 * 3).reshape(3, 4, 5, 3).astype(kind)
    np.savez(file, x=images, y=np.array([0, 1, 0]))
    found = load_dataset(str(file)).inputs.numpy()
    assert found.shape == (3, 3, 4, 5) and np.array_equal(found, images.transpose(0, 3, 1, 2))


@pytest.mark.parametrize("memory", ["ram", "disk"])
def test_rows_of_two_precisions_are_read_in_the_larger_one(memory: Memory, tmp_path: Path) -> None:
    exact = np.array([[1.75e9 + 0.125], [2.0]])
    for name, dtype in (("a", np.float32), ("b", np.float64)):
        np.savez(tmp_path / f"{name}.npz", x=exact.astype(dtype), y=np.array([0, 1]))
    found = load_dataset(str(tmp_path), options=ReadOptions(memory=memory)).gather(torch.arange(4))
    assert found.tolist() == [*exact.astype(np.float32).tolist(), *exact.tolist()]
