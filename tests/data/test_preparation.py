"""The preparation of tables: that of scikit-learn on training rows, whatever holds the rows."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from sklearn.compose import ColumnTransformer
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from fedstrata.base.errors import DataError
from fedstrata.data.preparation import Impute, Preparation, PrepareOptions, fit, refitted
from fedstrata.data.sample_format import SampleFormat

NAN = float("nan")

# Two numbers and a text of a, b and c, whose places are 0, 1 and 2.
ROWS = [[1.0, 10.0, 0.0], [3.0, NAN, 1.0], [NAN, 30.0, NAN], [5.0, 20.0, 0.0], [100.0, NAN, 2.0]]
FEATURES = ("age", "pulse", "kind")
TEXTS: tuple[tuple[str, ...], ...] = ((), (), ("a", "b", "c"))


def fitted(rows: list[list[float]] = ROWS, train: int = 4, **wanted: Any) -> Preparation:
    """The preparation that the first rows have, of which all are one client's."""
    trained = [torch.arange(train)]
    return fit(torch.tensor(rows, dtype=torch.float64), trained, FEATURES, TEXTS, PrepareOptions(**wanted))


def prepared(preparation: Preparation, rows: list[list[float]] = ROWS) -> list[list[float]]:
    found: list[list[float]] = preparation(torch.tensor(rows, dtype=torch.float64)).tolist()
    return found


def test_gaps_are_filled_and_numbers_scaled_by_training_rows_alone_and_texts_are_inputs() -> None:
    """Age is 1, 3, 5 and a gap, its median 3, its variance (4 + 0 + 0 + 4) / 4. No training row has the text c."""
    found = fitted()
    assert found.outputs == ("age", "pulse", "kind = a", "kind = b") and found.width == 4
    assert found.fill[0] == (3.0, 20.0, -1.0) and found.mean[0] == (3.0, 20.0)
    root = 2**0.5
    assert [row[0] for row in prepared(found)] == pytest.approx([-root, 0, 0, root, 97 / root], rel=1e-5)
    assert [row[2:] for row in prepared(found)] == [[1, 0], [0, 1], [0, 0], [1, 0], [0, 0]]


def test_most_frequent_fills_texts_too_and_indicators_tell_of_gaps() -> None:
    found = fitted(impute="most_frequent", indicators=True, scale=False)
    assert found.outputs[-3:] == ("age missing", "pulse missing", "kind missing")
    assert prepared(found)[2] == [1, 30, 1, 0, 1, 0, 1]


def test_ordinal_texts_are_numbers_in_alphabetical_order() -> None:
    found = fitted(categories="ordinal", scale=False)
    assert found.outputs == FEATURES and [row[2] for row in prepared(found)] == [0, 1, 0, 0, 2]


def test_a_constant_column_becomes_zero_and_large_numbers_keep_their_differences() -> None:
    """As float32, whose step is 128 there, a second and the next would be equal."""
    seconds = [1718012345.0 + place for place in range(4)]
    rows = [[1718012345.25, second, 0.0] for second in seconds]
    scaled = prepared(fitted(rows), rows)
    assert [row[0] for row in scaled] == [0, 0, 0, 0]
    assert [row[1] for row in scaled] == pytest.approx(
        [place / 1.25**0.5 for place in (-1.5, -0.5, 0.5, 1.5)], rel=1e-5
    )


@settings(max_examples=15)
@given(data=st.data(), impute=st.sampled_from(["median", "mean", "most_frequent"]), indicators=st.booleans())
def test_it_is_the_column_transformer_of_scikit_learn(data: st.DataObject, impute: Impute, indicators: bool) -> None:
    shape = (data.draw(st.integers(2, 12)), data.draw(st.integers(1, 4)))
    numbers = np.array(data.draw(_table(shape, st.one_of(st.just(NAN), st.integers(-50, 50).map(float)))))
    texts = np.array(data.draw(_table((shape[0], 2), st.integers(0, 2).map(float))))
    rows = np.hstack([numbers, texts])
    train = data.draw(st.integers(1, shape[0]))
    own = fit(
        torch.from_numpy(rows), [torch.arange(train)], (), ((),) * shape[1] + (("p", "q", "r"),) * 2,
        PrepareOptions(impute, indicators),
    )  # fmt: skip
    scaled = make_pipeline(SimpleImputer(strategy=impute, keep_empty_features=True), StandardScaler())
    parts: list[Any] = [("numbers", scaled, list(range(shape[1])))]
    parts += [("texts", OneHotEncoder(handle_unknown="ignore", sparse_output=False), [shape[1], shape[1] + 1])]
    if indicators:
        parts += [("gaps", MissingIndicator(error_on_new=False), list(range(shape[1])))]
    expected = ColumnTransformer(parts).fit(rows[:train]).transform(rows)
    # Statistics have six digits.
    assert np.allclose(own(torch.from_numpy(rows)).numpy(), expected, rtol=2e-5, atol=2e-4)


