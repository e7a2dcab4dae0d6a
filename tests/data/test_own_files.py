"""Tables, a file per client, and folders of images."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyarrow import csv, feather
from pyarrow import parquet as pq

from fedstrata.base.errors import DataError
from fedstrata.data import Dataset, ReadOptions, find, has_own_test, load_dataset
from fedstrata.data.cache import cache_folder
from fedstrata.data.locate import client_values


def rows(first: float = 0.0, **columns: Any) -> Any:
    return pa.table({"a": [first, first + 1], "b": [5, 6], "label": ["x", "y"], **columns})


def write(file: Path, table: Any) -> Path:
    """Write a table, or the text of one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(table, str):
        file.write_text(table)
    elif file.suffix.lower() == ".csv":
        csv.write_csv(table, file)
    else:
        pq.write_table(table, file)
    return file


def write_all(root: Path, *names: str) -> None:
    """Write the same table to several files."""
    for name in names:
        write(root / name, rows())


def read(path: Path, split: Any = "train", **options: Any) -> Dataset:
    return load_dataset(str(path), split=split, options=ReadOptions(**options))


# One table


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_columns_of_numbers_and_of_texts_are_the_features_of_a_table(root: Path, suffix: str) -> None:
    """A text is its place among all of its column."""
    file = write(root / f"all{suffix}", rows(patient_id=[7, 8], kind=["q", "p"]))
    found = read(file)
    assert found.feature_names == ("a", "b", "kind") and found.texts == ((), (), ("p", "q"))
    assert found.inputs.tolist() == [[0.0, 5.0, 1.0], [1.0, 6.0, 0.0]]
    found = read(file, categories=False)
    assert found.feature_names == ("a", "b") and found.inputs.tolist() == [[0.0, 5.0], [1.0, 6.0]]
    assert found.class_names == ("x", "y")
    assert {name: values.tolist() for name, values in found.columns.items()} == {
        "patient_id": [7, 8],
        "kind": ["q", "p"],
    }


def test_features_and_classes_can_be_named(root: Path) -> None:
    file = write(root / "all.csv", rows(trial=[3, 4], outcome=[1, 0]))
    found = read(file, inputs=("b", "trial"), label="outcome")
    assert found.inputs.tolist() == [[5.0, 3.0], [6.0, 4.0]] and found.labels.tolist() == [1, 0]


STAGES = rows(num=[2, 0], kind=["ill", "well"])
GROUPS = {"label": "num", "classes": ("well", "ill", "ill"), "class_values": ("0", "1", "2")}


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize(
    ("options", "names", "labels"),
    [
        ({"label": "num > 0"}, ("no", "yes"), [1, 0]),
        ({"label": "num<=0"}, ("no", "yes"), [0, 1]),
        ({"label": "num == 2.0"}, ("no", "yes"), [1, 0]),
        ({"label": "kind != 'ill'"}, ("no", "yes"), [0, 1]),
        (GROUPS, ("well", "ill"), [1, 0]),
        ({"label": "num > 0", "classes": ("ill", "well"), "class_values": ("yes", "no")}, ("ill", "well"), [0, 1]),
        ({"label": "kind", "classes": ("a", "b"), "class_values": ("well", "ill")}, ("a", "b"), [1, 0]),
    ],
)
def test_classes_are_made_of_the_values_of_a_column(
    root: Path, suffix: str, options: dict[str, Any], names: tuple[str, ...], labels: list[int]
) -> None:
    """The column is no feature, and the classes are the same whichever of them a file happens to hold."""
    both = read(write(root / f"both{suffix}", STAGES), **options)
    one = read(write(root / f"one{suffix}", STAGES.slice(1)), **options)
    assert both.class_names == one.class_names == names
    assert both.labels.tolist() == labels and one.labels.tolist() == labels[1:]
    assert "num" in both.feature_names or "num" in options["label"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label": "nun > 0"}, "data.label = 'nun > 0': expected a column of .*did you mean num"),
        ({"label": "kind > 0"}, "expected a comparison of column 'kind' with a number, .* found texts"),
        ({"label": "kind > 'ill'"}, "or == or != with a text in quotes, found texts"),
        ({"label": "num == '2'"}, "expected a comparison of column 'num' .* found numbers"),
        (GROUPS | {"class_values": ("0", "1", "3")}, "row 0 of column 'num' holds a value without a class"),
        ({"label": "gap > 0"}, "row 1 of column 'gap' holds no class"),
    ],
)
def test_values_of_which_no_class_can_be_made_are_refused(root: Path, options: dict[str, Any], message: str) -> None:
    file = write(root / "all.parquet", STAGES.append_column("gap", pa.array([1.0, None])))
    with pytest.raises(DataError, match=message):
        read(file, inputs=("a",), **options)


