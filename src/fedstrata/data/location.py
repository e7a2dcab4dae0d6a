"""Where the samples of a data set are, and the forms in which people have data of their own.

They have tables, a file per client, or folders of images.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

from fedstrata.base.errors import DataError
from fedstrata.base.quoting import listed
from fedstrata.data.column_roles import CLIENT_COLUMN
from fedstrata.data.dataset import Split
from fedstrata.data.registry import DatasetInfo

Kind = Literal["parquet", "npz", "table", "clients", "images", "memory", "hub"]
"""How the files of a data set are read."""


def ending_of(path: Path) -> str:
    """The ending of a file's name with its dot, in lower case: `Lyon.CSV` is read as `Lyon.csv` is."""
    return path.suffix.lower()


@dataclass(frozen=True)
class Location:
    """A data set and the files that hold it.

    Attributes:
        name: The name that the experiment gives.
        info: What the registry knows of the data set; None for a folder, a .npz file or a hub id of the user's own.
        train: The ``.npz`` file or the Parquet files of the training split, shards in order; empty where the registry
            names a reader.
        test: The files of the test split; empty where there is none.
        kind: How the files are read: "parquet", "npz", "table" (columns are features), "clients" (a file per client),
            "images" (a folder per class), "memory" (objects of a program, without files), or "hub" (read by the library
            ``datasets``).
        client_column: The column that names the client of each sample, where the layout or the program does; else
            empty. It is then the default of the partition.
        notes: What looked wrong while the files were searched for, in a line each.
    """

    name: str
    info: DatasetInfo | None
    train: tuple[Path, ...] = ()
    test: tuple[Path, ...] = ()
    kind: Kind = "parquet"
    client_column: str = ""
    notes: tuple[str, ...] = ()


TABLE_SUFFIXES = (".csv", ".parquet")
"""The endings of files with a table."""

_CLIENT_SUFFIXES = (*TABLE_SUFFIXES, ".npz")
"""The endings of files that may hold the data of a client."""

_UNREAD_TABLE_SUFFIXES = (".tsv", ".txt", ".xlsx")
"""The endings of files that may hold the data of a client too, and are not read."""

_SPLIT_FOLDERS = {"train": ("train", "training"), "test": ("test", "testing")}
"""The names of the folders of each split, in lower or upper case."""

_UNREAD_SPLITS = ("val", "valid", "validation")
"""The names of folders that hold a split that is not read."""

_SPLIT_NAME = re.compile(r"(train(ing)?|test(ing)?|val(id|idation)?)([-_.\d]|$)", re.IGNORECASE)
"""The names of files and folders that hold a split and not a client."""

_SPLIT_TABLE = re.compile(r"(train|test)([-_.\d]|$)")
"""The names of tables that hold a split: train.csv and train_1.csv, and not trainingcentre.csv."""

_DEPTHS = 4
"""The levels of folders in which images are looked for; an image belongs at the second or third."""

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg")
"""The endings of files with an image."""

_UNREAD_IMAGE_SUFFIXES = (".bmp", ".gif", ".tif", ".tiff", ".webp")
"""The endings of files with an image that are not read."""

_MOST_NAMED = 3
"""The number of files that a warning names."""


def find_own(name: str, place: Path) -> Location | None:
    """Find a table, a folder with a file per client or per split, or a folder of images.

    - a file ``.csv`` or ``.parquet``;
    - a folder with ``train.csv``, and ``test.csv`` if there are test samples;
    - a folder with a ``.csv``, ``.parquet`` or ``.npz`` file per client, also in folders ``train`` and ``test``;
    - a folder of images: ``<class>/<image>`` or ``<client>/<class>/<image>``, also in folders ``train`` and ``test``.

    Args:
        name: The name that the experiment gives.
        place: The path at which the data may lie.

    Raises:
        DataError: When a folder holds files that do not fit together.
    """
    if ending_of(place) in TABLE_SUFFIXES and place.is_file():
        return Location(name, None, (place,), kind="table")
    if not place.is_dir():
        return None
    if train := _split_tables(place, "train"):
        test = _split_tables(place, "test")
        notes = _unread(place, _ending(place.iterdir(), _UNREAD_TABLE_SUFFIXES), (".csv",))
        others = [file for file in _data_files(place) if file not in (*train, *test)]
        if others:
            notes += (f"{place} holds {train[0].name}, so these files are not read: {_named(place, others)}",)
        return Location(name, None, train, test, kind="table", notes=notes)
    clients = _client_files(name, place)
    images = _images(name, place)
    if clients is not None and images is not None:
        raise DataError(
            f"{place} holds {clients.train[0].name} and {images.train[0].relative_to(place)}; expected tables or "
            "images; move the others elsewhere"
        )
    return clients or images


