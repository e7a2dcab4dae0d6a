import pickle
from typing import Any

import numpy as np
import pytest
import torch
from data_layouts import noise

from fedstrata.base.errors import DataError, RowError
from fedstrata.data import Dataset
from fedstrata.data.dataset import channel_statistics


def images(**changes: Any) -> Dataset:
    fields: dict[str, Any] = {
        "name": "small",
        "inputs": torch.from_numpy(noise(4, (3, 4, 4))),
        "labels": torch.tensor([0, 1, 1, 2]),
        "classes": 3,
        "mean": (0.1, 0.2, 0.3),
        "std": (0.5, 0.25, 1.0),
    }
    return Dataset(**(fields | changes))


def test_prepare_brings_bytes_to_zero_one_and_normalises_each_channel() -> None:
    data = images(inputs=torch.tensor([[[[0]], [[51]], [[255]]]] * 4, dtype=torch.uint8))
    prepared = data.prepare(torch.tensor([2]))
    assert prepared.dtype == torch.float32
    assert prepared.flatten().tolist() == pytest.approx([-0.2, 0.0, 0.7], abs=1e-6)


def test_prepare_normalises_signals_without_the_scale_of_bytes() -> None:
    signals = torch.tensor([[[1.0, 3.0], [10.0, 10.0]]] * 4)
    data = images(inputs=signals, mean=(2.0, 0.0), std=(2.0, 5.0))
    assert data.prepare(torch.tensor([0, 3])).tolist() == [[[-0.5, 0.5], [2.0, 2.0]]] * 2


def test_prepare_takes_the_samples_of_the_index_in_its_order() -> None:
    data = images()
    twice = data.prepare(torch.tensor([3, 0, 3]))
    assert torch.equal(twice[0], twice[2])
    assert torch.equal(twice[1], data.prepare(torch.tensor([0]))[0])


def test_resized_keeps_flat_images_flat_and_leaves_everything_else() -> None:
    data = images(inputs=torch.full((4, 3, 4, 4), 200, dtype=torch.uint8), columns={"who": np.arange(4)})
    larger = data.resized(7)
    assert larger.shape == (3, 7, 7)
    assert larger.inputs.unique().tolist() == [200]
    assert torch.equal(larger.labels, data.labels)
    assert larger.columns is data.columns


def test_resized_interpolates_between_neighbouring_pixels() -> None:
    row = torch.tensor([0, 100], dtype=torch.uint8).expand(4, 3, 2, 2)
    # Pixel centres of the four new columns lie at -0.25, 0.25, 0.75 and 1.25 of the old ones.
    assert images(inputs=row).resized(4).inputs[0, 0, 0].tolist() == [0, 25, 75, 100]


def test_channel_statistics_are_those_of_numpy_for_bytes_and_for_floats() -> None:
    pixels = noise(5000, (2, 3, 3))
    mean, std = channel_statistics(torch.from_numpy(pixels))
    assert mean == pytest.approx((pixels / 255).mean(axis=(0, 2, 3)), rel=1e-5)
    assert std == pytest.approx((pixels / 255).std(axis=(0, 2, 3)), rel=1e-5)
    signals = np.random.default_rng(1).normal(3.0, 7.0, (50, 2, 9)).astype(np.float32)
    mean, std = channel_statistics(torch.from_numpy(signals))
    assert mean == pytest.approx(signals.mean(axis=(0, 2)), rel=1e-5)
    assert std == pytest.approx(signals.std(axis=(0, 2)), rel=1e-5)


def test_a_constant_channel_is_centred_and_not_divided_by_zero() -> None:
    assert channel_statistics(torch.full((3, 1, 2), 4.0)) == ((4.0,), (1.0,))


def test_targets_go_where_their_samples_go() -> None:
    inputs = torch.arange(6, dtype=torch.float32).view(3, 2)
    data = Dataset("n", inputs, torch.zeros(3, dtype=torch.int64), 1, (0.0, 0.0), (1.0, 1.0), targets=inputs * 2)
    assert data.outputs == (2,)
    kept = data.rows(np.array([True, False, True]))
    assert kept.targets is not None and kept.targets.tolist() == [[0.0, 2.0], [8.0, 10.0]]
    turned = data.rows(np.array([2, 0]))
    assert turned.targets is not None and torch.equal(turned.targets, turned.inputs * 2)


def test_tokens_are_whole_numbers_in_rows_and_are_not_normalised() -> None:
    rows = torch.tensor([[3.0, 0.0], [7.0, 2.0]])
    data = Dataset("n", rows, torch.tensor([0, 1]), 2, (5.0, 1.0), (2.0, 1.0)).as_tokens()
    assert data.prepare(torch.tensor([1])).tolist() == [[7, 2]] and data.inputs.dtype == torch.int64
    for wrong in (rows + 0.5, -rows, rows[:, :, None]):
        channels = (0.0,) * 2, (1.0,) * 2
        with pytest.raises(DataError, match=r"data\.tokens = true: expected samples of n that are rows"):
            Dataset("n", wrong, torch.tensor([0, 1]), 2, *channels).as_tokens()


def test_an_error_about_a_row_names_the_part_that_the_row_is_in_and_survives_pickling() -> None:
    """Rows 0 and 1 are of Bern, 2 to 4 of Lyon."""
    error = RowError("folder", 3, "of column 'age' holds no number").in_part([("Bern.csv", 2), ("Lyon.csv", 3)])
    assert str(error) == "Lyon.csv: row 1 of column 'age' holds no number (row 0 is the first below the header)"
    again = pickle.loads(pickle.dumps(error))
    assert (again.place, again.row, str(again)) == (error.place, error.row, str(error))