def test_the_column_of_the_clients_is_no_feature(root: Path) -> None:
    """A network that is told the client would learn the clients by heart."""
    file = write(root / "all.csv", rows(ward=[1, 2]))
    assert read(file, kept_out=("ward",)).feature_names == ("a", "b")
    assert read(file).feature_names == ("a", "b", "ward")


def test_decimals_are_numbers(root: Path) -> None:
    """Databases export NUMERIC columns so. They were neither features nor among the columns that are none."""
    price = pa.array([Decimal("1.50"), Decimal("-2.25")], pa.decimal128(10, 2))
    patient = pa.array([Decimal(9007199254740993), Decimal(2)], pa.decimal128(18, 0))
    file = write(root / "all.parquet", rows(price=price, patient=patient))
    for memory in ("ram", "disk"):
        found = read(file, memory=memory)
        assert found.feature_names == ("a", "b", "price") and found.gather(torch.arange(2))[:, 2].tolist() == [
            1.5,
            -2.25,
        ]
        assert found.columns["patient"].tolist() == [9007199254740993, 2]
    missing = write(root / "missing.parquet", rows(price=pa.array([None, Decimal("2.25")], pa.decimal128(10, 2))))
    assert read(missing).inputs[:, 2].isnan().tolist() == [True, False]


def test_codes_keep_their_leading_zeros(root: Path) -> None:
    """7 and 007 are two sites. Measurements with zeros in front are numbers, and so are classes."""
    file = root / "all.csv"
    file.write_text("a,site,ward,patient_id,label\n08,007,12,01,00\n10,7,3,,01\n")
    found = read(file, kept_out=("site",))
    assert found.feature_names == ("a", "ward") and found.inputs.tolist() == [[8.0, 12.0], [10.0, 3.0]]
    assert found.columns["site"].tolist() == ["007", "7"] and found.columns["patient_id"].tolist() == ["01", ""]
    assert found.labels.tolist() == [0, 1]
    assert client_values(find(str(file)), "site").tolist() == ["007", "7"]
    assert read(file, kept_out=("ward",)).columns["ward"].tolist() == [12, 3]
    assert read(file, inputs=("a", "site"), label="ward").inputs.tolist() == [[8.0, 7.0], [10.0, 7.0]]


@pytest.mark.parametrize("memory", ["ram", "disk"])
@pytest.mark.parametrize("file", ["all.csv", "all.parquet"])
def test_a_column_without_a_name_numbers_the_rows_and_is_no_feature(root: Path, file: str, memory: Any) -> None:
    """So pandas and R write a table; where rows are sorted by client or class, the number of a row tells it."""
    found = read(write(root / file, rows(0.0, **{"": [0, 1], "__index_level_0__": [7, 3]})), memory=memory)
    assert found.feature_names == ("a", "b") and found.columns[""].tolist() == [0, 1]


FEATURES = ["patient_age", "body_mass_index", "length_of_stay", "user_rating", "center_x", "7"]
NUMBERS_OF_SOMETHING = [
    "patient_id",
    "visit_no",
    "index",
    "frame_index",
    "siteCode",
    "site",
    "stay",
    "visit_date",
    "row",
]


def test_what_is_said_of_a_unit_is_a_feature_and_its_number_is_none(root: Path) -> None:
    table = rows()
    for name in [*FEATURES, *NUMBERS_OF_SOMETHING]:
        table = table.append_column(name, pa.array([1, 2]))
    dataset = read(write(root / "ward.csv", table))
    assert dataset.feature_names == ("a", "b", *FEATURES)
    assert set(NUMBERS_OF_SOMETHING) <= dataset.columns.keys()


