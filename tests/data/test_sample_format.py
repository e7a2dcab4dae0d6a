from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from fedstrata.base.errors import DataError
from fedstrata.data import SampleFormat, load_dataset
from fedstrata.data.mapped import resize

GREY = SampleFormat((1, 2, 3), "uint8", (0.5,), (0.25,), classes=2)
COLOUR = SampleFormat((3, 2, 2), "uint8", (0.5,) * 3, (0.25,) * 3, classes=2)
SIGNAL = SampleFormat((2, 4), "float32", (1.0, 0.0), (2.0, 0.5), classes=2)


def test_a_value_is_centred_and_scaled_by_its_channel() -> None:
    assert [part.tolist() for part in SIGNAL.affine] == [[0.5, 2.0], [-0.5, 0.0]]
    # 255 counts as 1: (255 / 255 - 0.5) / 0.25 = 2.
    scale, shift = GREY.affine
    assert float(255 * scale + shift) == pytest.approx(2.0)


def test_samples_come_as_arrays_tensors_or_lists() -> None:
    pixels = np.arange(12, dtype=np.uint8).reshape(2, 1, 2, 3)
    expected = torch.from_numpy(pixels)
    for given in (pixels, expected, pixels[:, 0], pixels.reshape(2, 6)):
        assert torch.equal(GREY.tensor_of(given), expected)
    colours = np.arange(24, dtype=np.uint8).reshape(2, 3, 2, 2)
    assert torch.equal(COLOUR.tensor_of(colours.transpose(0, 2, 3, 1)), torch.from_numpy(colours))
    numbers = SIGNAL.tensor_of([[[1, 2, 3, 4], [5, 6, 7, 8]]])
    assert numbers.dtype == torch.float32 and numbers.shape == (1, 2, 4)


TABLE = SampleFormat((3,), "float32", (0.0,) * 3, (1.0,) * 3, classes=2, feature_names=("age", "dose", "weight"))


def test_features_of_a_table_are_taken_by_their_names() -> None:
    columns = {"weight": [70.0, 80.0], "age": [1.0, 2.0], "site": ["a", "b"], "dose": [0.5, 0.6]}

    class Frame:
        """A data frame, as far as it is used."""

        columns = ("weight", "age", "site", "dose")

        def __getitem__(self, name: str) -> list[Any]:
            return COLUMNS[name]

    COLUMNS: dict[str, list[Any]] = columns  # type: ignore[assignment]  # lists of texts and numbers
    expected = torch.tensor([[1.0, 0.5, 70.0], [2.0, 0.6, 80.0]])
    for given in (columns, pa.table(columns), Frame(), expected):
        assert torch.equal(TABLE.tensor_of(given), expected)
    objects = {name: np.array(values, dtype=object) for name, values in columns.items()}
    assert torch.equal(TABLE.tensor_of(objects), expected)
    with pytest.raises(DataError, match="expected numbers in the column 'dose'"):
        TABLE.tensor_of({**objects, "dose": np.array(["low", "high"])})
    with pytest.raises(DataError, match=r"expected the columns age, dose, weight, found no 'dose'"):
        TABLE.tensor_of({"age": [1.0], "weight": [70.0]})
    twice = pa.table([[1.0], [0.5], [70.0], [2.0]], names=["age", "dose", "weight", "age"])
    with pytest.raises(DataError, match=r"expected the columns age, dose, weight, found 2 'age'"):
        TABLE.tensor_of(twice)


TOKENS = SampleFormat((2,), "int64", (), (), classes=2)


def test_whole_numbers_of_any_type_are_tokens() -> None:
    for kind in (np.float64, np.int32, np.uint16):
        assert TOKENS.tensor_of(np.array([[0, 3], [2, 1]], kind)).tolist() == [[0, 3], [2, 1]]


@pytest.mark.parametrize(
    ("form", "given", "message"),
    [
        (GREY, np.zeros((2, 1, 2, 3)), r"expected pixels of 0 to 255 as uint8, .* found float64"),
        (GREY, np.zeros((1, 2, 3, 4), np.uint8), r"expected samples as in training, \(samples, 1, 2, 3\), found"),
        (SIGNAL, np.zeros((2, 4)), r"a single sample needs a first axis of 1"),
        (SIGNAL, ["one", "two"], r"expected samples as numbers"),
        (SIGNAL, [[1.0], [2.0, 3.0]], r"expected samples as numbers"),
        (TABLE, [[1, 2, 3], [1, np.nan, 3]], r"expected finite numbers, found nan in row 1; fill it in"),
        (TABLE, {"age": [1, 2], "dose": [np.inf, np.nan], "weight": [3, 4]}, r"found inf in row 0"),
        (TABLE, np.ma.masked_equal([[1, 2, 3]], 2), r"expected finite numbers, found nan in row 0"),
        (TABLE, [np.ma.masked_equal([1, 2, 3], 2)], r"expected finite numbers, found nan in row 0"),
        (TABLE, np.array([[1, 2, 1e300]]), r"expected finite numbers, found inf in row 0"),
        (TOKENS, [[1.0, 2.0], [3.7, 2.0]], r"expected whole numbers of at least 0, found 3.7 in row 1"),
        (TOKENS, [[1, 2], [3, 4], [5, -1]], r"expected whole numbers of at least 0, found -1 in row 2"),
        (TOKENS, [[1.0, np.nan]], r"found nan in row 0"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(form: SampleFormat, given: object, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        form.tensor_of(given)
    assert "\n" not in str(caught.value)


def test_a_data_set_says_what_its_raw_samples_look_like() -> None:
    digits = load_dataset("digits")
    form = digits.sample_format
    assert (form.shape, form.dtype, form.side, form.network_shape) == ((1, 8, 8), "uint8", None, (1, 8, 8))
    larger = digits.resized(16)
    assert (larger.sample_format.shape, larger.sample_format.network_shape) == ((1, 8, 8), (1, 16, 16))
    first = digits.inputs[:5]
    assert torch.equal(resize(first, 16), larger.inputs[:5].float())
