"""Where the samples of a data set are, and the layouts of files that people have.

They have tables, a file per client or per split, folders of a column's values, or folders of images.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

from fedstrata.base.errors import DataError
from fedstrata.base.limits import file_problem
from fedstrata.base.quoting import listed
from fedstrata.data.column_roles import CLIENT_COLUMN, LABEL_COLUMNS, SPLIT_COLUMN
from fedstrata.data.dataset import Split
from fedstrata.data.registry import DatasetInfo

PREFIX = "memory:"
"""Begins the name of data that were given as objects."""

Kind = Literal["tables", "images", "memory", "hub"]
"""What holds a data set."""


@dataclass(frozen=True)
class Location:
    """A data set and the files that hold it.

    Attributes:
        name: The name that the experiment gives.
        info: What the registry knows of the data set; None for data of the user's own.
        train: The files of the training split; empty where the registry names a reader.
        test: The files of the test split; empty where there is none.
        kind: What they are: "tables" in files of any kind, "images" (a folder per class), "memory" (objects of a
            program, without files), or "hub" (read by the library ``datasets``).
        client_column: The column that names the client of each sample, where the layout or the program does; else
            empty. It is then the default of the partition.
        folder: The folder with all files; None where a file is named.
        notes: What looked wrong while the files were searched for, in a line each.
    """

    name: str
    info: DatasetInfo | None
    train: tuple[Path, ...] = ()
    test: tuple[Path, ...] = ()
    kind: Kind = "tables"
    client_column: str = ""
    folder: Path | None = None
    notes: tuple[str, ...] = ()


COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
"""The compression of a CSV file, by the end of its name."""

TABLE_ENDINGS = (".csv", *(f".csv{end}" for end in COMPRESSIONS), ".parquet", ".feather", ".arrow", ".npz")
"""The endings of files with a table."""

IMAGE_ENDINGS = (".png", ".jpg", ".jpeg")
"""The endings of files with an image."""

_NOTES = re.compile(r"(readme|licen[cs]e|citation|changelog)|.*\.md$", re.IGNORECASE)
"""The names of files that nobody takes for data."""

_SPLIT_FOLDERS = {"train": ("train", "training"), "test": ("test", "testing")}
"""The names of the folders of each split, in lower or upper case."""

_SPLIT_NAME = re.compile(r"(train(ing)?|test(ing)?|val(id|idation)?)([-_.\d]|$)", re.IGNORECASE)
"""The names of files and folders that hold a split, and no client: train_1, and not trainingcentre."""

_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""The value of a folder whose rows have none."""

_SHARD = re.compile(r"-\d+-of-(\d+)(-\w+)?\.parquet$")

_DEPTHS = 4
"""The levels of folders in which files are looked for; an image belongs at the second or third."""


def ending_of(path: Path) -> str:
    """The ending of a file's name, in lower case: `Lyon.CSV.gz` has .csv.gz."""
    name = path.name.lower()
    found = [end for end in (*TABLE_ENDINGS, *IMAGE_ENDINGS) if name.endswith(end)]
    return max(found, key=len, default=path.suffix.lower())


def name_of(path: Path) -> str:
    """The name of a file without its ending."""
    return path.name[: len(path.name) - len(ending_of(path))]


def values_of_folders(file: Path, folder: Path | None) -> dict[str, str]:
    """Return the columns that the folders of a file name, as ``site=Ghent`` does, with their values."""
    parts = file.relative_to(folder).parts[:-1] if folder else ()
    named = [unquote(part).split("=", 1) for part in parts if "=" in part]
    return {name: "" if value == _NO_VALUE else value for name, value in named}