def _split_folder(place: Path, split: Split) -> Path | None:
    """Return the folder of a split; None where there is none.

    Raises:
        DataError: When there are several.
    """
    found = [path for path in sorted(place.iterdir()) if path.name.lower() in _SPLIT_FOLDERS[split] and path.is_dir()]
    if len(found) > 1:
        raise DataError(f"{place} holds {found[0].name} and {found[1].name}; expected one folder of {split} samples")
    return found[0] if found else None


def _unread_split(place: Path) -> tuple[str, ...]:
    """Return a line about a folder of samples for validation; nothing where there is none."""
    found = [path.name for path in sorted(place.iterdir()) if path.name.lower() in _UNREAD_SPLITS and path.is_dir()]
    if not found:
        return ()
    return (
        f"{place} holds {found[0]}, which is not read. Move its samples to train or test; data.validation holds out a "
        "share of the training samples",
    )


def _split_tables(folder: Path, split: Split) -> tuple[Path, ...]:
    """Return the CSV files of a split, in the order of their names. Reading them tells what is wrong with a file."""
    named = [path for path in folder.glob(f"{split}*") if _SPLIT_TABLE.match(path.name)]
    return tuple(sorted(path for path in named if ending_of(path) == ".csv"))


def _client_files(name: str, place: Path) -> Location | None:
    """Find a folder with a file per client."""
    train_folder = _split_folder(place, "train")
    test_folder = None if train_folder is None else _split_folder(place, "test")
    folders = [folder for folder in (train_folder or place, test_folder) if folder is not None]
    train = _data_files(folders[0])
    if not train:
        return None
    splits = [file.name for file in train if _SPLIT_NAME.match(file.stem)]
    if splits:
        raise DataError(
            f"{place} holds {splits[0]}, which is the name of a split and not of a client; expected train-*.parquet or "
            "train.csv, and test files of the same kind beside it"
        )
    test = () if test_folder is None else _data_files(test_folder)
    kinds = sorted({ending_of(file) for file in (*train, *test)})
    if len(kinds) > 1:
        raise DataError(f"{place} holds {' and '.join(kinds)} files; expected a file of one kind for each client")
    for file, other in pairwise(sorted(train, key=lambda file: file.stem)):
        if file.stem == other.stem:
            raise DataError(f"{file.parent} holds {file.name} and {other.name}; expected one file for each client")
    strange = [file.name for file in test if file.name not in {other.name for other in train}]
    if strange:
        raise DataError(f"{test_folder} holds {strange[0]}, but {train_folder} does not; name both alike")
    unread = [file for folder in folders for file in _data_files(folder, _UNREAD_TABLE_SUFFIXES)]
    notes = _unread(place, unread, kinds) + _unread_folders(place, (*train, *test)) + _unread_split(place)
    return Location(name, None, train, test, kind="clients", client_column=CLIENT_COLUMN, notes=notes)


def _unread_folders(place: Path, read: Sequence[Path]) -> tuple[str, ...]:
    """Return a line about files of clients in other folders than those that are read; nothing without such files."""
    found = [
        file
        for file in _ending(_paths_below(place), _CLIENT_SUFFIXES)
        if file not in read and file.relative_to(place).parts[0].lower() not in _UNREAD_SPLITS
    ]
    if not found:
        return ()
    return (
        f"{place} holds files in other folders that are not read: {_named(place, found)}. Move those of clients "
        f"beside {read[0].name}, and others elsewhere",
    )


