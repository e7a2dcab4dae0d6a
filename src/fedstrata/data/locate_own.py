"""Find data of a user's own in the forms that people have: tables, a file per client, folders of images."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from fedstrata.data.column_roles import CLIENT_COLUMN
from fedstrata.data.location import Location
from fedstrata.errors import DataError

TABLE_SUFFIXES = (".csv", ".parquet")
"""The endings of files with a table."""

_CLIENT_SUFFIXES = (*TABLE_SUFFIXES, ".npz")
"""The endings of files that may hold the data of a client."""

_SPLIT_NAME = re.compile(r"(train|test)(-|$)")
"""The names of files that hold a split and not a client."""

_DEPTHS = 4
"""The levels of folders in which images are looked for; an image belongs at the second or third."""

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg")
"""The endings of files with an image."""


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
    if place.suffix in TABLE_SUFFIXES and place.is_file():
        return Location(name, None, (place,), kind="table")
    if not place.is_dir():
        return None
    if train := tuple(sorted(place.glob("train*.csv"))):
        return Location(name, None, train, tuple(sorted(place.glob("test*.csv"))), kind="table")
    return _client_files(name, place) or _images(name, place)


def _client_files(name: str, place: Path) -> Location | None:
    """Find a folder with a file per client."""
    split = (place / "train").is_dir()
    train = _data_files(place / "train" if split else place)
    if not train:
        return None
    splits = [file.name for file in train if _SPLIT_NAME.match(file.stem)]
    if splits:
        raise DataError(
            f"{place} holds {splits[0]}, which is the name of a split and not of a client; expected train-*.parquet or "
            "train.csv, and test files of the same kind beside it"
        )
    test = _data_files(place / "test") if split else ()
    kinds = sorted({file.suffix for file in (*train, *test)})
    if len(kinds) > 1:
        raise DataError(f"{place} holds {' and '.join(kinds)} files; expected a file of one kind for each client")
    strange = [file.name for file in test if file.name not in {other.name for other in train}]
    if strange:
        raise DataError(f"{place / 'test'} holds {strange[0]}, but {place / 'train'} does not; name both alike")
    return Location(name, None, train, test, kind="clients", client_column=CLIENT_COLUMN)


def _data_files(folder: Path) -> tuple[Path, ...]:
    """Return the files in a folder that may hold the data of a client, in the order of their names."""
    if not folder.is_dir():
        return ()
    return tuple(sorted(file for file in folder.iterdir() if file.suffix in _CLIENT_SUFFIXES and file.is_file()))


def _images(name: str, place: Path) -> Location | None:
    """Find a folder of images."""
    split = (place / "train").is_dir()
    train = _image_files(place / "train" if split else place)
    if not train:
        return None
    test = _image_files(place / "test") if split else ()
    base = len(place.parts) + split
    depths = {len(file.parts) - base for file in (*train, *test)}
    if depths not in ({2}, {3}):
        raise DataError(
            f"{place}: expected images at <class>/<image> or <client>/<class>/<image> throughout, found some at depths "
            f"{' and '.join(str(depth) for depth in sorted(depths))}, such as {train[0].relative_to(place)}"
        )
    return Location(name, None, train, test, kind="images", client_column=CLIENT_COLUMN if depths == {3} else "")


def _image_files(folder: Path) -> tuple[Path, ...]:
    """Return the images below a folder, in the order of their paths. Deeper folders are of something else."""
    found = (file for depth in range(1, _DEPTHS + 1) for file in folder.glob("/".join("*" * depth)))
    return tuple(sorted(file for file in found if file.suffix.lower() in IMAGE_SUFFIXES and file.is_file()))


def client_of(file: Path, location: Location) -> str:
    """Return the client whose data a file holds: the name of the file, or of the folder above that of the class."""
    return file.parent.parent.name if location.kind == "images" else file.stem


def classes_of(files: Sequence[Path]) -> list[str]:
    """Return the class of each image: the name of its folder."""
    return [file.parent.name for file in files]