def test_train_and_test_files_share_classes(root: Path) -> None:
    write(root / "train.csv", rows())
    write(root / "test.csv", rows(10.0, label=["z", "y"]))
    train, test = read(root), read(root, "test")
    assert train.classes == test.classes == 3 and train.class_names == test.class_names
    assert test.inputs[:, 0].tolist() == [10.0, 11.0] and test.labels.tolist() == [2, 1]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_features_are_found_by_their_names_in_whatever_order(root: Path, suffix: str) -> None:
    write(root / f"train{suffix}", rows())
    write(root / f"test{suffix}", rows(10.0).select(["b", "label", "a"]))
    assert read(root).feature_names == read(root, "test").feature_names == ("a", "b")
    assert read(root, "test").inputs.tolist() == [[10.0, 5.0], [11.0, 6.0]]


def test_parquet_shards_of_features_share_classes(root: Path) -> None:
    write(root / "train-0.parquet", rows(label=["y", "y"]))
    write(root / "test-0.parquet", rows(label=["x", "y"]))
    assert read(root).labels.tolist() == [1, 1] and read(root, "test").labels.tolist() == [0, 1]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_missing_class_is_no_class_without_a_name(root: Path, suffix: str) -> None:
    outcomes = pa.table({"a": range(6), "outcome": ["yes", "no", "yes", "", "no", ""]})
    file = write(root / f"visits{suffix}", outcomes)
    with pytest.raises(
        DataError, match=r"visits\.\w+: row 3 of column 'outcome' holds no class or number, and so do 1 others"
    ):
        read(file, label="outcome")
    write(root / f"train{suffix}", rows())
    write(root / f"test{suffix}", rows(label=["x", ""]))
    with pytest.raises(DataError, match=r"test.*: row 1 of column 'label' holds no class"):
        read(root)


@pytest.mark.parametrize("memory", ["ram", "disk"])
@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        (rows(target=[0, 1]), {}, "expected one column of classes.*found label and target"),
        (rows(), {"label": "kind"}, "data.label = 'kind': expected a column of .* found a, b, label"),
        (rows(), {"inputs": ("c",)}, "data.inputs.*'c'"),
        (rows(), {"inputs": ("label",)}, "data.inputs.*no such column 'label'"),
        (rows(a=[0.5, None]), {"gaps": False}, "row 1 of column 'a' holds no finite number"),
        (rows(split=["test", "test"]), {}, "marks all samples for testing"),
        (rows(split=["train", None]), {}, "column 'split' holds neither train nor test; found ''"),
        (rows(), {"window": 8}, "data.window = 8: .* has no recordings"),
        (rows(), {"size": 8}, "data.size = 8: .* has no images"),
        ("", {}, "is no readable CSV file"),
        ("a,a,label\n1,2,0\n3,4,1\n", {}, "has two columns 'a'"),
        ("a,label\n1,x\n,y\n", {"gaps": False}, "all.csv: row 1 of column 'a' holds no finite number"),
        # The second row goes on in the next line of the file.
        ('a,b\n"1\n",2\n3\n', {}, "row 3 .*: expected 2 values as in the header, found 1; correct the row"),
    ],
)
def test_tables_that_do_not_fit_are_refused(
    root: Path, table: Any, options: dict[str, Any], message: str, memory: Any
) -> None:
    file = write(root / ("all.csv" if isinstance(table, str) else "all.parquet"), table)
    with pytest.raises(DataError, match=message):
        read(file, memory=memory, **options)
    # Of a text nothing is converted.
    assert not isinstance(table, str) or not list(cache_folder().glob("*"))


