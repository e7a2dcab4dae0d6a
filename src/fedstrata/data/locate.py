"""Find the files of a data set, and look into them without reading all."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstrata.base.errors import DataError
from fedstrata.base.limits import file_problem
from fedstrata.base.quoting import listed, shown
from fedstrata.data import memory
from fedstrata.data.column_roles import CLIENT_COLUMN, SPLIT_COLUMN
from fedstrata.data.dataset import Split, is_test
from fedstrata.data.libraries import hub_tables
from fedstrata.data.location import Location, client_of, ending_of, find_own
from fedstrata.data.npz import npz_column, npz_column_names, open_archive
from fedstrata.data.parts import Part, refuse_no_rows
from fedstrata.data.registry import DATASETS, DatasetInfo

_SHARD = re.compile(r"-\d+-of-(\d+)(-\w+)?\.parquet$")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def find(name: str, root: str | Path | None = None) -> Location:
    """Find the files of a data set.

    A known name is searched in ``root/<name>``, in ``$FEDSTRATA_DATA/<name>`` and in the cache of the Hugging Face
    hub. It is downloaded last, if the hub's client is installed. Any other name is one of these:

    - a folder with ``train-*.parquet`` in itself, in its folder ``data``, or in its only other folder that has some;
    - a ``.npz`` file;
    - what `fedstrata.data.location` finds: tables, a file per client, a folder of images;
    - a hub id ``owner/set``.

    Folders and files are also searched below the two roots.

    Args:
        name: The value of ``data.name`` in an experiment.
        root: The value of ``data.root``: a folder that holds one folder per data set.

    Raises:
        DataError: When nothing is found, a shard is missing, or a folder holds several data sets.
    """
    info = DATASETS.get(name)
    if info and info.reader:
        return Location(name, info)
    if name.startswith(memory.PREFIX):
        memory.kept(name)
        return Location(name, None, kind="memory", client_column=CLIENT_COLUMN)
    _check_path(name)
    _check_path(str(root or ""))
    places = _places(name, info, root)
    for place in places:
        if ending_of(place) == ".npz" and place.exists():
            return _npz_location(name, place)
        if location := _folder_location(name, info, place) or (None if info else find_own(name, place)):
            return location
    repository = info.hub_repository if info else name
    reason = ""
    if repository and _HUB_ID.fullmatch(repository):
        try:
            if location := _hub_location(name, info, repository):
                return location
            if info is None:
                hub_tables(name)
                return Location(name, None, kind="hub")
            reason = f"the hub's {repository} holds no train-*.parquet"
        except DataError as error:
            reason = str(error)
    raise DataError(_not_found(name, info, places, reason))


def _check_path(text: str) -> None:
    """Refuse a text that cannot be a path."""
    if "\0" in text:
        raise DataError(f"{shown(text)} holds a NUL character; expected a name or a path")
    try:
        Path(text).expanduser()
    except RuntimeError as error:
        raise DataError(f"{shown(text)} is no path ({error}); write the home folder out") from None


def _places(name: str, info: DatasetInfo | None, root: str | Path | None) -> list[Path]:
    """Return the paths at which a data set may lie, in the order in which they are searched."""
    roots = [path for path in (root, os.environ.get("FEDSTRATA_DATA")) if path]
    below_roots = [Path(path).expanduser() / name for path in roots]
    # A known name never means a folder of that name that happens to be in the working directory.
    return below_roots if info else [Path(name).expanduser(), *below_roots]


def _check_regular(file: Path) -> None:
    """Refuse what is no regular file: to open a pipe may wait without an end."""
    if reason := file_problem(file):
        raise DataError(f"{file} is no readable file ({reason}); copy or download it again")


def _npz_location(name: str, file: Path) -> Location:
    _check_regular(file)
    with open_archive(file) as archive:
        has_test = not {"x_test", "inputs_test"}.isdisjoint(archive.files)
    test = (file,) if has_test else ()
    return Location(name, None, (file,), test, kind="npz")


def _folder_location(name: str, info: DatasetInfo | None, place: Path) -> Location | None:
    """Find the data set in a folder; None when the folder holds no training file."""
    preferred = [place, place / "data"]
    if info and info.hub_folder:
        preferred.append(place / info.hub_folder)
    for folder in preferred:
        if train := _shards(folder, "train"):
            test = _shards(folder, "test")
            notes = () if info else _unread_shards(folder, (*train, *test))
            return Location(name, info, train, test, notes=notes)
    inner = sorted(folder for folder in place.glob("*/") if _shards(folder, "train"))
    if len(inner) > 1:
        found = ", ".join(folder.name for folder in inner)
        raise DataError(f"{place} holds several data sets ({found}); give the path of one of them as data.name")
    return _folder_location(name, info, inner[0]) if inner else None


def _unread_shards(folder: Path, read: Sequence[Path]) -> tuple[str, ...]:
    """Return a line about Parquet files beside those of the splits; nothing where there are none."""
    others = [path.name for path in sorted(folder.glob("*.parquet")) if path not in read and path.name[0] != "."]
    if not others:
        return ()
    return (
        f"{folder} holds {listed(others, 1)}, which are not read. Files of samples begin with train- or test-; move "
        "others elsewhere",
    )


def _shards(folder: Path, split: Split) -> tuple[Path, ...]:
    files = tuple(sorted([*folder.glob(f"{split}.parquet"), *folder.glob(f"{split}-*.parquet")]))
    for file in files:
        _check_regular(file)
        if (match := _SHARD.search(file.name)) and len(files) != int(match[1]):
            raise DataError(
                f"{folder} holds {len(files)} of the {int(match[1])} {split} files that {file.name} names; "
                "copy or download the folder again"
            )
    return files


def _hub_location(name: str, info: DatasetInfo | None, repository: str) -> Location | None:
    """Find the data set in the local copy of a repository on the Hugging Face hub; None when it is not there."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        message = f"install fedstrata[hub] to download {repository} from the Hugging Face hub"
        raise DataError(message) from error
    prefix = f"{info.hub_folder}/" if info and info.hub_folder else "*"
    patterns = [f"{prefix}{split}{end}" for split in ("train", "test") for end in ("-*.parquet", ".parquet")]
    # The copy in the cache comes first: a run that once worked works without a network, on the same bytes. An
    # interrupted download can leave an incomplete copy, in which nothing or not all is found; then the hub is asked.
    for cached in (True, False):
        try:
            copy = snapshot_download(
                repo_id=repository, repo_type="dataset", allow_patterns=patterns, local_files_only=cached
            )
            location = _folder_location(name, info, Path(copy))
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
    return None


