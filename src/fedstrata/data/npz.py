"""Read ``.npz`` files of numpy, some rows at a time. They may be hostile, so sizes that they declare are checked."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

import numpy as np
import pyarrow as pa

from fedstrata.base.errors import DataError
from fedstrata.base.limits import MIB, NPY_HEADER_BYTES, ZIP_DIRECTORY_BYTES, expansion_problem, memory_problem
from fedstrata.data.dataset import Split
from fedstrata.data.tables import FileSource, tensors

_NAMES = {"x": ("x", "inputs"), "y": ("y", "labels")}
"""The names that the arrays of inputs and of classes may have."""

_RESERVED = {name + ending for names in _NAMES.values() for name in names for ending in ("", "_test")}

_BLOCK_BYTES = 16 * MIB
"""The bytes of an array that are read at a time."""


@dataclass(frozen=True)
class _Array:
    """What the header of an array says.

    Attributes:
        member: The name of its file in the archive.
        start: The bytes of the header.
        shape: The shape, (rows, ...).
        order: "C" for numbers row after row, "F" for numbers column after column.
        dtype: The type of a number or text.
    """

    member: str
    start: int
    shape: tuple[int, ...]
    order: Any
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, archive: ZipFile, member: str) -> _Array:
        """Read a header.

        Raises:
            ValueError: When it is none, or the array does not have the size that the archive declares.
        """
        with archive.open(member) as stream:
            header = io.BytesIO(stream.read(NPY_HEADER_BYTES))
        first = np.lib.format.read_magic(header) == (1, 0)
        read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(header, max_header_size=NPY_HEADER_BYTES)
        stored = archive.getinfo(member).file_size - header.tell()
        # Any number of texts without characters takes no bytes.
        if dtype.hasobject or not dtype.itemsize or prod(shape) * dtype.itemsize != stored:
            raise ValueError(f"{member} has {stored:,} bytes; expected {dtype} {shape}, and no objects")
        return cls(member, header.tell(), shape, "F" if fortran else "C", dtype)

    @property
    def row_bytes(self) -> int:
        """Return the bytes of a row."""
        return prod(self.shape[1:]) * self.dtype.itemsize

    def blocks(self, archive: ZipFile, rows: int) -> Iterator[np.ndarray]:
        """Yield so many rows after the other."""
        # Column after column, the numbers of a row are found in the whole array alone.
        rows_at_once = rows if self.order == "C" else self.shape[0]
        with archive.open(self.member) as stream:
            stream.seek(self.start)
            for start in range(0, self.shape[0], rows_at_once):
                shape = (min(rows_at_once, self.shape[0] - start), *self.shape[1:])
                content = stream.read(shape[0] * self.row_bytes)
                read = np.frombuffer(content, self.dtype).reshape(shape, order=self.order)
                yield from (read[first : first + rows] for first in range(0, len(read), rows))


@dataclass(frozen=True)
class ArchiveSource(FileSource):
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
        rows = {name: np.zeros((1, *array.shape[1:]), array.dtype) for name, array in self._arrays.items()}
        return pa.schema({name: self._column(name, row).type for name, row in rows.items()})

    def batches(self, columns: list[str], *, last: bool = False) -> Iterator[Any]:
        """Yield the rows."""
        arrays = [self._arrays[name] for name in columns]
        rows = max(1, _BLOCK_BYTES // max(array.row_bytes for array in arrays))
        with open_archive(self.file) as archive:
            for blocks in zip(*(array.blocks(archive, rows) for array in arrays), strict=True):
                yield pa.RecordBatch.from_arrays(list(map(self._column, columns, blocks)), columns)

    def _column(self, name: str, rows: np.ndarray) -> Any:
        """Return rows as a column, in the order of bytes of this machine."""
        return tensors(rows.astype(rows.dtype.newbyteorder("="), copy=False), f"{self.file}: {name}")

    @cached_property
    def _arrays(self) -> dict[str, _Array]:
        """Return all arrays of the split by their names without ``_test``."""
        with open_archive(self.file) as archive:
            members = {name.removesuffix(".npy"): name for name in archive.namelist()}
            ending = "_test" if self.split == "test" else ""
            given = {"x": self._pick(members, "x")}
            for name in members:
                is_test_of = name.removesuffix("_test") if name.endswith("_test") else None
                if name not in _RESERVED and is_test_of not in members and name + ending in members:
                    given[name] = name + ending
            given["y"] = self._pick(members, "y")
            arrays = {name: _Array.of(archive, members[array]) for name, array in given.items()}
        x, y = arrays["x"], arrays["y"]
        if x.dtype.kind not in "iuf" or len(x.shape) < 2 or min(x.shape) < 1:
            raise DataError(
                f"{self.file}: {given['x']} is {x.dtype} {x.shape}; expected numbers, (rows, channels, ...)"
            )
        if y.shape[1:] == (1,) and y.dtype.kind != "f":
            arrays["y"] = replace(y, shape=y.shape[:1])
        for name, array in arrays.items():
            if array.shape[:1] != x.shape[:1] or (array.shape[1:] and name not in _NAMES):
                raise DataError(
                    f"{self.file}: {given[name]} is {array.dtype} {array.shape}; expected a value for each of the "
                    f"{x.shape[0]} rows of {given['x']}"
                )
        # All but inputs that are stored row after row is in memory.
        held = [array for name, array in arrays.items() if name != "x" or array.order == "F"]
        if problem := memory_problem(sum(array.shape[0] * array.row_bytes for array in held), self.stored):
            raise DataError(f"{self.file}: {problem}")
        return arrays

    def _pick(self, names: Collection[str], role: str) -> str:
        """Return the one array with one of the names of a role."""
        wanted = [name + ("_test" if self.split == "test" else "") for name in _NAMES[role]]
        found = [name for name in wanted if name in names]
        if len(found) != 1:
            raise DataError(
                f"{self.file}: expected one array {' or '.join(wanted)}, found {', '.join(names) or 'none'}"
            )
        return found[0]


def has_test(file: Path) -> bool:
    """Return whether a file has test samples."""
    with open_archive(file) as archive:
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
def open_archive(file: Path) -> Iterator[ZipFile]:
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
        with ZipFile(file) as archive:
            yield archive
    except DataError:
        raise
    # numpy and zipfile raise errors of a dozen types for files that are no archive of arrays, or half of one.
    except Exception as error:
        reason = str(error) or "out of memory"
        raise DataError(f"{file} is no readable .npz file ({reason}); write it with numpy.savez") from error