@pytest.mark.parametrize("memory", ["ram", "disk"])
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_with_a_header_alone_holds_no_samples(root: Path, suffix: str, memory: Any) -> None:
    write(root / f"Ghent{suffix}", rows())
    file = write(root / f"Lyon{suffix}", rows(site=["p", "q"]).slice(0, 0))
    reads = (
        lambda: read(file, memory=memory),
        lambda: read(root, memory=memory),
        lambda: client_values(find(str(file)), "site"),
    )
    for read_it in reads:
        with pytest.raises(DataError, match=f"Lyon{suffix} holds no samples; expected a row for each"):
            read_it()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,site,label\n1,Zürich,x\n2,Lyon,y\n", "column 'site' holds text that is not UTF-8; save the file as UTF-8"),
        ("a,site,label\n1,Lyon,nö\n2,Lyon,yes\n", "column 'label' holds text that is not UTF-8; save"),
        ("Größe,site,label\n1,Lyon,x\n2,Lyon,y\n", "the header holds text that is not UTF-8; save"),
    ],
)
@pytest.mark.parametrize("memory", ["ram", "disk"])
def test_a_file_in_another_encoding_says_how_to_save_it(root: Path, content: str, message: str, memory: Any) -> None:
    file = root / "visits.csv"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(DataError, match=f"visits.csv: {message}"):
        read(file, memory=memory)
    with pytest.raises(DataError, match=f"visits.csv: {message}"):
        client_values(find(str(file)), "site")


@pytest.mark.parametrize("ending", [".csv.gz", ".csv.bz2", ".CSV.ZST", ".feather", ".arrow"])
@pytest.mark.parametrize("memory", ["ram", "disk"])
def test_a_table_is_the_same_in_every_kind_of_file(root: Path, ending: str, memory: Any) -> None:
    table = rows(site=["p", "q"])
    file = root / f"visits{ending}"
    if "csv" in ending.lower():
        kind = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}[file.suffix.lower()]
        with pa.output_stream(str(file), compression=kind) as stream:
            csv.write_csv(table, stream)
    else:
        feather.write_feather(table, file, compression="lz4")
    found = read(file, memory=memory)
    assert found.feature_names == ("a", "b") and found.gather(torch.arange(2)).tolist() == [[0, 5], [1, 6]]
    assert found.class_names == ("x", "y") and found.columns["site"].tolist() == ["p", "q"]


def test_a_file_of_arrow_that_is_broken_is_named(root: Path) -> None:
    file = root / "visits.arrow"
    file.write_bytes(b"ARROW1" + bytes(100))
    with pytest.raises(DataError, match=r"visits.arrow is no readable Arrow file"):
        read(file)


def test_folders_of_a_columns_values_give_the_column(root: Path) -> None:
    """As Spark and Hive write them. With one column, its values are the clients."""
    write_all(root, "site=Ghent/part-0.parquet", "site=Lyon/part-0.parquet", "site=Lyon/part-1.parquet")
    found = read(root)
    assert found.columns["site"].tolist() == ["Ghent"] * 2 + ["Lyon"] * 4 and found.feature_names == ("a", "b")
    assert find(str(root)).client_column == "site" and found.notes == ()
    write_all(root, "site=Oslo/year=2024/part-0.parquet")
    with pytest.raises(DataError, match=r"part-0.parquet; expected .* in folders alike"):
        read(root)
    (root / "site=Oslo/year=2024/part-0.parquet").unlink()
    write_all(root, "site=Oslo/test.parquet")
    with pytest.raises(DataError, match=r"holds site=Oslo/test.parquet, the name of a split"):
        read(root)


@pytest.mark.parametrize("name", ["Split", "SPLIT", "split"])
def test_roles_are_found_in_upper_case(root: Path, name: str) -> None:
    """Samples for testing were trained on where their column began with a capital."""
    table = rows().append_column(name, [["train", "test"]]).rename_columns(["a", "b", "Label", name])
    file = write(root / "all.csv", table)
    assert has_own_test(find(str(file)))
    assert read(file).inputs.tolist() == [[0.0, 5.0]] and read(file, "test").inputs.tolist() == [[1.0, 6.0]]
    assert read(file).class_names == ("x", "y") and read(file).columns["split"].tolist() == ["train"]


def test_codes_of_many_digits_stay_what_they_are(root: Path) -> None:
    file = write(root / "all.csv", "a,patient,label\n1,12345678901234567890,x\n2,12345678901234567891,y\n")
    assert read(file).columns["patient"].tolist() == ["12345678901234567890", "12345678901234567891"]


