"""Read ``.npz`` files of numpy. They may be hostile, so sizes that they declare are checked."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

import numpy as np
import pyarrow as pa

from fedstrata.base.errors import DataError
from fedstrata.base.limits import ZIP_DIRECTORY_BYTES, expansion_problem
from fedstrata.data.dataset import SPLITS, Split
from fedstrata.data.tables import MemorySource, tensors

_NAMES = {"x": ("x", "inputs"), "y": ("y", "labels")}
"""The names that the arrays of inputs and of classes may have."""

_RESERVED = {name + ending for names in _NAMES.values() for name in names for ending in ("", "_test")}


def read_archive(file: Path) -> list[MemorySource]:
    """Return the arrays of a ``.npz`` file as a table to train on, and one to test on if it has some for that.

    They are ``x`` or ``inputs``, (samples, channels, ...) numbers, and ``y`` or ``labels``, (samples,) integers, texts
    or numbers, or (samples, outputs) numbers. Every other array is a further column, (samples,). Those of the test
    split have the same names with ``_test`` appended.

    Arrays of numbers are mapped from temporary files, unless the order of their axes or bytes is another one.

    Raises:
        DataError: When it is no such file, or an array is missing or does not fit.
    """
    with _opened(file) as archive:
        members = {name.removesuffix(".npy"): name for name in archive.namelist()}
        tested = any(name in _RESERVED and "_test" in name for name in members)
        return [MemorySource(str(file), _split(archive, members, split, str(file))) for split in SPLITS[: 1 + tested]]


def _split(archive: ZipFile, members: Mapping[str, str], split: Split, place: str) -> Any:
    """Return the arrays of a split as a ``pyarrow.Table``, by their names without ``_test``.

    Args:
        archive: The file.
        members: What each array is called in it.
        split: The split.
        place: Where it is, for messages.
    """
    ending = "_test" if split == "test" else ""
    given = {"x": _pick(members, "x", ending, place)}
    for name in members:
        is_test_of = name.removesuffix("_test") if name.endswith("_test") else None
        if name not in _RESERVED and is_test_of not in members and name + ending in members:
            given[name] = name + ending
    given["y"] = _pick(members, "y", ending, place)
    with TemporaryDirectory() as folder:
        # What is mapped stays readable when its file is removed.
        files = {name: archive.extract(members[array], folder) for name, array in given.items()}
        arrays = {name: np.load(path, mmap_mode="r", allow_pickle=False) for name, path in files.items()}
    x, y = arrays["x"], arrays["y"]
    if x.dtype.kind not in "iuf" or x.ndim < 2 or min(x.shape) < 1:
        raise DataError(f"{place}: {given['x']} is {x.dtype} {x.shape}; expected numbers, (rows, channels, ...)")
    if y.shape[1:] == (1,) and y.dtype.kind != "f":
        arrays["y"] = y[:, 0]
    for name, array in arrays.items():
        if array.shape[:1] != x.shape[:1] or (array.shape[1:] and name not in _NAMES):
            raise DataError(
                f"{place}: {given[name]} is {array.dtype} {array.shape}; expected a value for each of the "
                f"{x.shape[0]} rows of {given['x']}"
            )
    return pa.table({name: tensors(array, f"{place}: {given[name]}") for name, array in arrays.items()})


def _pick(names: Collection[str], role: str, ending: str, place: str) -> str:
    """Return the one array with one of the names of a role."""
    wanted = [name + ending for name in _NAMES[role]]
    found = [name for name in wanted if name in names]
    if len(found) != 1:
        raise DataError(f"{place}: expected one array {' or '.join(wanted)}, found {', '.join(names) or 'none'}")
    return found[0]


class _SmallReads(io.FileIO):
    """A file of which zipfile cannot read a large directory, which it reads in one piece."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Read at most `size` bytes.

        Raises:
            BadZipFile: When more than `ZIP_DIRECTORY_BYTES` are asked for.
        """
        if size is not None and size > ZIP_DIRECTORY_BYTES:
            raise BadZipFile(f"its directory has {size:,} bytes; expected at most {ZIP_DIRECTORY_BYTES:,}")
        return super().read(size) or b""


@contextmanager
def _opened(file: Path) -> Iterator[ZipFile]:
    """Open an archive of numpy arrays.

    Raises:
        DataError: When it is no such archive, or its directory declares arrays that are far larger than what is
            stored. Also when an array that is read inside the block is broken.
    """
    try:
        with _SmallReads(file) as source, ZipFile(source) as archive:
            members = archive.infolist()
            # zipfile limits what it decompresses at a time in these two alone.
            if any(member.compress_type not in (ZIP_STORED, ZIP_DEFLATED) for member in members):
                raise ValueError("an array is compressed in another way")
            if problem := expansion_problem(sum(member.file_size for member in members), file.stat().st_size):
                raise DataError(f"{file}: {problem}")
            yield archive
    except DataError:
        raise
    # numpy and zipfile raise errors of a dozen types for files that are no archive of arrays, or half of one.
    except Exception as error:
        reason = str(error) or "out of memory"
        raise DataError(f"{file} is no readable .npz file ({reason}); write it with numpy.savez") from error
