from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from data_layouts import encode, noise, structs, write, write_images
from PIL import Image

from fedstrata.base.errors import DataError
from fedstrata.data import Dataset, ReadOptions, load_dataset
from fedstrata.data.parquet import ParquetTable


@pytest.fixture(autouse=True)
def copies(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("FEDSTRATA_CACHE", str(tmp_path_factory.mktemp("copies")))


def read(path: Path, name: str = "", split: Any = "train", **options: Any) -> Dataset:
    """The folder `name` of `path` as the registry knows it, or the folder `path` itself."""
    return load_dataset(name or str(path), path if name else None, split, ReadOptions(**options))


def test_grey_images_of_a_known_set_keep_their_pixels_and_take_its_constants(tmp_path: Path) -> None:
    pixels = write_images(tmp_path / "mnist", labels={"label": [3, 9, 0]})
    data = read(tmp_path, "mnist")
    assert np.array_equal(data.inputs.numpy(), pixels)
    assert data.labels.tolist() == [3, 9, 0]
    assert (data.classes, data.mean, data.std) == (10, (0.1307,), (0.3081,))


def test_cifar100_takes_the_fine_labels_and_keeps_the_coarse_ones_as_a_column(tmp_path: Path) -> None:
    labels = {"fine_label": [99, 0], "coarse_label": [19, 4]}
    pixels = write_images(tmp_path / "cifar100" / "cifar100", (3, 32, 32), "img", labels)
    data = read(tmp_path, "cifar100")
    assert np.array_equal(data.inputs.numpy(), pixels)
    assert data.labels.tolist() == [99, 0]
    assert data.columns["coarse_label"].tolist() == [19, 4]


def test_jpeg_images_are_decoded_to_nearly_their_pixels(tmp_path: Path) -> None:
    smooth = np.linspace(0, 255, 32).astype(np.uint8) * np.ones((3, 32, 1), np.uint8)
    write(tmp_path / "cifar10" / "train-0.parquet", {"img": structs([encode(smooth, "JPEG")]), "label": [1]})
    read_back = read(tmp_path, "cifar10").inputs[0].numpy().astype(int)
    assert abs(read_back - smooth).max() < 8


def test_images_may_be_plain_bytes(tmp_path: Path) -> None:
    pixels = write_images(tmp_path, wrap=lambda encoded: pa.array(encoded, pa.binary()))
    assert np.array_equal(read(tmp_path).inputs.numpy(), pixels)


def test_shards_are_read_in_order(tmp_path: Path) -> None:
    pixels = noise(4, (1, 28, 28))
    for shard in (1, 0):
        encoded = [encode(one) for one in pixels[2 * shard : 2 * shard + 2]]
        file = tmp_path / f"train-{shard:05}-of-00002.parquet"
        write(file, {"image": structs(encoded), "label": [shard, 2], "who": [f"s{shard}", "x"]})
    data = read(tmp_path)
    assert np.array_equal(data.inputs.numpy(), pixels)
    assert data.labels.tolist() == [0, 2, 1, 2]
    assert data.columns["who"].tolist() == ["s0", "x", "s1", "x"]


def test_class_names_come_from_the_metadata_of_the_hugging_face_writer(tmp_path: Path) -> None:
    columns = {"image": structs([encode(one) for one in noise(2, (1, 5, 5))]), "label": [1, 0]}
    write(tmp_path / "train-0.parquet", columns, {"label": ["cat", "dog", "ant"]})
    data = read(tmp_path)
    assert data.class_names == ("cat", "dog", "ant")
    assert data.classes == 3


def test_metadata_of_another_make_is_no_obstacle(tmp_path: Path) -> None:
    table = pa.table({"x": [[1.0]], "y": [0]}).replace_schema_metadata({"huggingface": "{"})
    pa.parquet.write_table(table, tmp_path / "train-0.parquet")
    assert read(tmp_path).class_names == ()


@pytest.mark.parametrize("encoded", [False, True])
def test_texts_become_classes_in_alphabetical_order_over_both_splits(tmp_path: Path, encoded: bool) -> None:
    for split, texts in {"train": ["dog", "ant"], "test": ["cat", "dog"]}.items():
        array = pa.array(texts)
        columns = {"x": [[1.0], [2.0]], "class": array.dictionary_encode() if encoded else array}
        write(tmp_path / f"{split}-0.parquet", columns)
    train, test = read(tmp_path), read(tmp_path, split="test")
    assert train.class_names == test.class_names == ("ant", "cat", "dog")
    assert (train.labels.tolist(), test.labels.tolist()) == ([2, 0], [1, 2])


def test_classes_are_counted_over_both_splits_which_both_need_some(tmp_path: Path) -> None:
    write(tmp_path / "train-0.parquet", {"x": [[1.0], [2.0]], "y": [0, 1]})
    write(tmp_path / "test-0.parquet", {"x": [[1.0]], "y": [4]})
    assert read(tmp_path).classes == 5
    write(tmp_path / "test-0.parquet", {"x": [[1.0]]})
    with pytest.raises(DataError, match=r"test-0.parquet has no column 'y'"):
        read(tmp_path)
    write(tmp_path / "test-0.parquet", {"y": [0]})
    with pytest.raises(DataError, match=r"test-0.parquet has no column 'x'"):
        read(tmp_path)


def test_images_of_an_unknown_set_have_colour_if_any_of_them_has(tmp_path: Path) -> None:
    grey, colour = noise(1, (1, 6, 6))[0], noise(1, (3, 6, 6))[0]
    columns = {"image": structs([encode(grey), encode(colour)]), "label": [0, 1]}
    write(tmp_path / "train-0.parquet", columns)
    inputs = read(tmp_path).inputs.numpy()
    assert np.array_equal(inputs[0], np.repeat(grey, 3, axis=0))
    assert np.array_equal(inputs[1], colour)


NESTED = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


@pytest.mark.parametrize(
    "column",
    [
        pa.array(NESTED.tolist(), pa.list_(pa.list_(pa.float64()))),
        pa.array(NESTED.tolist(), pa.large_list(pa.list_(pa.float32(), 4))),
        pa.array(NESTED.astype(int).tolist(), pa.list_(pa.list_(pa.int16(), 4), 3)),
    ],
)
def test_nested_lists_of_any_sort_become_float32(tmp_path: Path, column: Any) -> None:
    write(tmp_path / "train-0.parquet", {"series": column, "target": [0, 1]})
    data = read(tmp_path)
    assert np.array_equal(data.inputs.numpy(), NESTED)
    assert data.inputs.numpy().dtype == np.float32


def test_columns_of_numbers_beside_lists_are_named_as_not_read_and_refused_as_inputs(tmp_path: Path) -> None:
    """A number beside a list is no feature, which nobody sees by the scores."""
    columns = {"x": [[1.0], [2.0]], "y": [0, 1], "age": [40, 41], "patient": [7, 8], "site": ["a", "b"]}
    write(tmp_path / "train-0.parquet", columns)
    (note,) = read(tmp_path).notes
    assert "column 'x' alone; 'age' is not read" in note
    assert read(tmp_path, inputs=("x",)).notes == ()
    for more in ({}, {"z": [[1.0], [2.0]]}):
        write(tmp_path / "train-0.parquet", columns | more)
        for inputs in (("x", "age"), ("age", "x"), ("x", "nonexistent")):
            with pytest.raises(DataError, match=r"data\.inputs = .*: expected 'x' alone"):
                read(tmp_path, inputs=inputs)


def test_further_columns_keep_numbers_and_texts_and_drop_the_rest(tmp_path: Path) -> None:
    columns = {
        "x": [[1.0], [2.0]],
        "y": [0, 1],
        "age": pa.array([4, None]),
        "left": pa.array([True, None]),
        "sure": [True, False],
        "who": ["a", None],
        "site": pa.array(["b", "c"]).dictionary_encode(),
        "day": pa.array([0, 1], pa.date32()),
        "box": [{"w": 1}, {"w": 2}],
    }
    write(tmp_path / "train-0.parquet", columns)
    found = read(tmp_path).columns
    assert list(found) == ["age", "left", "sure", "who", "site", "day"]
    assert found["age"].tolist()[0] == 4
    assert np.isnan(found["age"][1])
    assert np.isnan(found["left"][1])
    assert found["sure"].tolist() == [True, False]
    assert found["who"].tolist() == ["a", ""]
    assert found["site"].tolist() == ["b", "c"]
    assert found["day"].tolist() == ["1970-01-01", "1970-01-02"]


def test_palettes_and_transparency_are_flattened_to_colour(tmp_path: Path) -> None:
    pixels = np.full((1, 4, 4), 255, np.uint8)
    buffers = []
    for mode in ("P", "RGBA"):
        path = tmp_path / f"{mode}.png"
        Image.fromarray(pixels[0]).convert(mode).save(path)
        buffers.append(path.read_bytes())
    write(tmp_path / "train-0.parquet", {"image": structs(buffers), "label": [0, 1]})
    assert read(tmp_path).inputs.unique().tolist() == [255]
    assert read(tmp_path).shape == (3, 4, 4)


PNG = encode(noise(1, (1, 28, 28))[0])
DEEP = encode(np.zeros((1, 28, 28), np.uint16))
NARROW = encode(noise(1, (1, 28, 20))[0])


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("encoded", "message"),
    [
        ([PNG, PNG, PNG[: len(PNG) // 2]], "row 2 of column 'image' is no readable image"),
        ([PNG, b"no image"], "row 1 of column 'image' is no readable image"),
        ([DEEP], "row 0 of column 'image' is no readable image .*8 bits per channel"),
        ([PNG, NARROW], "row 1 of column 'image' has 28x20 pixels; expected 28x28"),
        ([PNG, None], "row 1 of column 'image' holds no bytes"),
    ],
)
def test_a_broken_image_is_named_by_file_and_row(
    tmp_path: Path, known: bool, encoded: Sequence[bytes | None], message: str
) -> None:
    write(tmp_path / "mnist" / "train-0.parquet", {"image": structs(encoded), "label": [0] * len(encoded)})
    with pytest.raises(DataError, match=f"train-0.parquet: .*{message}"):
        read(tmp_path, "mnist") if known else read(tmp_path / "mnist")


def test_rows_are_counted_within_their_own_file(tmp_path: Path) -> None:
    for shard, second in enumerate((PNG, b"")):
        columns = {"image": structs([PNG, second]), "label": [0, 1]}
        write(tmp_path / "mnist" / f"train-{shard:05}-of-00002.parquet", columns)
    with pytest.raises(DataError, match=r"train-00001-of-00002.parquet: row 1 "):
        read(tmp_path, "mnist")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (pa.array([0, None, 1, 2]), "row 1 of column 'label' holds no class"),
        (pa.array(["cat", "dog", "", "cat"]), "row 2 of column 'label' holds no class"),
        (pa.array([0, 1, 2, 10]), "row 3 of column 'label' holds no class of 0 to 9; found 10"),
        (pa.array([0, -1, 2, 3]), "row 1 of column 'label' holds no class of 0 to 9; found -1; if numbers shall"),
    ],
)
def test_a_wrong_class_is_named_by_file_and_row(tmp_path: Path, labels: Any, message: str) -> None:
    write_images(tmp_path / "mnist", labels={"label": labels})
    with pytest.raises(DataError, match=f"train-00000-of-00001.parquet: {message}"):
        read(tmp_path, "mnist")


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([[1.0, 2.0], [1.0]]), "row 1 of column 'x' holds a list of 1; expected 2"),
        (pa.array([[[1.0, 2.0], [1.0, 2.0]], [[1.0, 2.0], [1.0]]]), "row 1 of column 'x' holds a list of 1"),
        (pa.array([[1.0], None]), "row 1 of column 'x' holds a missing value"),
        (pa.array([[1.0, 2.0], [1.0, None]]), "row 1 of column 'x' holds a missing value"),
        (pa.array([[], [1.0]]), "row 0 of column 'x' holds a list of 0; expected some numbers"),
        (pa.array([[1.0], [1e300]]), "row 1 of column 'x' holds no finite number"),
        (pa.array([[[1.0]], [[float("nan")]]]), "row 1 of column 'x' holds a value that is not a finite float32"),
        (pa.array([["a"], ["b"]]), "column 'x' holds list<element: string>; expected lists of numbers"),
    ],
)
def test_a_wrong_list_is_named_by_file_and_row(tmp_path: Path, column: Any, message: str) -> None:
    write(tmp_path / "train-0.parquet", {"x": column, "y": [0, 1]})
    with pytest.raises(DataError, match=f"train-0.parquet: {message}"):
        read(tmp_path)