def _data_files(folder: Path, suffixes: Sequence[str] = _CLIENT_SUFFIXES) -> tuple[Path, ...]:
    """Return the files in a folder that may hold the data of a client, in the order of their names."""
    return _ending(folder.iterdir(), suffixes) if folder.is_dir() else ()


def _ending(paths: Iterable[Path], suffixes: Sequence[str]) -> tuple[Path, ...]:
    """Return the files with one of some endings, in lower or upper case, in the order of their paths.

    Hidden files are left out: macOS and editors leave some beside the files of a user.
    """
    found = (path for path in paths if not path.name.startswith(".") and ending_of(path) in suffixes)
    return tuple(sorted(path for path in found if path.is_file()))


def _images(name: str, place: Path) -> Location | None:
    """Find a folder of images."""
    train_folder = _split_folder(place, "train")
    test_folder = None if train_folder is None else _split_folder(place, "test")
    paths = _paths_below(train_folder or place)
    train = _ending(paths, IMAGE_SUFFIXES)
    if not train:
        return None
    if train_folder is None and (splits := [file for file in train if _is_split(file.relative_to(place).parts[0])]):
        raise DataError(
            f"{place} holds {splits[0].relative_to(place).parts[0]}, which is the name of a split and not of a client "
            "or a class; expected the folder train, and test beside it if there are test samples"
        )
    test_paths = [] if test_folder is None else _paths_below(test_folder)
    test = _ending(test_paths, IMAGE_SUFFIXES)
    base = len(place.parts) + (train_folder is not None)
    depths = {len(file.parts) - base for file in (*train, *test)}
    if depths not in ({2}, {3}):
        raise DataError(
            f"{place}: expected images at <class>/<image> or <client>/<class>/<image> throughout, found some at depths "
            f"{' and '.join(str(depth) for depth in sorted(depths))}, such as {train[0].relative_to(place)}"
        )
    unread = _ending(paths, _UNREAD_IMAGE_SUFFIXES) + _ending(test_paths, _UNREAD_IMAGE_SUFFIXES)
    notes = _unread(place, unread, IMAGE_SUFFIXES) + _unread_split(place)
    client_column = CLIENT_COLUMN if depths == {3} else ""
    return Location(name, None, train, test, kind="images", client_column=client_column, notes=notes)


def _is_split(folder: str) -> bool:
    """Return whether a folder of images has the name of a split."""
    return folder.lower() in (*_SPLIT_FOLDERS["train"], *_SPLIT_FOLDERS["test"], *_UNREAD_SPLITS)


def _paths_below(folder: Path) -> list[Path]:
    """Return what is below a folder and not hidden, as deep as images may be. Deeper folders are of something else."""
    return [path for depth in range(1, _DEPTHS + 1) for path in folder.glob("/".join(["[!.]*"] * depth))]


def _unread(place: Path, paths: Sequence[Path], expected: Sequence[str]) -> tuple[str, ...]:
    """Return a line about files below a place that may hold data too and are not read; nothing without such files."""
    if not paths:
        return ()
    return (
        f"{place} holds files that are not read: {_named(place, paths)}. Save data as {' or '.join(expected)}, and "
        "move other files elsewhere",
    )


def _named(place: Path, paths: Sequence[Path]) -> str:
    """Return the first few paths below a place, and how many more there are."""
    return listed([path.relative_to(place).as_posix() for path in paths], _MOST_NAMED)


def client_of(file: Path, location: Location) -> str:
    """Return the client whose data a file holds: the name of the file, or of the folder above that of the class."""
    return file.parent.parent.name if location.kind == "images" else file.stem


def classes_of(files: Sequence[Path]) -> list[str]:
    """Return the class of each image: the name of its folder."""
    return [file.parent.name for file in files]
