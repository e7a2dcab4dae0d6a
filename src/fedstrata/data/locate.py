"""Find what holds a data set, and look into it without reading all."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedstrata.base.errors import DataError
from fedstrata.base.quoting import shown
from fedstrata.data.column_roles import (
    CLIENT_COLUMN,
    DEFAULT_OPTIONS,
    SPLIT_COLUMN,
    ReadOptions,
    label_column,
    split_column,
)
from fedstrata.data.dataset import SPLITS, Split, is_test
from fedstrata.data.location import PREFIX, TABLE_ENDINGS, Location, ending_of, find_files, name_of, values_of_folders
from fedstrata.data.registry import DATASETS, DatasetInfo

if TYPE_CHECKING:
    from fedstrata.data.tables import Table

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def find(name: str, root: str | Path | None = None) -> Location:
    """Find the files of a data set.

    A known name is searched in ``root/<name>``, in ``$FEDSTRATA_DATA/<name>`` and in the cache of the Hugging Face
    hub. It is downloaded last, if the hub's client is installed. Any other name is a path at which
    `fedstrata.data.location.find_files` finds files, or a hub id ``owner/set``. Paths are also searched below the two
    roots.

    Args:
        name: The value of ``data.name`` in an experiment.
        root: The value of ``data.root``: a folder that holds one folder per data set.

    Raises:
        DataError: When nothing is found, a file is missing, or a folder holds several data sets.
    """
    info = DATASETS.get(name)
    if info and info.reader:
        return Location(name, info)
    if name.startswith(PREFIX):
        from fedstrata.data.memory import kept

        kept(name)
        return Location(name, None, kind="memory", client_column=CLIENT_COLUMN)
    roots = [path for path in (root, os.environ.get("FEDSTRATA_DATA")) if path]
    # A known name never means a folder of that name that happens to be in the working directory.
    places = [*([] if info else [Path(name)]), *(Path(path) / name for path in roots)]
    for place in places:
        try:
            if location := find_files(name, info, place.expanduser()):
                return location
        # The name is too long, may not be looked into, or begins with the home of nobody.
        except (OSError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise DataError(f"{shown(str(place))} cannot be looked into ({reason})") from error
    searched = " or ".join(map(str, places)) or "no folder, as neither data.root nor FEDSTRATA_DATA is set"
    problems = [f"data set {name!r}: nothing that is read is in {searched}"]
    repository = info.hub_repository if info else name
    if repository and _HUB_ID.fullmatch(repository):
        try:
            return _hub_location(name, info, repository)
        except DataError as error:
            problems.append(str(error))
    if info:
        problems.append(f"set data.root or FEDSTRATA_DATA to the folder that holds {name}/")
    else:
        problems.append(
            f"known names are {', '.join(DATASETS)}; others are a file or a folder of {', '.join(TABLE_ENDINGS)}, a "
            "folder of images, or a hub id owner/set"
        )
    raise DataError("; ".join(problems))


def _hub_location(name: str, info: DatasetInfo | None, repository: str) -> Location:
    """Find the data set in the local copy of a repository on the Hugging Face hub."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        message = f"install fedstrata[hub] to download {repository} from the Hugging Face hub"
        raise DataError(message) from error
    prefix = f"{info.hub_folder}/" if info and info.hub_folder else "*"
    patterns = [f"{prefix}{split}{end}" for split in SPLITS for end in ("-*.parquet", ".parquet")]
    # The copy in the cache comes first: a run that once worked works without a network, on the same bytes. An
    # interrupted download can leave an incomplete copy, in which nothing or not all is found; then the hub is asked.
    for cached in (True, False):
        try:
            copy = snapshot_download(
                repo_id=repository, repo_type="dataset", allow_patterns=patterns, local_files_only=cached
            )
            location = find_files(name, info, Path(copy))
        # The client passes on the errors of whichever HTTP library it is built on.
        except Exception as error:
            if cached:
                continue
            if isinstance(error, DataError):
                raise
            reason = str(error).strip().split("\n")[0] or type(error).__name__
            raise DataError(f"the hub's {repository} could not be downloaded ({reason})") from error
        # Every data set of the registry that is on the hub has a test split.
        if location and (location.test or not info):
            return location
    raise DataError(
        f"the hub's {repository} holds no train-*.parquet; load it with the library datasets, and save each split with "
        "to_parquet"
    )


