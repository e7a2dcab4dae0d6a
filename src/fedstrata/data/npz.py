"""Read ``.npz`` files of numpy, some rows at a time. They may be hostile, so sizes that they declare are checked."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

import numpy as np
import pyarrow as pa

from fedstrata.base.errors import DataError
from fedstrata.base.limits import MIB, ZIP_DIRECTORY_BYTES, expansion_problem
from fedstrata.data.dataset import Split
from fedstrata.data.tables import Source, tensors

_NAMES = {"x": ("x", "inputs"), "y": ("y", "labels")}
"""The names that the arrays of inputs and of classes may have."""

_RESERVED = {name + ending for names in _NAMES.values() for name in names for ending in ("", "_test")}

_BLOCK_BYTES = 16 * MIB
"""The bytes of an array that are read at a time."""


@dataclass(frozen=True, eq=False)
class ArchiveSource(Source):
    """The arrays of one split in a ``.npz`` file.

    They are ``x`` or ``inputs``, (samples, channels, ...) numbers, and ``y`` or ``labels``, (samples,) integers, texts
    or numbers, or (samples, outputs) numbers. Every other array is a further column, (samples,). Those of the test
    split have the same names with ``_test`` appended.

    Attributes:
        split: The split.
    """

    split: Split

    @cached_property
    def schema(self) -> Any:
        """Return the ``pyarrow.Schema``: of a column ``x`` of tensors, a column ``y``, and further columns.

        Raises:
            DataError: When an array is missing or does not fit.
        """
        return pa.schema({name: self._column(name, array[:1]).type for name, array in self._arrays.items()})

    def batches(self, columns: list[str], *, last: bool = False) -> Iterator[Any]:
        """Yield the rows."""
        arrays = [self._arrays[name] for name in columns]
        rows = max(1, _BLOCK_BYTES // max(array[0].nbytes for array in arrays))
        for start in range(0, len(arrays[0]), rows):
            blocks = [self._column(name, self._arrays[name][start : start + rows]) for name in columns]
            yield pa.RecordBatch.from_arrays(blocks, columns)

    def _column(self, name: str, rows: np.ndarray) -> Any:
        """Return rows as a column, in the order of bytes of this machine."""
        return tensors(rows.astype(rows.dtype.newbyteorder("="), copy=False), f"{self.place}: {name}")

    @cached_property
    def _arrays(self) -> dict[str, np.ndarray]:
        """Return all arrays of the split by their names without ``_test``. They are in files that are mapped."""
        ending = "_test" if self.split == "test" else ""
        with _opened(Path(self.place)) as archive, TemporaryDirectory() as folder:
            members = {name.removesuffix(".npy"): name for name in archive.namelist()}
            given = {"x": self._pick(members, "x")}
            for name in members:
                is_test_of = name.removesuffix("_test") if name.endswith("_test") else None
                if name not in _RESERVED and is_test_of not in members and name + ending in members:
                    given[name] = name + ending
            given["y"] = self._pick(members, "y")
            # What is mapped stays readable when its file is removed.
            files = {name: archive.extract(members[array], folder) for name, array in given.items()}
            arrays = {name: np.load(file, mmap_mode="r", allow_pickle=False) for name, file in files.items()}
        x, y = arrays["x"], arrays["y"]
        if x.dtype.kind not in "iuf" or x.ndim < 2 or min(x.shape) < 1:
            raise DataError(
                f"{self.place}: {given['x']} is {x.dtype} {x.shape}; expected numbers, (rows, channels, ...)"
            )
        if y.shape[1:] == (1,) and y.dtype.kind != "f":
            arrays["y"] = y[:, 0]
        for name, array in arrays.items():
            if array.shape[:1] != x.shape[:1] or (array.shape[1:] and name not in _NAMES):
                raise DataError(
                    f"{self.place}: {given[name]} is {array.dtype} {array.shape}; expected a value for each of the "
                    f"{x.shape[0]} rows of {given['x']}"
                )
        return arrays

    def _pick(self, names: Collection[str], role: str) -> str:
        """Return the one array with one of the names of a role."""
        wanted = [name + ("_test" if self.split == "test" else "") for name in _NAMES[role]]
        found = [name for name in wanted if name in names]
        if len(found) != 1:
            raise DataError(
                f"{self.place}: expected one array {' or '.join(wanted)}, found {', '.join(names) or 'none'}"
            )
        return found[0]


def has_test(file: Path) -> bool:
    """Return whether a file has test samples."""
    with _opened(file) as archive:
        return any(name.removesuffix(".npy") in _RESERVED and "_test" in name for name in archive.namelist())


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
