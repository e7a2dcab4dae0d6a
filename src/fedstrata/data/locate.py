"""Where the files of a data set are, found before anything heavy is imported."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedstrata.data.catalogue import SOURCES, Source
from fedstrata.data.hub import snapshot
from fedstrata.data.zipped import opened_zip
from fedstrata.errors import DataError
from fedstrata.limits import irregular
from fedstrata.quoting import shown

Split = Literal["train", "test"]
_SHARD = re.compile(r"-\d+-of-(\d+)(-\w+)?\.parquet$")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class Location:
    """A data set and the files that hold it.

    Attributes:
        name: as the experiment gave it.
        source: what the catalogue knows of it; None for a folder, a .npz file or a hub id of the user's own.
        kind: how the files are read; ``embedded`` has none.
        train: files of the training split, shards in order.
        test: files of the test split; empty where there is none.
    """

    name: str
    source: Source | None
    kind: Literal["embedded", "parquet", "npz"]
    train: tuple[Path, ...] = ()
    test: tuple[Path, ...] = ()


def find(name: str, root: str | Path | None = None) -> Location:
    """Find the files of a data set.

    Known names are looked for in ``root/<name>``, in ``$FEDSTRATA_DATA/<name>`` and in the Hugging Face hub's
    cache, and are downloaded last, if the hub's client is installed. Other names are a folder with
    ``train-*.parquet`` (in itself, in its ``data`` or in its only other folder that has some), a ``.npz`` file,
    either also below the two roots, or a hub id ``owner/set``.

    Args:
        name: ``data.name`` of an experiment.
        root: ``data.root``: the folder that holds a folder per data set.

    Raises:
        DataError: when nothing is there, a shard is missing, or a folder holds several sets.
    """
    source = SOURCES.get(name)
    if name == "digits":
        return Location(name, source, "embedded")
    if problem := _unusable(name, root):
        raise DataError(problem)
    # A known name never means a folder of that name that happens to be in the working directory.
    places = [] if source else [Path(name).expanduser()]
    places += [Path(root).expanduser() / name] if root else []
    places += [Path(os.environ["FEDSTRATA_DATA"]).expanduser() / name] if os.environ.get("FEDSTRATA_DATA") else []
    for place in places:
        if place.suffix == ".npz" and place.exists():
            _regular(place)
            return _npz(name, place)
        if location := _folder(name, source, place):
            return location
    hub = source.hub if source else (name if _HUB_ID.fullmatch(name) else None)
    folder = source.folder if source else None
    failure = ""
    if hub:
        try:
            if location := snapshot(hub, folder, lambda place: _copy(name, source, place)):
                return location
            failure = f"the hub's {hub} holds no train-*.parquet"
        except DataError as error:
            failure = str(error)
    raise DataError(_not_found(name, source, places, failure))


def _unusable(name: str, root: str | Path | None) -> str:
    """Say why a name or a root can be no path; empty when they can."""
    for text in (name, str(root or "")):
        if "\0" in text:
            return f"{shown(text)} holds a NUL character; expected a name or a path"
        try:
            Path(text).expanduser()
        except RuntimeError as error:
            return f"{shown(text)} is no path ({error}); write the home folder out"
    return ""


def _regular(file: Path) -> None:
    """Refuse what is no regular file: to open a pipe may wait without an end.

    Raises:
        DataError: naming what it is.
    """
    if reason := irregular(file):
        raise DataError(f"{file} is no readable file ({reason}); copy or download it again")


def _npz(name: str, file: Path) -> Location:
    with opened_zip(file) as archive:
        arrays = set(archive.namelist())
    test = (file,) if arrays & {"x_test.npy", "inputs_test.npy"} else ()
    return Location(name, None, "npz", (file,), test)


def _folder(name: str, source: Source | None, place: Path) -> Location | None:
    """The data set in a folder, or None when the folder holds no training file."""
    preferred = (place, place / "data", place / source.folder if source and source.folder else place)
    for folder in preferred:
        if train := _shards(folder, "train"):
            return Location(name, source, "parquet", train, _shards(folder, "test"))
    inner = sorted(folder for folder in place.glob("*/") if _shards(folder, "train"))
    if len(inner) > 1:
        found = ", ".join(folder.name for folder in inner)
        raise DataError(f"{place} holds several data sets ({found}); give the path of one of them as data.name")
    return _folder(name, source, inner[0]) if inner else None


def _copy(name: str, source: Source | None, place: Path) -> Location | None:
    """The data set in a copy of a hub repository; all that the catalogue knows of have a test split."""
    location = _folder(name, source, place)
    return None if location and source and not location.test else location


def _shards(folder: Path, split: Split) -> tuple[Path, ...]:
    files = tuple(sorted([*folder.glob(f"{split}.parquet"), *folder.glob(f"{split}-*.parquet")]))
    for file in files:
        _regular(file)
        if (match := _SHARD.search(file.name)) and len(files) != int(match[1]):
            raise DataError(
                f"{folder} holds {len(files)} of the {int(match[1])} {split} files that {file.name} speaks of; "
                "copy or download the folder again"
            )
    return files


def _not_found(name: str, source: Source | None, places: list[Path], failure: str) -> str:
    looked = " and ".join(str(place) for place in places)
    parts = [f"data set {name!r} not found"]
    parts += [f"no train-*.parquet in {looked}" if looked else "neither data.root nor FEDSTRATA_DATA is set"]
    parts += [failure] if failure else []
    if source:
        parts += [f"set data.root or FEDSTRATA_DATA to the folder that holds {name}/"]
    else:
        parts += [f"known names are {', '.join(SOURCES)}; others are a folder, a .npz file or a hub id owner/set"]
    return "; ".join(parts)