def tables_of(location: Location, options: ReadOptions = DEFAULT_OPTIONS) -> list[Table]:
    """Return the tables that hold a data set: those for training, then those for testing.

    Where some are for testing, the column ``split`` says which; where the layout says whose they are, a column does.
    Readers are imported at their first use.
    """
    if location.kind == "memory":
        from fedstrata.data.memory import kept

        return list(kept(location.name))
    found: dict[Split, list[Table]] = {split: [] for split in SPLITS}
    for split, files in zip(SPLITS, (location.train, location.test), strict=True):
        if files and location.kind == "images":
            from fedstrata.data.images import ImageTable

            found[split].append(ImageTable(str(location.folder), bool(location.client_column), files=files))
            continue
        for file in files:
            constants = values_of_folders(file, location.folder)
            if location.client_column == CLIENT_COLUMN and not constants:
                constants = {CLIENT_COLUMN: name_of(file)}
            own, *tests = _tables_in(file, options)
            found[split].append(replace(own, constants=constants))
            found["test"] += [replace(test, constants=constants) for test in tests]
    if not found["test"]:
        return found["train"]
    return [
        replace(table, constants={**table.constants, SPLIT_COLUMN: split})
        for split, tables in found.items()
        for table in tables
    ]


def _tables_in(file: Path, options: ReadOptions) -> list[Table]:
    """Return what reads a file. Of the arrays of both splits in one file, it is a table for each."""
    match ending_of(file):
        case ".npz":
            from fedstrata.data.npz import read_archive

            return [*read_archive(file)]
        case ".parquet":
            from fedstrata.data.parquet import ParquetTable

            return [ParquetTable(str(file))]
        case ".feather" | ".arrow":
            from fedstrata.data.parquet import ArrowTable

            return [ArrowTable(str(file))]
    from fedstrata.data.csv_files import CsvTable

    return [CsvTable(str(file), options)]


def has_own_test(location: Location) -> bool:
    """Return whether the data set has test samples of its own: files, arrays, or rows of its column ``split``.

    Raises:
        DataError: When a file is broken, or the column ``split`` holds something else than "train" and "test".
    """
    return bool(location.test) or bool(_marked_as_test(tables_of(location)).any())


def _marked_as_test(tables: Sequence[Table]) -> NDArray[np.bool_]:
    """Read the column ``split``: whether each sample is for testing, (samples,); (0,) where there is no such column."""
    from fedstrata.data.tables import read_column

    column = split_column(tables[0].schema.names) if tables else None
    marked = [is_test(read_column([table], column), table.place) for table in tables] if column else []
    return np.concatenate(marked) if marked else np.zeros(0, bool)


def holds_features(location: Location, options: ReadOptions) -> bool:
    """Return whether a sample is a row of features: numbers in columns of their own, or in an array of one axis.

    Raises:
        DataError: When a file is broken.
    """
    from fedstrata.data import tables
    from fedstrata.data.recordings import holds_recordings

    if location.kind == "images":
        return False
    schema = tables_of(location, options)[0].schema
    if holds_recordings(schema):
        return False
    answer = label_column(schema.names, options, location.name)
    kinds = [each.type for each in schema if each.name != answer and not tables.is_scalar(each.type)]
    return all(map(tables.has_one_axis, kinds))


def client_values(location: Location, column: str) -> NDArray[Any]:
    """Return the distinct values of a column, ascending: the clients of the partition ``natural``.

    Only samples for training count.

    Raises:
        DataError: When there is no such column, or there are no samples.
    """
    from fedstrata.data.tables import is_scalar, read_column

    tables = tables_of(location, ReadOptions(kept_out=(column,)))
    names = [each.name for table in tables[:1] for each in table.schema if is_scalar(each.type)]
    if column not in names:
        raise DataError(f"partition.column = {shown(column)}: {location.name} has {', '.join(names) or 'no columns'}")
    values = read_column(tables, column)
    marked = _marked_as_test(tables)
    return np.unique(values[~marked] if len(marked) else values)