def find_files(name: str, info: DatasetInfo | None, place: Path) -> Location | None:
    """Find the files of a data set at a path; None where there are none.

    - a file with a table;
    - a folder with ``train*`` and ``test*`` tables, in itself, in its folder ``data`` or in its only other folder that
      has some;
    - a folder with a table per client, also in folders ``train`` and ``test``;
    - a folder with tables in folders ``column=value``;
    - a folder of images: ``<class>/<image>`` or ``<client>/<class>/<image>``, also in folders ``train`` and ``test``.

    Args:
        name: The name that the experiment gives.
        info: What is known of the data set, of which only the second form is looked for.
        place: The path at which the data may lie.

    Raises:
        DataError: When a file is missing, or a folder holds files that do not fit together.
    """
    if not info and ending_of(place) in TABLE_ENDINGS and place.exists():
        _check_regular(place)
        return Location(name, None, (place,))
    if not place.is_dir():
        return None
    if found := _splits(name, info, place):
        return found
    if info:
        return None
    clients, images = _client_files(name, place), _images(name, place)
    if clients and images:
        raise DataError(
            f"{place} holds {clients.train[0].relative_to(place)} and {images.train[0].relative_to(place)}; expected "
            "tables or images; move the others elsewhere"
        )
    return clients or images


# A file or several for each split.


def _splits(name: str, info: DatasetInfo | None, place: Path) -> Location | None:
    """Find tables that are named by their split."""
    preferred = [place, place / "data"]
    if info and info.hub_folder:
        preferred.append(place / info.hub_folder)
    for folder in preferred:
        if train := _split_tables(folder, "train"):
            test = _split_tables(folder, "test")
            notes = () if info else _unread(folder, (*train, *test))
            return Location(name, info, train, test, folder=folder, notes=notes)
    inner = sorted(folder for folder in place.glob("*/") if _split_tables(folder, "train"))
    if len(inner) > 1:
        found = ", ".join(folder.name for folder in inner)
        raise DataError(f"{place} holds several data sets ({found}); give the path of one of them as data.name")
    return _splits(name, info, inner[0]) if inner else None


def _split_tables(folder: Path, split: Split) -> tuple[Path, ...]:
    """Return the tables of a split, in the order of their names."""
    named = (path for path in folder.glob(f"{split}*") if _SPLIT_NAME.match(name_of(path)))
    files = tuple(sorted(path for path in named if ending_of(path) in TABLE_ENDINGS))
    _refuse_twice(files)
    for file in files:
        _check_regular(file)
        if (match := _SHARD.search(file.name)) and len(files) != int(match[1]):
            raise DataError(
                f"{folder} holds {len(files)} of the {int(match[1])} {split} files that {file.name} names; "
                "copy or download the folder again"
            )
    return files


def _refuse_twice(files: Sequence[Path]) -> None:
    """Refuse files of one name, such as one beside its compressed copy."""
    twice = [name for name, times in Counter(map(name_of, files)).items() if times > 1]
    if twice:
        both = " and ".join(file.name for file in files if name_of(file) == twice[0])
        raise DataError(f"{files[0].parent} holds {both}; expected one file of each name")


def _check_regular(file: Path) -> None:
    """Refuse what is no regular file: to open a pipe may wait without an end."""
    if reason := file_problem(file):
        raise DataError(f"{file} is no readable file ({reason}); copy or download it again")


# A file for each client, or folders of a column's values.


def _client_files(name: str, place: Path) -> Location | None:
    """Find a folder with a table per client, or with tables in folders ``column=value``."""
    folders = _split_folders(place)
    train, test = ([path for path in _paths_below(folder) if _is_table(path, folder)] for folder in folders)
    if not train:
        return None
    valued = [set(values_of_folders(file, place)) for file in (*train, *test)]
    columns = set.intersection(*valued)
    if columns != set.union(*valued):
        raise DataError(
            f"{place}: expected tables in folders of the same columns throughout, found some in folders of "
            f"{' and '.join(sorted(set.union(*valued)))} and others not; move the others elsewhere"
        )
    if not columns:
        _check_clients(place, train, test)
    # A single column names the clients, unless it says something else.
    named = [column for column in columns if column not in (SPLIT_COLUMN, *LABEL_COLUMNS)]
    client_column = CLIENT_COLUMN if not columns else named[0] if len(columns) == len(named) == 1 else ""
    notes = _unread(place, (*train, *test))
    return Location(name, None, tuple(train), tuple(test), "tables", client_column, place, notes)