def test_a_table_beside_a_copy_of_it_is_refused(root: Path) -> None:
    write_all(root, "train.csv", "train.parquet")
    with pytest.raises(DataError, match=r"holds train.csv and train.parquet; expected one file of each name"):
        read(root)


# A file per client


@pytest.mark.parametrize("memory", ["ram", "disk"])
def test_codes_of_one_file_that_begin_with_zero_are_texts_in_all(root: Path, memory: Any) -> None:
    for name, codes in (("Ghent", ("010", "011")), ("Lyon", ("12", "13"))):
        (root / f"{name}.csv").write_text(f"a,b,label,patient\n1,2,x,{codes[0]}\n3,4,y,{codes[1]}\n")
    found = read(root, kept_out=("patient",), memory=memory)
    assert found.columns["patient"].tolist() == ["010", "011", "12", "13"] and found.feature_names == ("a", "b")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_file_per_client_has_the_name_of_the_client(root: Path, suffix: str) -> None:
    write(root / f"Ghent{suffix}", rows())
    write(root / f"Lyon{suffix}", rows(2.0))
    assert find(str(root)).client_column == "client"
    found = read(root)
    assert found.columns["client"].tolist() == ["Ghent", "Ghent", "Lyon", "Lyon"]
    assert found.inputs[:, 0].tolist() == [0, 1, 2, 3]


def test_clients_may_have_files_of_different_kinds(root: Path) -> None:
    write(root / "Ghent.csv", rows())
    write(root / "Lyon.parquet", rows(2.0))
    found = read(root)
    assert found.columns["client"].tolist() == ["Ghent", "Ghent", "Lyon", "Lyon"] and found.labels.tolist() == [
        0,
        1,
        0,
        1,
    ]


def test_archives_per_client_are_read_alike(root: Path) -> None:
    for place, name in enumerate(("Ghent", "Lyon")):
        np.savez(root / f"{name}.npz", x=np.full((3, 2), place), y=[0, 1, 1], trial=[1, 1, 2])
    found = read(root)
    assert found.columns["client"].tolist() == ["Ghent"] * 3 + ["Lyon"] * 3
    assert found.inputs[:, 0].tolist() == [0, 0, 0, 1, 1, 1] and found.columns["trial"].tolist() == [1, 1, 2] * 2


def test_folders_train_and_test_hold_files_of_the_same_names(root: Path) -> None:
    write_all(root, "train/Ghent.csv", "train/Lyon.csv")
    write(root / "test" / "Ghent.csv", rows(9.0))
    assert read(root, "test").columns["client"].tolist() == ["Ghent", "Ghent"]
    assert len(read(root)) == 4


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (("Lyon.csv", rows().drop_columns(["b"])), "Lyon.csv has no column 'b'"),
        (
            ("Lyon.csv", rows(b=["5", "q"])),
            "Lyon.csv: Unable to merge: Field b has incompatible types: int64 vs string, as in .*Ghent.csv; make",
        ),
        (
            ("Lyon.csv", rows(a=[1.0, float("inf")])),
            r"Lyon.csv: row 1 of column 'a' holds no finite number; .* \(row 0 is the first below the header",
        ),
        (("Lyon.csv", rows(label=["x", ""])), "Lyon.csv: row 1 of column 'label' holds no class"),
        (("Lyon.csv", rows(client=["p", "q"])), "has a column 'client'"),
        (("Lyon.csv", rows(c=[1, 2])), r"Lyon.csv has a column 'c', and .*Ghent.csv has none; .* name the features"),
    ],
)
def test_files_of_clients_that_do_not_fit_together_are_refused(root: Path, other: Any, message: str) -> None:
    write(root / "Ghent.csv", rows())
    write(root / other[0], other[1])
    with pytest.raises(DataError, match=message):
        read(root)


