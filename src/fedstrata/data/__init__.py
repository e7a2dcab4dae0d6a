"""Load named data sets as tensors into memory. Importing this package imports no torch; `load_dataset` does."""

from dataclasses import asdict, replace
from pathlib import Path

from fedstrata.data.contents import SPLIT_COLUMN, client_values, has_own_test, is_test
from fedstrata.data.dataset import Dataset, Split
from fedstrata.data.locate import Location, find
from fedstrata.data.registry import DATASETS, DatasetInfo
from fedstrata.data.sample_format import SampleFormat
from fedstrata.errors import DataError
from fedstrata.registry import load_object

__all__ = [
    "DATASETS",
    "Dataset",
    "DatasetInfo",
    "Location",
    "SampleFormat",
    "Split",
    "client_values",
    "find",
    "has_own_test",
    "load_dataset",
]


def load_dataset(name: str, root: str | Path | None = None, split: Split = "train") -> Dataset:
    """Read a data set.

    Args:
        name: A name of `DATASETS`, a folder of Parquet files, a ``.npz`` file or a hub id.
        root: The folder that holds a folder per data set; it is searched first.
        split: The split that is read.

    Returns:
        The samples. Unless the registry knows them, the mean and standard deviation are those of the training split,
        in both splits.

    Raises:
        DataError: When a file, column or row is missing or broken, or there is no test split.
    """
    location = find(name, root)
    if split == "test" and not has_own_test(location):
        raise DataError(f"{name} has no test file; hold out a part of its training samples instead")
    if location.info is None and not location.test:
        dataset = _read(location, "train")
        return _rows_of_split(dataset, split) if SPLIT_COLUMN in dataset.columns else dataset
    dataset = _read(location, split)
    if split == "train" or (location.info and location.info.mean):
        return dataset
    train = _read(location, "train")
    if dataset.shape != train.shape:
        raise DataError(f"{name}: test samples are {dataset.shape}; expected {train.shape}, as in the train file")
    return replace(dataset, mean=train.mean, std=train.std)


def _rows_of_split(dataset: Dataset, split: Split) -> Dataset:
    """Return the samples of one split of a data set with a column ``split``, normalised by those for training."""
    from fedstrata.data.dataset import channel_statistics

    testing = is_test(dataset.columns[SPLIT_COLUMN], dataset.name)
    if testing.all():
        raise DataError(f"{dataset.name}: column {SPLIT_COLUMN!r} marks all samples for testing; mark some train")
    train = dataset.rows(~testing)
    mean, std = channel_statistics(train.inputs)
    return replace(dataset.rows(testing) if split == "test" else train, mean=mean, std=std)


def _read(location: Location, split: Split) -> Dataset:
    info = location.info
    if info and info.reader:
        dataset: Dataset = load_object(info.reader)()
        return dataset
    if location.train[0].suffix == ".npz":
        from fedstrata.data.npz import read_npz

        return read_npz(location.name, location.train[0], split)
    from fedstrata.data.cache import cached
    from fedstrata.data.parquet import read_parquet

    parameters = {"name": location.name, "info": asdict(info) if info else None, "split": split}
    return cached(location.train + location.test, parameters, lambda: read_parquet(location, split))