def test_lists_must_have_one_shape_over_all_shards(tmp_path: Path) -> None:
    write(tmp_path / "train-00000-of-00002.parquet", {"x": [[1.0]], "y": [0]})
    write(tmp_path / "train-00001-of-00002.parquet", {"x": [[1.0, 2.0]], "y": [0]})
    with pytest.raises(DataError, match=r"train-00001-of-00002.parquet: row 0 .*shape \(2,\); expected \(1,\)"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("name", "columns", "message"),
    [
        ("", {"a": [[1.0]], "b": [[1.0]], "y": [0]}, "expected one column of images or lists, found a and b"),
        ("", {"site": ["x"], "y": [0]}, "expected columns of numbers or texts beside 'y', found site, y"),
        ("", {"a": [[1.0]], "y": [0], "label": [0]}, "expected one column of classes, .*found y and label"),
        ("", {"a": [[1.0]], "kind": [0]}, "expected one column of classes, .*found none among a, kind"),
        ("cifar10", {"picture": structs([PNG]), "label": [0]}, "has no column 'img'; it has picture, label"),
        ("mnist", {"image": ["a.png"], "label": [0]}, "column 'image' holds string; expected lists of numbers"),
        ("mnist", {"image": structs([NARROW]), "label": [0]}, "has 28x20 pixels; expected 28x28"),
    ],
)
def test_other_columns_than_expected_are_refused(
    tmp_path: Path, name: str, columns: dict[str, Any], message: str
) -> None:
    write(tmp_path / name / "train-0.parquet", columns)
    with pytest.raises(DataError, match=message):
        read(tmp_path, name)


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([[1.0]]), pa.array([0]), pa.array([1]), pa.array([2])], ["x", "y", "a", "a"])
    pa.parquet.write_table(table, tmp_path / "train-0.parquet")
    with pytest.raises(DataError, match="has two columns 'a'"):
        read(tmp_path)