@pytest.mark.parametrize("memory", ["ram", "disk"])
def test_a_file_may_have_columns_of_its_own_that_are_no_features(root: Path, memory: Any) -> None:
    write(root / "Ghent.csv", rows())
    write(root / "Lyon.csv", rows(c=[1, 2], note=["p", "q"]))
    found = read(root, inputs=("a", "b"), memory=memory)
    assert found.feature_names == ("a", "b") and found.columns["note"].tolist() == ["", "", "p", "q"]
    with pytest.raises(DataError, match=r"data.inputs: .*Ghent.csv has no such column 'c'"):
        read(root, inputs=("a", "c"), memory=memory)


@pytest.mark.parametrize("name", ["test.csv", "test-0.parquet", "test.npz"])
def test_a_split_is_never_taken_for_a_client(root: Path, name: str) -> None:
    """A folder with test samples alone would be trained on them."""
    if name.endswith(".npz"):
        np.savez(root / name, x=np.zeros((4, 2)), y=[0, 1, 0, 1])
    else:
        write(root / name, rows())
    with pytest.raises(DataError, match="the name of a split and not of a client"):
        read(root)


def test_a_client_whose_name_begins_like_a_split_is_a_client(root: Path) -> None:
    """The other clients were left out without a word, and its samples given to twenty clients at random."""
    write_all(root, "trainingcentre.csv", "testlab.csv", "Ghent.csv")
    assert sorted(set(read(root).columns["client"].tolist())) == ["Ghent", "testlab", "trainingcentre"]


def test_test_files_in_another_folder_are_never_left_out_without_a_word(root: Path) -> None:
    """Samples for training were held out in their place."""
    write_all(root, "a/train/train-0.csv", "a/test/test-0.csv", "b/data/train.csv", "b/test.csv")
    with pytest.raises(DataError, match=r"a holds train/train-0.csv, the name of a split"):
        read(root / "a")
    (note,) = read(root / "b").notes
    assert note.startswith(f"{root / 'b'} holds files that are not read: test.csv")


def test_files_beside_those_of_a_split_are_named(root: Path) -> None:
    write_all(root, "train_1.csv", "train_2.csv", "test.csv", "validation.csv", "testlab.csv")
    found = read(root)
    assert len(found) == 4 and len(read(root, "test")) == 2
    (note,) = found.notes
    assert note.startswith(f"{root} holds files that are not read: testlab.csv, validation.csv. Data end with .csv")


@pytest.mark.parametrize("name", ["all.CSV", "all.Parquet"])
def test_an_ending_in_upper_case_is_the_same_ending(root: Path, name: str) -> None:
    file = write(root / name, rows())
    assert read(file).feature_names == ("a", "b")
    assert client_values(find(str(file)), "b").tolist() == [5, 6]
    assert read(file, memory="disk").gather(torch.arange(2)).tolist() == read(file).inputs.tolist()


def test_a_client_is_not_dropped_for_an_ending_in_upper_case(root: Path) -> None:
    write(root / "Ghent.csv", rows())
    write(root / "Lyon.CSV", rows(2.0))
    found = read(root)
    assert found.columns["client"].tolist() == ["Ghent", "Ghent", "Lyon", "Lyon"] and found.notes == ()
    write(root / "Lyon.csv", rows(2.0))
    with pytest.raises(DataError, match=r"holds Lyon.CSV and Lyon.csv; expected one file of each name"):
        read(root)
    for name in ("a.npz", "b.NPZ"):
        (root / "archives").mkdir(exist_ok=True)
        with (root / "archives" / name).open("wb") as archive:
            np.savez(archive, x=np.zeros((3, 2)), y=[0, 1, 1])
    assert read(root / "archives").columns["client"].tolist() == ["a"] * 3 + ["b"] * 3


def test_files_that_look_like_data_and_are_not_read_are_named(root: Path) -> None:
    write_all(root, "train/Ghent.csv", "test/Ghent.csv")
    for name in ("train/Lyon.tsv", "train/Oslo.XLSX", "test/Oslo.txt", "train/readme.md"):
        (root / name).write_text("a\tb\tlabel\n1\t2\tx\n")
    for split in ("train", "test"):
        (note,) = read(root, split).notes
        assert note.startswith(f"{root} holds files that are not read: test/Oslo.txt, train/Lyon.tsv, train/Oslo.XLSX")
        assert "Data end with .csv" in note


