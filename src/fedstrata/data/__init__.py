"""Load data sets by name. Importing this package imports no torch; `load_dataset` does.

One way leads from what people have to a `dataset`. `locate` finds what holds a data set, by its `registry` or by the
layout of its files (`location`), and gives it as `tables`: rows of named columns. Sources of tables are `csv_files`,
`parquet`, `npz`, folders of `images`, what other `libraries` read, and objects in `memory`. `reading` makes samples and
`answers` of tables, by what their columns are for (`column_roles`); `recordings` are cut into windows. Inputs are in
memory or `mapped` from a file, and `cache` keeps what was decoded. A `sample_format` tells a network what it reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from fedstrata.base.errors import DataError
from fedstrata.base.registry import load_object
from fedstrata.data.column_roles import DEFAULT_OPTIONS, SPLIT_COLUMN, ReadOptions
from fedstrata.data.dataset import SPLITS, Dataset, Split, channel_statistics, is_test
from fedstrata.data.locate import client_values, find, has_own_test, tables_of
from fedstrata.data.location import Location, ending_of
from fedstrata.data.registry import DATASETS, DatasetInfo
from fedstrata.data.sample_format import SampleFormat

__all__ = [
    "DATASETS",
    "Dataset",
    "DatasetInfo",
    "Location",
    "ReadOptions",
    "SampleFormat",
    "Split",
    "channel_statistics",
    "client_values",
    "find",
    "has_own_test",
    "load_both",
    "load_dataset",
]


def load_dataset(
    name: str, root: str | Path | None = None, split: Split = "train", options: ReadOptions = DEFAULT_OPTIONS
) -> Dataset:
    """Read a data set.

    Args:
        name: A name of `DATASETS`, a hub id, or the path of files in one of the forms that `find` knows.
        root: The folder that holds a folder per data set; it is searched first.
        split: The split that is read.
        options: How samples are made of the files.

    Returns:
        The samples. Unless the registry knows them, the mean and standard deviation are those of the training split,
        in both splits.

    Raises:
        DataError: When a file, column or row is missing or broken, or there is no test split.
    """
    location = find(name, root)
    if split == "test" and not has_own_test(location):
        raise DataError(f"{name} has no test file; hold out a part of its training samples instead")
    dataset = _load(location, split, options)
    if location.notes:
        # They are no part of the copy that is kept of decoded files: the folder may hold other files the next time.
        dataset = replace(dataset, notes=location.notes + dataset.notes)
    if options.normalise == "none":
        channels = len(dataset.mean)
        return replace(dataset, mean=(0.0,) * channels, std=(1.0,) * channels)
    return dataset


def load_both(
    name: str, root: str | Path | None = None, options: ReadOptions = DEFAULT_OPTIONS
) -> tuple[Dataset, Dataset]:
    """Read the training and the test samples of a data set, both in memory or both on the disk.

    Args:
        name: As in `load_dataset`, and so are the others.
        root: As there.
        options: As there.

    Raises:
        DataError: As there.
    """
    train, test = (load_dataset(name, root, split, options) for split in SPLITS)
    if train.on_disk != test.on_disk:
        # One of them fits in memory and the other does not.
        on_disk = replace(options, memory="disk")
        train, test = (load_dataset(name, root, split, on_disk) for split in SPLITS)
    return train, test


def _load(location: Location, split: Split, options: ReadOptions) -> Dataset:
    """Read a split, with the normalisation of the training split."""
    info = location.info
    if info:
        options.refuse(location.name, "label", "inputs", "size")
        if info.input_column != "signal":
            options.refuse(location.name, "window", "step")
    if options.memory == "disk" and not location.train:
        raise DataError(
            f"data.memory = 'disk': expected data in files, found {location.name}, which is read into memory as it is; "
            "save it as Parquet files and name these, or leave data.memory out"
        )
    if info and info.reader:
        dataset: Dataset = load_object(info.reader)()
        return dataset
    if not info:
        dataset = _read(location, options)
        return _rows_of_split(dataset, split) if SPLIT_COLUMN in dataset.columns else dataset
    dataset = _read(replace(location, train=location.test if split == "test" else location.train, test=()), options)
    if split == "train" or info.mean:
        return dataset
    train = _load(location, "train", options)
    return replace(dataset, mean=train.mean, std=train.std)


def _rows_of_split(dataset: Dataset, split: Split) -> Dataset:
    """Return the samples of one split of a data set with a column ``split``, normalised by those for training."""
    testing = is_test(dataset.columns[SPLIT_COLUMN], dataset.name)
    if testing.all():
        raise DataError(f"{dataset.name}: column {SPLIT_COLUMN!r} marks all samples for testing; mark some train")
    train = dataset.rows(~testing)
    mean, std = channel_statistics(train.inputs)
    return replace(dataset.rows(testing) if split == "test" else train, mean=mean, std=std)


def _read(location: Location, options: ReadOptions) -> Dataset:
    """Read all samples of a location; what takes long to decode, or is left on the disk, is kept for the next time."""
    from fedstrata.data.reading import read_tables

    read = partial(read_tables, location.name, tables_of(location, options), options, location.info)
    if not location.train:
        return _read_once(location.name, options, read)
    from fedstrata.data.cache import cached

    files = location.train + location.test
    # How numbers are normalised and where they are is decided later.
    decoded = replace(options, normalise=DEFAULT_OPTIONS.normalise, memory=DEFAULT_OPTIONS.memory)
    parameters = {
        "location": {**asdict(location), "train": [], "test": [], "folder": None, "notes": []},
        "options": asdict(decoded),
    }
    slow = location.kind == "images" or ending_of(files[0]) == ".parquet"
    return cached(files, parameters, lambda writer: read(writer=writer), options.memory, keep=slow)


_MADE: dict[tuple[str, ReadOptions], Dataset] = {}
"""The data set that was made of objects last: both of its splits are asked for one after the other."""


def _read_once(name: str, options: ReadOptions, read: Callable[[], Dataset]) -> Dataset:
    """Read a data set, unless it was read just before."""
    if (name, options) not in _MADE:
        _MADE.clear()
        _MADE[name, options] = read()
    return _MADE[name, options]