def test_a_file_that_is_no_parquet_or_damaged_in_the_middle_is_named(tmp_path: Path) -> None:
    columns = {"x": np.random.default_rng(0).random((500, 8)).tolist(), "y": [0] * 500}
    file = write(tmp_path / "train-0.parquet", columns)
    content = file.read_bytes()
    for damaged in (b"half a file", content[:4] + bytes(56) + content[60:]):
        file.write_bytes(damaged)
        with pytest.raises(DataError, match=r"train-0.parquet is no readable Parquet file"):
            read(tmp_path)


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "train-0.parquet", {"x": pa.array([], pa.list_(pa.float32())), "y": pa.array([], pa.int64())})
    with pytest.raises(DataError, match=r"train-0.parquet holds no samples"):
        read(tmp_path)


def test_so_many_rows_are_read_together_as_their_values_take_little_memory(tmp_path: Path) -> None:
    """Of a long column of short texts it was one row, so that names of 300,000 patients took a minute."""
    names = pa.array([f"patient-{row:06}" for row in range(20_000)])
    sites = pa.array(["Ghent", "Lyon"] * 10_000)
    once = pa.DictionaryArray.from_arrays(np.zeros(20, np.int32), pa.array([b"x" * 2**22]))
    short = write(tmp_path / "short.parquet", {"name": names, "site": sites})
    shared = write(tmp_path / "shared.parquet", {"note": once.cast(pa.binary())})
    assert max(len(batch) for batch in ParquetTable(str(short)).batches(["name", "site"])) == 4096
    assert max(len(batch) for batch in ParquetTable(str(shared)).batches(["note"])) in (2, 3)