def _not_found(name: str, info: DatasetInfo | None, places: list[Path], hub_problem: str) -> str:
    """Say in one line what was searched for, where, and what to do."""
    searched = " and ".join(str(place) for place in places)
    parts = [f"data set {name!r} not found"]
    expected = "no train-*.parquet" if info else "no data"
    parts += [f"{expected} in {searched}" if searched else "neither data.root nor FEDSTRATA_DATA is set"]
    if hub_problem:
        parts.append(hub_problem)
    if info:
        parts.append(f"set data.root or FEDSTRATA_DATA to the folder that holds {name}/")
    else:
        parts.append(
            f"known names are {', '.join(DATASETS)}; others are a .csv, .parquet or .npz file, a folder of such or of "
            "images, or a hub id owner/set"
        )
    return "; ".join(parts)


def column_names(location: Location) -> tuple[str, ...]:
    """Return the names of the columns that hold one value per sample for training."""
    if location.kind == "memory":
        return memory.column_names(location.name)
    if location.kind == "hub":
        return tuple(hub_tables(location.name)["train"].column_names)
    if not location.train:
        return ()
    own: tuple[str, ...] = ()
    if location.kind != "images":
        read_names = npz_column_names if _file_kind(location) == "npz" else table_columns
        own = read_names(location.train[0])
    return (*own, location.client_column) if location.client_column else own


def read_column(location: Location, column: str) -> NDArray[Any]:
    """Read one column of the samples for training, (samples,).

    Raises:
        DataError: When a file or the column is missing or broken.
    """
    if location.kind == "memory":
        return memory.read_column(location.name, column)
    if location.kind == "hub":
        return Part(None, None, None, hub_tables(location.name)["train"], location.name).column(column)
    if column == location.client_column:
        # How many samples each client has is known later.
        return np.unique([client_of(file, location) for file in location.train])
    if _file_kind(location) == "npz":
        return np.concatenate([npz_column(file, column, "train") for file in location.train])
    from fedstrata.data.csv_files import read_csv
    from fedstrata.data.parquet_columns import read_scalar_column, to_numpy

    if ending_of(location.train[0]) == ".csv":
        tables = [read_csv(file, [column], codes=column.__eq__) for file in location.train]
        return np.concatenate([to_numpy(table[column].combine_chunks()) for table in tables])
    return read_scalar_column(location.train, column)


def _file_kind(location: Location) -> str:
    """Return the kind of the files, each of which may hold the data of a client."""
    return "npz" if ending_of(location.train[0]) == ".npz" else location.kind


def table_columns(file: Path) -> tuple[str, ...]:
    """Return the names of the columns of a CSV or Parquet file that hold one value per row."""
    from fedstrata.data.csv_files import csv_columns
    from fedstrata.data.parquet_columns import scalar_columns

    return csv_columns(file) if ending_of(file) == ".csv" else tuple(scalar_columns(file))


def has_own_test(location: Location) -> bool:
    """Return whether the data set has test samples of its own: files, arrays, or rows of its column ``split``.

    Raises:
        DataError: When a file is broken, or the column ``split`` holds something else than "train" and "test".
    """
    if location.test or (location.kind == "hub" and "test" in hub_tables(location.name)):
        return True
    if SPLIT_COLUMN not in column_names(location):
        return False
    return bool(_marked_as_test(location).any())


def client_values(location: Location, column: str) -> NDArray[Any]:
    """Return the distinct values of a column, ascending: the clients of the partition ``natural``.

    Only samples for training count.

    Raises:
        DataError: When there is no such column, or there are no samples.
    """
    names = column_names(location)
    if column not in names:
        known = ", ".join(names) or "no further columns"
        raise DataError(f"partition.column = {shown(column)}: {location.name} has {known}")
    values = read_column(location, column)
    refuse_no_rows(len(values), location.name)
    if location.info is None and SPLIT_COLUMN in names and column != location.client_column:
        values = values[~_marked_as_test(location)]
    return np.unique(values)


def _marked_as_test(location: Location) -> NDArray[np.bool_]:
    """Read the column ``split``: whether each sample is for testing, (samples,). An error names the file."""
    if not location.train:
        return is_test(read_column(location, SPLIT_COLUMN), location.name)
    files = [(str(file), replace(location, train=(file,))) for file in location.train]
    return np.concatenate([is_test(read_column(one, SPLIT_COLUMN), place) for place, one in files])
