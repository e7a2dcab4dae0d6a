from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.utils.data import TensorDataset

from fedstrata.base.errors import DataError
from fedstrata.data import Dataset, ReadOptions, load_dataset
from fedstrata.data.memory import keep

X = np.arange(12, dtype=np.float64).reshape(4, 3)
Y = np.array([0, 1, 0, 1])
MASKED = np.ma.masked_array(X, np.arange(12).reshape(4, 3) == 5)


def read(clients: Any, split: Any = "train", **options: Any) -> Dataset:
    return load_dataset(keep(clients), split=split, options=ReadOptions(**options))


def owners(dataset: Dataset) -> list[str]:
    return list(map(str, dataset.columns["client"]))


@pytest.mark.parametrize(
    "data",
    [
        (X, Y),
        [X, Y],
        (torch.from_numpy(X), torch.from_numpy(Y)),
        (X.tolist(), Y.tolist()),
        {"x": X, "y": Y},
        {"x": X, "y": Y.astype(object)},
        TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)),
    ],
)
def test_every_form_of_a_client_gives_the_same_samples(data: Any) -> None:
    found = read({"Ghent": data})
    assert np.array_equal(found.inputs.numpy(), X.astype(np.float32))
    assert found.labels.tolist() == Y.tolist() and owners(found) == ["Ghent"] * 4


def test_a_pair_of_pairs_is_training_and_test_data() -> None:
    clients = {"Ghent": ((X, Y), (X[:2] + 100, Y[:2])), "Lyon": ((X, Y), (X[:1], Y[:1]))}
    train, test = read(clients), read(clients, "test")
    assert len(train) == 8 and test.inputs[:, 0].tolist() == [100.0, 103.0, 0.0]
    assert owners(test) == ["Ghent", "Ghent", "Lyon"]


