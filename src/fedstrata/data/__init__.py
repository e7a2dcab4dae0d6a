"""Load data sets by name. Importing this package imports no torch; `load_dataset` does.

A `dataset` has inputs in memory or `mapped` from a file, and a `sample_format`. `registry` has the known ones, `locate`
finds files and looks into them, and `location` says where they are and in which forms people have data of their own.
`column_roles` says what columns are for, and `cache` keeps what was decoded.

Kinds of files: `npz`, `csv_files`, `parquet` (by its `parquet_columns`), `images`, a file for each client
(`client_files`), what other `libraries` read, and objects in `memory`. `features` makes samples of columns, and `parts`
puts several files together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fedstrata.base.errors import DataError
from fedstrata.base.limits import memory_limit
from fedstrata.base.registry import load_object
from fedstrata.data.column_roles import DEFAULT_OPTIONS, SPLIT_COLUMN, ReadOptions
from fedstrata.data.dataset import SPLITS, Dataset, Split, channel_statistics, is_test
from fedstrata.data.libraries import read_hub
from fedstrata.data.locate import client_values, find, has_own_test
from fedstrata.data.location import Location
from fedstrata.data.memory import read_kept
from fedstrata.data.registry import DATASETS, DatasetInfo
from fedstrata.data.sample_format import SampleFormat

if TYPE_CHECKING:
    from fedstrata.data.mapped import InputWriter

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

_BOTH_SPLITS = ("table", "clients", "images", "memory", "hub")
"""The kinds of data sets that are read as a whole, so that a class means the same in both splits."""


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
    _refuse_unused(location, options)
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
    if location.info is None and (not location.test or location.kind in _BOTH_SPLITS):
        dataset = _read(location, "train", options)
        return _rows_of_split(dataset, split) if SPLIT_COLUMN in dataset.columns else dataset
    dataset = _read(location, split, options)
    if split == "train" or (location.info and location.info.mean):
        return dataset
    train = _read(location, "train", options)
    if dataset.shape != train.shape:
        name = location.name
        raise DataError(f"{name}: test samples are {dataset.shape}; expected {train.shape}, as in the train file")
    return replace(dataset, mean=train.mean, std=train.std)


def _refuse_unused(location: Location, options: ReadOptions) -> None:
    """Refuse options that the kind of the files has no use for."""
    in_objects = location.kind in ("memory", "hub") or (location.info is not None and location.info.reader)
    if options.memory == "disk" and in_objects:
        raise DataError(
            f"data.memory = 'disk': expected data in files, found {location.name}, which is read into memory as it is; "
            "save it as Parquet files and name these, or leave data.memory out"
        )
    if options.size is not None and location.kind != "images":
        raise DataError(f"data.size = {options.size}: {location.name} is no folder of images, which alone are resized")
    if location.info is None and location.kind not in ("npz", "images"):
        return
    options.refuse_columns(location.name)
    if location.info is None or location.info.input_column != "signal":
        options.refuse_windows(location.name)


def _rows_of_split(dataset: Dataset, split: Split) -> Dataset:
    """Return the samples of one split of a data set with a column ``split``, normalised by those for training."""
    testing = is_test(dataset.columns[SPLIT_COLUMN], dataset.name)
    if testing.all():
        raise DataError(f"{dataset.name}: column {SPLIT_COLUMN!r} marks all samples for testing; mark some train")
    train = dataset.rows(~testing)
    mean, std = channel_statistics(train.inputs)
    return replace(dataset.rows(testing) if split == "test" else train, mean=mean, std=std)


def _read(location: Location, split: Split, options: ReadOptions) -> Dataset:
    """Read a split with the reader of its kind; readers are imported at their first use."""
    info = location.info
    if info and info.reader:
        dataset: Dataset = load_object(info.reader)()
        return dataset
    if location.kind == "memory":
        return read_kept(location.name, options)
    if location.kind == "hub":
        return read_hub(location.name, options)
    parameters = {
        "name": location.name,
        "info": asdict(info) if info else None,
        "split": split,
        # How numbers are normalised and where they are is decided later.
        "options": asdict(replace(options, normalise=DEFAULT_OPTIONS.normalise, memory=DEFAULT_OPTIONS.memory)),
    }
    read, kept = _reader(location, split, options)
    if not kept and not _leaves_on_disk(location, options):
        return read(None)
    from fedstrata.data.cache import cached

    return cached(location.train + location.test, parameters, read, options.memory)


def _reader(
    location: Location, split: Split, options: ReadOptions
) -> tuple[Callable[[InputWriter | None], Dataset], bool]:
    """Return what reads the files of a data set, and whether what it reads in memory is kept for the next time."""
    if location.kind == "images":
        from fedstrata.data.images import read_image_folder

        return partial(read_image_folder, location, options), True
    if location.kind == "parquet":
        from fedstrata.data.parquet import read_parquet

        return partial(read_parquet, location, split, options), True
    if location.kind == "npz":
        from fedstrata.data.npz import read_npz

        return partial(read_npz, location.name, location.train[0], split), False
    from fedstrata.data.client_files import read_files

    return partial(read_files, location, options), False


def _leaves_on_disk(location: Location, options: ReadOptions) -> bool:
    """Return whether the inputs of files that take little time to read are left on the disk all the same."""
    if options.memory != "auto":
        return options.memory == "disk"
    if location.kind == "npz":
        from fedstrata.data.npz import archive_bytes

        return archive_bytes(location.train[0]) > memory_limit()
    from fedstrata.data.client_files import bytes_in_memory

    return bytes_in_memory(location) > memory_limit()