def test_files_of_clients_in_other_folders_are_named(root: Path) -> None:
    write_all(root, "Ghent.csv", "Lyon.csv", "north/Oslo.csv")
    (note,) = read(root).notes
    assert "files that are not read: north/Oslo.csv" in note
    write(root / "train" / "Bern.csv", rows())
    (note,) = read(root).notes
    assert "not read: Ghent.csv, Lyon.csv, north/Oslo.csv" in note


@pytest.mark.parametrize("memory", ["ram", "disk"])
@pytest.mark.parametrize(("mark", "name"), [(";", "semicolons"), ("\t", "tabs")])
def test_columns_that_are_separated_by_something_else_are_told(root: Path, mark: str, name: str, memory: Any) -> None:
    """Spreadsheets write semicolons where numbers have commas; the message named one column that is none."""
    (root / "all.csv").write_text(mark.join(("a", "b", "label")) + "\n" + mark.join(("1,5", "2", "x")) + "\n")
    for read_it in (
        lambda: read(root / "all.csv", memory=memory),
        lambda: client_values(find(str(root / "all.csv")), "a"),
    ):
        with pytest.raises(DataError, match=f"expected columns separated by commas, found {name}"):
            read_it()


# Images


def image(file: Path, colour: Any = 0, size: tuple[int, int] = (4, 3), mode: str = "L") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(file)


def test_folders_are_classes_and_those_above_them_clients(root: Path) -> None:
    image(root / "Ghent" / "cat" / "1.png", 10)
    image(root / "Ghent" / "dog" / "1.png", 20)
    image(root / "Lyon" / "cat" / "1.png", 30)
    found = read(root)
    assert find(str(root)).client_column == "client"
    assert found.columns["client"].tolist() == ["Ghent", "Ghent", "Lyon"]
    assert found.class_names == ("cat", "dog") and found.labels.tolist() == [0, 1, 0]
    assert found.inputs.dtype == torch.uint8 and found.shape == (1, 3, 4)
    assert found.inputs[:, 0, 0, 0].tolist() == [10, 20, 30]


@pytest.mark.parametrize("names", [("train", "test"), ("Train", "TEST"), ("Training", "Testing")])
def test_folders_of_splits_may_have_their_usual_names(root: Path, names: tuple[str, str]) -> None:
    for name in (*names, "val"):
        for place, kind in enumerate(("cat", "dog")):
            image(root / "pets" / name / kind / f"{place}.png", colour=place)
    found = find(str(root / "pets"))
    assert (len(found.train), len(found.test), found.client_column) == (2, 2, "")
    assert ["not read: val/cat/0.png, val/dog/1.png" in note for note in found.notes] == [True]


def test_a_folder_of_a_split_is_no_client_and_no_class(root: Path) -> None:
    for name in ("Ghent", "test"):
        image(root / "pets" / name / "cat" / "0.png")
    with pytest.raises(DataError, match=r"pets holds test/cat/0.png, the name of a split and not of a client"):
        find(str(root / "pets"))


def test_tables_beside_images_are_refused(root: Path) -> None:
    image(root / "pets" / "cat" / "0.png")
    write(root / "pets" / "metadata.csv", rows())
    with pytest.raises(DataError, match=r"pets holds cat/0.png and metadata.csv; expected tables or images"):
        find(str(root / "pets"))


def test_an_image_is_turned_as_its_camera_says(root: Path) -> None:
    """Orientation 6: the first row is the right side."""
    pixels = np.zeros((4, 8), np.uint8)
    pixels[0] = 255
    exif = Image.Exif()
    exif[0x0112] = 6
    (root / "cat").mkdir()
    Image.fromarray(pixels).save(root / "cat" / "0.png", exif=exif)
    inputs = read(root).inputs
    assert inputs.shape == (1, 1, 8, 4)
    assert bool((inputs[0, 0, :, -1] == 255).all()) and not bool(inputs[0, 0, :, :-1].any())


def test_what_is_transparent_is_white(root: Path) -> None:
    """Black ink on a transparent ground, whose hidden colour is black as well, was a black picture."""
    ink = np.zeros((4, 4, 4), np.uint8)
    ink[0, :, 3] = 255
    (root / "cat").mkdir()
    Image.fromarray(ink).save(root / "cat" / "0.png")
    inputs = read(root).inputs[0]
    assert bool((inputs[:, 0] == 0).all()) and bool((inputs[:, 1:] == 255).all())