def _is_table(path: Path, folder: Path) -> bool:
    """Return whether a path below a folder is a table in it, or in folders of a column's values."""
    parts = path.relative_to(folder).parts[:-1]
    return ending_of(path) in TABLE_ENDINGS and path.is_file() and all("=" in part for part in parts)


def _check_clients(place: Path, train: Sequence[Path], test: Sequence[Path]) -> None:
    """Refuse files whose names are not those of clients, or that do not fit together."""
    splits = [file.name for file in train if _SPLIT_NAME.match(name_of(file))]
    if splits:
        raise DataError(
            f"{place} holds {splits[0]}, which is the name of a split and not of a client; expected train-*.parquet or "
            "train.csv, and test files of the same kind beside it"
        )
    _refuse_twice(train)
    strange = [file.name for file in test if name_of(file) not in map(name_of, train)]
    if strange:
        raise DataError(f"{test[0].parent} holds {strange[0]}, but {train[0].parent} does not; name both alike")


# Images.


def _images(name: str, place: Path) -> Location | None:
    """Find a folder of images."""
    folders = _split_folders(place)
    train, test = ([path for path in _paths_below(folder) if ending_of(path) in IMAGE_ENDINGS] for folder in folders)
    if not train:
        return None
    if folders[0] == place and (splits := [file for file in train if _is_split(file.relative_to(place).parts[0])]):
        raise DataError(
            f"{place} holds {splits[0].relative_to(place).parts[0]}, which is the name of a split and not of a client "
            "or a class; expected the folder train, and test beside it if there are test samples"
        )
    depths = {
        len(file.relative_to(folder).parts)
        for folder, files in zip(folders, (train, test), strict=True)
        for file in files
    }
    if depths not in ({2}, {3}):
        raise DataError(
            f"{place}: expected images at <class>/<image> or <client>/<class>/<image> throughout, found some at depths "
            f"{' and '.join(str(depth) for depth in sorted(depths))}, such as {train[0].relative_to(place)}"
        )
    client_column = CLIENT_COLUMN if depths == {3} else ""
    notes = _unread(place, (*train, *test))
    return Location(name, None, tuple(train), tuple(test), "images", client_column, place, notes)


# Folders.


def _split_folders(place: Path) -> tuple[Path, Path]:
    """Return the folders of training and of test samples: without the first, the place itself and one without files.

    Raises:
        DataError: When there are several of a split.
    """
    found = []
    for split, names in _SPLIT_FOLDERS.items():
        own = [path for path in sorted(place.iterdir()) if path.name.lower() in names and path.is_dir()]
        if len(own) > 1:
            raise DataError(f"{place} holds {own[0].name} and {own[1].name}; expected one folder of {split} samples")
        found.append(own[0] if own else place / split)
    return (found[0], found[1]) if found[0].is_dir() else (place, place / "no test samples")


def _is_split(folder: str) -> bool:
    """Return whether a folder of images has the name of a split."""
    match = _SPLIT_NAME.match(folder)
    return match is not None and match[0] == folder


def _paths_below(folder: Path) -> list[Path]:
    """Return what is below a folder and not hidden, in order, as deep as images may be.

    Hidden files are left out: macOS and editors leave some beside the files of a user.
    """
    return sorted(path for depth in range(1, _DEPTHS + 1) for path in folder.glob("/".join(["[!.]*"] * depth)))


def _unread(place: Path, read: Iterable[Path]) -> tuple[str, ...]:
    """Return a line about files below a place that may hold data too and are not read; nothing without such files."""
    known = set(read)
    paths = [path for path in _paths_below(place) if path not in known and not _NOTES.match(path.name)]
    found = [path.relative_to(place).as_posix() for path in paths if path.is_file()]
    if not found:
        return ()
    return (
        f"{place} holds files that are not read: {listed(found, 3)}. Data end with "
        f"{', '.join((*TABLE_ENDINGS, *IMAGE_ENDINGS))}, and lie in folders as those that are read do; move other "
        "files elsewhere",
    )