def _table(shape: tuple[int, int], values: st.SearchStrategy[float]) -> st.SearchStrategy[list[list[float]]]:
    rows, columns = shape
    row = st.lists(values, min_size=columns, max_size=columns)
    return st.lists(row, min_size=rows, max_size=rows)


def test_each_client_may_have_its_own_statistics_and_all_share_what_networks_read() -> None:
    rows = torch.tensor([[0.0, 1.0, 0.0], [2.0, 1.0, 0.0], [10.0, NAN, 1.0], [14.0, 5.0, 1.0]], dtype=torch.float64)
    own = fit(rows, [torch.tensor([0, 1]), torch.tensor([2, 3])], FEATURES, TEXTS, PrepareOptions(own=True))
    clients = torch.tensor([0, 0, 1, 1])
    assert own(rows, clients).tolist() == [[-1, 0, 1, 0], [1, 0, 1, 0], [-1, 0, 0, 1], [1, 0, 0, 1]]
    assert own.of(1)(rows[2:]).tolist() == own(rows, clients)[2:].tolist()
    assert refitted(own.of(0), rows, torch.tensor([2, 3])) == own.of(1)


# Raw rows, as people have them


def form_of(preparation: Preparation) -> SampleFormat:
    return SampleFormat((3,), "float64", (), (), 2, feature_names=FEATURES, preparation=preparation)


@pytest.mark.parametrize(
    "rows",
    [
        {"kind": ["b", None], "pulse": np.array([30, 20]), "age": [None, "5"], "more": [1, 2]},
        {"kind": np.ma.masked_equal(["b", "z"], "z"), "pulse": [30, 20], "age": np.ma.masked_equal([-9, 5], -9)},
        [[None, 30, "b"], [5, 20, "?"]],
    ],
)
def test_raw_rows_have_texts_and_gaps_in_any_form(rows: Any) -> None:
    raw = form_of(fitted()).tensor_of(rows)
    assert torch.equal(raw.nan_to_num(-1), torch.tensor([[-1.0, 30, 1], [5, 20, -1]], dtype=torch.float64))


def test_a_text_that_no_training_row_has_counts_as_a_gap_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    raw = form_of(fitted()).tensor_of({"age": [1, 1], "pulse": [1, 1], "kind": ["c", "z"]})
    assert raw[:, 2].isnan().all()
    assert caplog.messages == ["column 'kind': no training row has 'c', 'z', only 'a', 'b'; it counts as a gap"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"age": [1], "pulse": [1]}, "expected the columns age, pulse, kind, found no 'kind'"),
        ({"age": ["old"], "pulse": [1], "kind": ["a"]}, "expected numbers in the column 'age'"),
        ({"age": [float("inf")], "pulse": [1], "kind": ["a"]}, "expected finite numbers, found inf in row 0"),
        ([[1, 2]], "expected rows of 3 values as in training"),
    ],
)
def test_rows_that_do_not_fit_are_refused(rows: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        form_of(fitted()).tensor_of(rows)


def test_gaps_are_refused_where_nothing_fills_them() -> None:
    complete = [[1.0, 1.0, 0.0], [2.0, 3.0, 1.0]]
    with pytest.raises(DataError, match="expected finite numbers, found nan in row 1"):
        form_of(fitted(complete, 2, impute="none")).tensor_of({"age": [1, None], "pulse": [1, 1], "kind": ["a", "a"]})


def test_a_preparation_is_the_same_after_it_was_written(tmp_path: Path) -> None:
    form = form_of(fitted(indicators=True))
    (tmp_path / "form.json").write_text(json.dumps(asdict(form)))
    assert TypeAdapter(SampleFormat).validate_python(json.loads((tmp_path / "form.json").read_text())) == form