@pytest.mark.parametrize("option", [{"label": "kind"}, {"inputs": ("a",)}])
def test_columns_cannot_be_chosen_where_there_are_none(root: Path, option: dict[str, Any]) -> None:
    image(root / "pets" / "cat" / "0.png")
    image(root / "pets" / "dog" / "0.png")
    np.savez(root / "lab.npz", x=np.zeros((4, 2), np.float32), y=np.arange(4) % 2)
    (root / "sites").mkdir()
    np.savez(root / "sites" / "Ghent.npz", x=np.zeros((4, 2), np.float32), y=np.arange(4) % 2)
    for name in ("pets", "lab.npz", "sites"):
        with pytest.raises(DataError, match=r"data\.(label|inputs) = .*: expected "):
            read(root / name, **option)


def test_without_folders_of_clients_the_partition_decides(root: Path) -> None:
    image(root / "train" / "cat" / "1.png", 10)
    image(root / "train" / "dog" / "1.png", (1, 2, 3), mode="RGB")
    image(root / "test" / "dog" / "2.png", 30)
    location = find(str(root))
    assert (location.client_column, len(location.test)) == ("", 1)
    train, test = read(root), read(root, "test")
    assert train.shape == test.shape == (3, 3, 4)  # an image with colour gives all of them three channels
    assert train.inputs[:, :, 0, 0].tolist() == [[10, 10, 10], [1, 2, 3]] and test.labels.tolist() == [1]


def test_images_are_resized_or_must_have_one_size(root: Path) -> None:
    image(root / "cat" / "1.png", 10)
    image(root / "cat" / "2.png", 20, size=(8, 8))
    with pytest.raises(DataError, match=r"2.png has 8x8 pixels; expected 3x4.*data.size"):
        read(root)
    assert read(root, size=5).inputs[:, 0].tolist() == [[[10] * 5] * 5, [[20] * 5] * 5]
    image(root / "Ghent" / "cat" / "1.png", 10)
    with pytest.raises(DataError, match=r"holds Ghent/cat/1.png and cat/1.png; expected .* in folders alike"):
        read(root)
    (root / "cat" / "0.png").write_bytes(b"no image")
    (root / "Ghent" / "cat" / "1.png").unlink()
    with pytest.raises(DataError, match=r"0.png is no readable image"):
        read(root, size=5)


def test_images_of_other_formats_are_named(root: Path) -> None:
    for place in range(3):
        image(root / "Ghent" / "cat" / f"{place}.PNG", 10)
        image(root / "Ghent" / "cat" / f"{place}.bmp", 10)
    image(root / "Ghent" / "dog" / "1.png", 10)
    image(root / "Ghent" / "dog" / "1.TIFF", 10)
    for _ in range(2):  # The second time, what was decoded is read from its copy.
        found = read(root)
        (note,) = found.notes
        assert len(found) == 4 and "Ghent/cat/0.bmp, Ghent/cat/1.bmp, Ghent/cat/2.bmp and 1 more" in note
        assert ".png, .jpg, .jpeg" in note
    image(root / "Ghent" / "dog" / "1.gif", 10)
    assert "and 2 more" in read(root).notes[0]


# Normalisation


def test_scaling_can_be_left_out(root: Path) -> None:
    image(root / "photos" / "cat" / "1.png", 51)
    assert read(root / "photos", scale=False).prepare(torch.tensor([0])).unique().tolist() == pytest.approx([0.2])


def test_hidden_files_and_folders_are_nobody(root: Path) -> None:
    write_all(root / "sites", "Ghent.csv", "Lyon.csv", "._Ghent.csv", ".Lyon-backup.csv")
    assert sorted(set(read(root / "sites").columns["client"])) == ["Ghent", "Lyon"]
    for folder in ("cat", "dog", ".ipynb_checkpoints"):
        image(root / "images" / folder / "1.png")
    assert read(root / "images").class_names == ("cat", "dog")
