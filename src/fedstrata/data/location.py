"""Where the samples of a data set are, and the layouts of files that people have.

They have tables, a file per client or per split, folders of a column's values, or folders of images.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
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

Kind = Literal["tables", "images", "memory"]
"""What holds a data set."""


@dataclass(frozen=True)
class Location:
    """A data set and the files that hold it.

    Attributes:
        name: The name that the experiment gives.
        info: What the registry knows of the data set; None for data of the user's own.
        train: The files of the training split; empty where the registry names a reader.
        test: The files of the test split; empty where there is none.
        kind: What they are: "tables" in files of any kind, "images" (a folder per class), or "memory" (objects of a
            program, without files).
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

_SPLIT_WORDS = re.compile("(train|test)(ing)?|(?P<valid>val)(id|idation)?", re.IGNORECASE)
"""What a folder is for by its name, and a table by the first word of its name."""

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
    - a folder with tables in folders ``column=value``, likewise;
    - a folder of images: ``<class>/<image>`` or ``<client>/<class>/<image>``, likewise.

    Args:
        name: The name that the experiment gives.
        info: What is known of the data set, of which only the second form is looked for.
        place: The path at which the data may lie.

    Raises:
        DataError: When a file is missing, or a folder holds files that do not fit together.
    """
    if not info and ending_of(place) in TABLE_ENDINGS and place.exists():
        found: Location | None = Location(name, None, (place,))
    else:
        found = _tables_of_splits(name, info, place) or (None if info else _files_in_folders(name, place))
    if found:
        _check_files(found)
    if found and found.folder and not info:
        return replace(found, notes=_unread(place, found.train + found.test))
    return found


def _tables_of_splits(name: str, info: DatasetInfo | None, place: Path) -> Location | None:
    """Find a table or several for each split, which are named by it."""
    preferred = (place, place / ((info and info.hub_folder) or "data"))
    found = [folder for folder in preferred if _tables(folder, "train")][:1]
    others = (folder for folder in sorted(place.glob("[!.]*/")) if not _split_of_word(folder.name))
    found = found or [folder for folder in others if _tables(folder, "train")]
    if len(found) > 1:
        names = ", ".join(folder.name for folder in found)
        raise DataError(f"{place} holds several data sets ({names}); give the path of one of them as data.name")
    if not found:
        return None
    return Location(name, info, _tables(found[0], "train"), _tables(found[0], "test"), folder=found[0])


def _tables(folder: Path, split: Split) -> tuple[Path, ...]:
    """Return the tables of a split, in the order of their names."""
    tables = (path for path in folder.glob("[!.]*") if ending_of(path) in TABLE_ENDINGS)
    return tuple(sorted(path for path in tables if _split_of_table(path) == split and not path.is_dir()))


def _split_of_table(file: Path) -> str:
    """Return what a table is for by its name; nothing where it does not say it, as trainingcentre.csv does not."""
    return _split_of_word(re.split(r"[-_.\d]", file.name)[0])


def _split_of_word(word: str) -> str:
    """Return "train", "test" or "val"; nothing for a word that means none of them."""
    found = _SPLIT_WORDS.fullmatch(word)
    return (found[1] or found["valid"]).lower() if found else ""


_Layout = tuple[Kind, tuple[str, ...]]
"""What a file is, and the columns that its name and the folders above it give."""


def _files_in_folders(name: str, place: Path) -> Location | None:
    """Find tables or images whose folders say all else of them, also below folders of splits."""
    found = defaultdict[str, dict[Path, _Layout]](dict)
    for path in _paths_below(place):
        folders = path.relative_to(place).parts[:-1]
        split = _split_of_word(folders[0]) if folders else ""
        if layout := _layout(path, folders[1:] if split else folders):
            found[split][path] = layout
    train = found["train"] or found[""]
    if not train:
        return None
    first, (kind, columns) = next(iter(train.items()))
    # Without a folder for training, those of other splits would be trained on or left out.
    misnamed = [path for path in train if kind == "tables" and _split_of_table(path)]
    misnamed += [] if found["train"] else [*found["test"], *found["val"]]
    if misnamed:
        raise DataError(
            f"{place} holds {misnamed[0].relative_to(place)}, the name of a split and not of a client or a class; "
            "expected train.csv, train-*.parquet or a folder train, and test samples named alike beside it"
        )
    for path, layout in (train | found["test"]).items():
        if layout != train[first]:
            raise DataError(
                f"{place} holds {first.relative_to(place)} and {path.relative_to(place)}; expected tables or images, "
                "in folders alike for all of them; move the others elsewhere"
            )
    # A single column names the clients, unless it says something else.
    clients = [column for column in columns if column not in (SPLIT_COLUMN, *LABEL_COLUMNS)]
    client_column = clients[0] if len(clients) == 1 else ""
    return Location(name, None, tuple(train), tuple(found["test"]), kind, client_column, place)


def _layout(path: Path, folders: Sequence[str]) -> _Layout | None:
    """Return the layout of a file in some folders; None for what is not read."""
    if ending_of(path) in IMAGE_ENDINGS and len(folders) in (1, 2):
        return "images", (CLIENT_COLUMN, "label")[-len(folders) :]
    if ending_of(path) in TABLE_ENDINGS and all("=" in folder for folder in folders) and not path.is_dir():
        return "tables", tuple(unquote(folder).split("=")[0] for folder in folders) or (CLIENT_COLUMN,)
    return None


def _check_files(location: Location) -> None:
    """Refuse what is no file, two tables of one name such as one beside its compressed copy, and missing shards."""
    of_names: dict[Path, Path] = {}
    for files in (location.train, location.test):
        for file in files:
            # To open a pipe may wait without an end.
            if reason := file_problem(file):
                raise DataError(f"{file} is no readable file ({reason}); copy or download it again")
            other = of_names.setdefault(file.parent / name_of(file), file)
            if other != file and location.kind == "tables":
                raise DataError(f"{file.parent} holds {other.name} and {file.name}; expected one file of each name")
            if (shard := _SHARD.search(file.name)) and len(files) != int(shard[1]):
                raise DataError(
                    f"{file.parent} holds {len(files)} of the {int(shard[1])} files that {file.name} names; copy or "
                    "download the folder again"
                )


def _paths_below(folder: Path) -> list[Path]:
    """Return what is below a folder and not hidden, in order, as deep as images may be.

    Hidden files are left out: macOS and editors leave some beside the files of a user.
    """
    return sorted(path for depth in range(1, _DEPTHS + 1) for path in folder.glob("/".join(["[!.]*"] * depth)))


def _unread(place: Path, read: Sequence[Path]) -> tuple[str, ...]:
    """Return a line about files below a place that may hold data too and are not read; nothing without such files."""
    paths = [path for path in _paths_below(place) if path.is_file() and not _NOTES.match(path.name)]
    found = [path.relative_to(place).as_posix() for path in sorted({*paths} - {*read})]
    if not found:
        return ()
    return (
        f"{place} holds files that are not read: {listed(found, 3)}. Data end with "
        f"{', '.join((*TABLE_ENDINGS, *IMAGE_ENDINGS))}, and lie in folders as those that are read do; move other "
        "files elsewhere",
    )
