import os
from pathlib import Path

import pytest
from data_layouts import recordings, write, write_images

from fedstrata.base.errors import DataError
from fedstrata.data import DATASETS, load_dataset

REAL = os.environ.get("FEDSTRATA_DATA", "")


def test_digits_are_1797_images_of_ten_classes() -> None:
    data = load_dataset("digits")
    assert data.inputs.shape == (1797, 1, 8, 8)
    assert (int(data.inputs.min()), int(data.inputs.max())) == (0, 255)
    assert data.labels.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    prepared = data.normalise(data.inputs)
    assert float(prepared.mean()) == pytest.approx(0, abs=1e-4)
    assert float(prepared.std()) == pytest.approx(1, abs=1e-4)


def test_both_splits_of_a_known_set_share_the_constants_of_the_registry(root: Path) -> None:
    write_images(root / "mnist")
    write_images(root / "mnist", labels={"label": [5]}, split="test")
    assert load_dataset("mnist", root).mean == load_dataset("mnist", root, "test").mean == (0.1307,)
    assert load_dataset("mnist", root, "test").labels.tolist() == [5]


def test_a_test_split_is_normalised_as_its_training_split(root: Path) -> None:
    write_images(root / "mine", (3, 4, 4))
    write_images(root / "mine", (3, 4, 4), split="test", seed=1)
    train, test = load_dataset("mine", root), load_dataset("mine", root, "test")
    assert (train.mean, train.std) == (test.mean, test.std)


@pytest.mark.parametrize("name", ["digits", "usc_had"])
def test_a_set_without_a_test_file_says_so(root: Path, name: str) -> None:
    write(root / "usc_had" / "train-0.parquet", recordings([128]))
    with pytest.raises(DataError, match=f"{name} has no test file"):
        load_dataset(name, root, "test")


@pytest.mark.slow
@pytest.mark.skipif(not REAL, reason="FEDSTRATA_DATA is not set")
@pytest.mark.parametrize(("name", "samples"), [("mnist", 10_000), ("cifar10", 10_000)])
def test_real_test_files_hold_what_the_registry_says(root: Path, name: str, samples: int) -> None:
    data, source = load_dataset(name, REAL, "test"), DATASETS[name]
    assert (len(data), data.shape, data.classes) == (samples, source.shape, source.classes)
    assert data.normalise(data.inputs).mean().abs() < 0.05
    assert abs(float(data.normalise(data.inputs).std()) - 1) < 0.05