def test_rows_of_a_frame_of_pandas_are_samples_whatever_their_numbers() -> None:
    """A part of a frame keeps the row numbers of the whole; they are no column, and change nothing."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"age": [1.0, 2, 3, 4], "site": list("abab"), "label": list("xyyx")})
    parts = dict(list(frame.groupby("site")))
    found = read(parts)
    assert found.feature_names == ("age",) and set(found.columns) == {"site", "client", "split"}
    assert found.inputs[:, 0].tolist() == [1, 3, 2, 4] and found.labels.tolist() == [0, 1, 1, 0]
    assert keep({site: part.reset_index(drop=True) for site, part in parts.items()}) == keep(parts)


def test_a_frame_of_polars_is_a_table() -> None:
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"age": [1.0, 2, 3, 4], "site": list("abab"), "label": list("xyyx")})
    found = read({name: part for (name,), part in frame.group_by("site", maintain_order=True)})
    assert found.feature_names == ("age",) and found.class_names == ("x", "y")
    assert found.inputs[:, 0].tolist() == [1, 3, 2, 4] and owners(found) == ["a", "a", "b", "b"]


@pytest.mark.parametrize("data", [X, TensorDataset(torch.from_numpy(X)), pa.table({"a": [1]})])
def test_the_data_of_all_clients_in_one_are_refused(data: Any) -> None:
    with pytest.raises(DataError, match="mapping or list with the data of each client"):
        keep(data)


def test_features_may_be_a_table_beside_their_classes() -> None:
    features = table().drop_columns(["label"])
    clients = {"Ghent": (features, ["ill", "well"]), "Lyon": ((features, ["ill", "ill"]), (features, ["well", "ill"]))}
    found = read(clients)
    assert found.feature_names == ("age",) and found.labels.tolist() == [0, 1, 0, 0]
    assert read(clients, "test").labels.tolist() == [1, 0]


def test_clients_of_a_list_stay_in_its_order() -> None:
    """As texts, 10 would come before 2."""
    found = read([(X[:2], Y[:2])] * 12)
    assert found.columns["client"].dtype.kind == "i"
    assert np.unique(found.columns["client"]).tolist() == list(range(12))


def test_names_of_classes_are_the_same_for_all_clients() -> None:
    found = read({"a": (X[:2], ["dog", "ant"]), "b": (X[:2], ["cat", "ant"])})
    assert found.class_names == ("ant", "cat", "dog") and found.labels.tolist() == [2, 0, 1, 0]


def table(**columns: Any) -> Any:
    return pa.table({"age": [1.0, 2.0], "date": ["a", "b"], "label": ["ill", "well"], **columns})


def test_tables_have_their_columns_of_numbers_as_features() -> None:
    found = read({"Ghent": table(), "Lyon": (table(), table())})
    assert found.feature_names == ("age",) and found.inputs.tolist() == [[1.0], [2.0], [1.0], [2.0]]
    assert found.class_names == ("ill", "well") and owners(found) == ["Ghent", "Ghent", "Lyon", "Lyon"]
    assert found.columns["date"].tolist() == ["a", "b"] * 2


@pytest.mark.parametrize("x", [MASKED, MASKED.astype(int)])
def test_what_is_masked_in_rows_is_a_gap(x: Any) -> None:
    assert read({"a": (x, Y)}).inputs.isnan().nonzero().tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ({}, "at least one client"),
        ({1: (X, Y), "1": (X, Y)}, "two that read alike"),
        ({"a": 3}, "client 'a'.*found int|client a.*found int"),
        ({"a": {"x": X}}, "client 'a': expected one column of classes"),
        ({"a": {"x": 3, "y": Y}}, r"client 'a': x is int64 \(\); expected numbers"),
        ({"a": (X, np.array([1, "b", 2, 3], object))}, "client 'a': Could not convert 'b' with type str"),
        ({"a": (X, Y[:2])}, "client 'a': .*[Ee]xpected length 4 but got length 2"),
        ({"a": {"x": X, "y": Y[:2]}}, "client 'a': Column 1 named y expected length 4 but got length 2"),
        ({"a": (X, Y), "b": (X[:, :2], Y)}, "'b': .* Field x has incompatible types"),
        ({"a": (X.astype(np.uint8), Y), "b": (X, Y)}, "'b': .* Field x has incompatible types: .*uint8"),
        ({"a": (X[:0], Y[:0])}, "has no samples"),
        ({"a": (torch.tensor(X).to_sparse(), Y)}, "client 'a': can't convert Sparse layout"),
        ({"a": table(), "b": (X, Y)}, "'b' has no column 'age'"),
        ({"a": table(), "b": table().drop_columns(["age"])}, "'b' has no column 'age'"),
        ({"a": table(age=[1.0, np.inf])}, "client 'a': row 1 of column 'age' holds no finite number"),
        ({"a": table(label=["ill", None])}, "client 'a': row 1 of column 'label' holds no class or number; fill it in"),
        ({"a": (table().drop_columns(["label"]), Y[:1])}, "client 'a': .*Expected length 2 but got length 1"),
        ({"a": (MASKED[:, None], Y)}, "client 'a': row 1 of .* holds a value that is not a finite float32 number"),
        ({"a": (X, np.ma.masked_array(Y, Y == 1))}, "client 'a': row 1 of .* holds no class"),
        ({"a": (X, np.ma.masked_array(Y.astype(str), Y == 1))}, "client 'a': row 1 of .* holds no class"),
        ({"a": [X, X, X]}, "client 'a': expected pairs .* item 0 is ndarray"),
        ({"a": [(X, 0), (X[0], 1), (X[1], 0)]}, "client 'a': .* must have the same shape"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_name_of_the_client(clients: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(clients)


def test_the_name_is_that_of_the_content() -> None:
    assert keep([(X, Y)]) == keep([(X.copy(), Y.copy())])
    assert keep([(X, Y)]) != keep([(X + 1, Y)])
    assert keep({"a": (X, Y)}) != keep({"b": (X, Y)})
    assert keep([table()]) == keep([table()]) != keep([table(age=[1.0, 3.0])])


@pytest.mark.parametrize("form", ["mapping", "table"])
def test_a_column_split_of_the_users_own_says_which_rows_are_for_testing(form: str) -> None:
    split = ["train", "train", "test", "train"]
    given: Any = {"x": X, "y": Y, "split": split}
    if form == "table":
        given = pa.table({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "label": Y, "split": split})
    assert read({"Ghent": given}).inputs[:, 0].tolist() == [0.0, 3.0, 9.0]
    assert read({"Ghent": given}, "test").inputs[:, 0].tolist() == [6.0]
    wrong = {"x": X, "y": Y, "split": ["train", "test", "dev", "train"]}
    with pytest.raises(
        DataError, match=r"client 'Ghent': row 2 of column 'split' holds neither train nor test.*; found 'dev'"
    ):
        read({"Ghent": wrong})


@pytest.mark.parametrize("module", ["pandas", "polars"])
def test_classes_may_be_a_column_of_their_own(module: str) -> None:
    frames = pytest.importorskip(module)
    features = frames.DataFrame({"a": X[:, 0], "b": X[:, 1]})
    classes = frames.DataFrame({"label": list("xyyx")})
    column = np.array([["a"], ["b"], ["b"], ["a"]], object)
    for x, y in ((features, classes), (X[:, :2], classes), (features, np.array([[0], [1], [1], [0]])), (X, column)):
        found = read({"Ghent": (x, y)})
        assert found.labels.tolist() == [0, 1, 1, 0] and found.inputs.shape[0] == 4
    targets = read({"Ghent": (features, X[:, :2])}).targets
    assert targets is not None and targets.tolist() == X[:, :2].tolist()
