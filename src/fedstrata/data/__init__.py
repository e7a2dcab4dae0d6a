"""Load data sets by name. Importing this package imports no torch; `load_dataset` does.

One way leads from what people have to a `dataset`. `locate` finds what holds a data set, by its `registry` or by the
layout of its files (`location`), and gives it as `tables`: rows of named columns. They are read from `csv_files`,
`parquet`, `npz`, folders of `images`, and objects in `memory`. `reading` makes samples and `answers` of tables, by what
their columns are for (`column_roles`); `recordings` are cut into windows. Inputs are in memory or `mapped` from a file,
and `cache` keeps what was decoded. What other `libraries` carry is a `dataset` already. A `sample_format` tells a
network what it reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np

from fedstrata.base.errors import DataError
from fedstrata.base.registry import load_object
from fedstrata.data.column_roles import DEFAULT_OPTIONS, SPLIT_COLUMN, ReadOptions
from fedstrata.data.dataset import SPLITS, Dataset, Split, channel_statistics
from fedstrata.data.locate import client_values, find, has_own_test, holds_features, tables_of
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
    "holds_features",
    "load_both",
    "load_dataset",
    "load_unlabelled",
    "raw_rows",
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
        in both splits. The rows of a table are not prepared: whose training rows count is not known yet.

    Raises:
        DataError: When a file, column or row is missing or broken, or there is no test split.
    """
    return _load(find(name, root), (split,), options)[0]


def load_both(name: str, root: str | Path | None = None, options: ReadOptions = DEFAULT_OPTIONS) -> tuple[Dataset, int]:
    """Read the training samples of a data set, and its test samples after them.

    Args:
        name: As in `load_dataset`, and so are the others.
        root: As there.
        options: As there.

    Returns:
        All samples, and the number of those for testing.

    Raises:
        DataError: As there.
    """
    return _load(find(name, root), SPLITS, options)


def raw_rows(path: Path, features: Sequence[str], options: ReadOptions) -> dict[str, np.ndarray]:
    """Read columns of a table, which need have no classes, as they are.

    Args:
        path: The table, or a folder of some, in one of the forms that `find` knows.
        features: The columns.
        options: How samples are made of files.

    Returns:
        Each column, (rows,). A missing number is nan, and a missing text is empty.

    Raises:
        DataError: When a file is broken, or has no such column.
    """
    from fedstrata.data.tables import read_column

    given = tables_of(find(str(path.resolve())), replace(options, inputs=tuple(features)))
    return {feature: read_column(given, feature) for feature in features}


def load_unlabelled(path: Path, options: ReadOptions) -> Dataset:
    """Read samples whose classes need not be there, and are not looked at if they are: all are of one class.

    Args:
        path: The samples, in one of the forms that `find` knows.
        options: How samples are made of files.

    Raises:
        DataError: When a file is broken.
    """
    from fedstrata.data.reading import read_tables

    location = find(str(path.resolve()))
    given = [replace(each, constants={**each.constants, _NO_CLASS: 0}) for each in tables_of(location, options)]
    return read_tables(location.name, given, replace(options, label=_NO_CLASS, classes=(), class_values=()))


_NO_CLASS = "(no class)"
"""The column of the class of samples without classes."""


def _load(location: Location, splits: Sequence[Split], options: ReadOptions) -> tuple[Dataset, int]:
    """Read some splits, normalised by the training split, and return how many test samples the files have."""
    info = location.info
    if info:
        options.refuse(
            location.name, "label", "classes", "inputs", "size", *(("window", "step") if info.reader else ())
        )
    if options.memory == "disk" and not location.train:
        raise DataError(
            f"data.memory = 'disk': expected data in files, found {location.name}, which is read into memory as it is; "
            "save it as Parquet files and name these, or leave data.memory out"
        )
    dataset: Dataset = load_object(info.reader)() if info and info.reader else _read(location, options)
    # Notes about files are no part of the copy that is kept of them: the folder may hold others the next time.
    dataset = replace(dataset, notes=location.notes + dataset.notes)
    testing = dataset.columns.get(SPLIT_COLUMN, np.zeros(len(dataset), np.str_)) == "test"
    if "test" in splits and not testing.any():
        raise DataError(f"{location.name} has no test file; hold out a part of its training samples instead")
    if SPLIT_COLUMN in dataset.columns:
        dataset = dataset.rows(np.concatenate([np.flatnonzero(testing == (split == "test")) for split in splits]))
    if not options.scale:
        dataset = replace(dataset, mean=(0.0,) * len(dataset.mean), std=(1.0,) * len(dataset.std))
    return dataset, int(testing.sum())


def _read(location: Location, options: ReadOptions) -> Dataset:
    """Read all samples of a location; what takes long to decode, or is left on the disk, is kept for the next time."""
    from fedstrata.data.reading import read_tables

    read = partial(read_tables, location.name, tables_of(location, options), options, location.info)
    if not location.train:
        return read()
    from fedstrata.data.cache import cached

    files = location.train + location.test
    # How numbers are normalised and where they are is decided later.
    decoded = replace(options, scale=DEFAULT_OPTIONS.scale, memory=DEFAULT_OPTIONS.memory)
    parameters = {
        "location": {**asdict(location), "train": len(location.train), "test": [], "folder": None, "notes": []},
        "options": asdict(decoded),
    }
    slow = location.kind == "images" or ending_of(files[0]) == ".parquet"
    return cached(files, parameters, lambda collect: read(collect=collect), options.memory, keep=slow)
