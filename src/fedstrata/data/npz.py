"""Read ``.npz`` files of numpy. They may be hostile, so the sizes that they declare are checked."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import numpy as np
import pyarrow as pa
from numpy.lib.npyio import NpzFile

from fedstrata.base.errors import DataError
from fedstrata.base.limits import (
    MIB,
    NPY_HEADER_BYTES,
    ZIP_DIRECTORY_BYTES,
    ZIP_MEMBERS,
    expansion_problem,
    memory_limit,
    memory_problem,
)
from fedstrata.data.dataset import Split
from fedstrata.data.tables import FileSource, tensors

_NAMES = {"x": ("x", "inputs"), "y": ("y", "labels")}
"""The names that the arrays of inputs and of classes may have."""

_BLOCK_BYTES = 16 * MIB
"""The bytes of an array that are read at a time."""


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
        first = {"x": next(self._inputs())[:1], **self._others}
        return pa.schema({name: self._column(name, array).type for name, array in first.items()})

    def batches(self, columns: list[str], *, last: bool = False) -> Iterator[Any]:
        """Yield the rows."""
        others = {name: self._column(name, self._others[name]) for name in columns if name != "x"}
        start = 0
        for block in self._inputs() if "x" in columns else [self._others["y"]]:
            rows = {name: column[start : start + len(block)] for name, column in others.items()}
            if "x" in columns:
                rows["x"] = self._column("x", block)
            yield pa.RecordBatch.from_pydict({name: rows[name] for name in columns})
            start += len(block)

    def _column(self, name: str, array: np.ndarray) -> Any:
        return tensors(array, f"{self.file}: {name}")

    @cached_property
    def _others(self) -> dict[str, np.ndarray]:
        """Return all arrays of the split but the inputs, by their names without ``_test``."""
        ending = "_test" if self.split == "test" else ""
        with open_archive(self.file) as archive:
            given = {name: name + ending for name in _columns(archive.files) if name + ending in archive.files}
            given["y"] = self._pick(archive.files, "y")
            arrays = _read(self.file, archive, given)
            x = self._pick(archive.files, "x")
            samples = _header(archive, x)[0][0]
        if arrays["y"].ndim == 2 and arrays["y"].shape[1] == 1 and arrays["y"].dtype.kind != "f":
            arrays["y"] = arrays["y"][:, 0]
        for name, array in arrays.items():
            if name == "y" and len(array) != samples:
                raise DataError(
                    f"{self.file}: {x} has {samples} rows and {given[name]} has {len(array)}; expected as many"
                )
            if array.shape[:1] != (samples,) or (array.ndim > 1 and name != "y"):
                raise DataError(
                    f"{self.file}: column {given[name]} is {_describe(array)}; expected one value per sample "
                    f"({samples},)"
                )
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

    def _inputs(self) -> Iterator[np.ndarray]:
        """Yield the inputs, some samples at a time."""
        with open_archive(self.file) as archive:
            x = self._pick(archive.files, "x")
            shape, fortran, dtype = _header(archive, x)
            if dtype.kind not in "iuf" or len(shape) < 2 or min(shape) < 1:
                raise DataError(f"{self.file}: {x} is {dtype} {shape}; expected numbers, (samples, channels, ...)")
            if fortran:  # The numbers of a sample lie far from each other.
                yield _read(self.file, archive, {"x": x})["x"]
                return
            size = dtype.itemsize * prod(shape[1:])
            step = max(1, _BLOCK_BYTES // size)
            with _member(archive, x) as member:
                _read_header(member)
                for start in range(0, shape[0], step):
                    count = min(step, shape[0] - start)
                    rows = np.frombuffer(member.read(count * size), dtype).reshape(count, *shape[1:])
                    yield rows.astype(dtype.newbyteorder("="), copy=False)


def has_test(file: Path) -> bool:
    """Return whether a file has test samples."""
    with open_archive(file) as archive:
        return any(f"{name}_test" in archive.files for names in _NAMES.values() for name in names)


def _columns(names: Collection[str]) -> list[str]:
    """Return the names of further columns."""
    reserved = {name for both in _NAMES.values() for name in both}
    own = [name for name in names if name.removesuffix("_test") not in reserved]
    return [name for name in own if name.removesuffix("_test") == name or name.removesuffix("_test") not in own]


def _member(archive: NpzFile, name: str) -> Any:
    """Open the file of an array in an archive."""
    assert archive.zip is not None  # as long as it is open
    return archive.zip.open(name if name in archive.zip.namelist() else f"{name}.npy")


def _header(archive: NpzFile, name: str) -> Any:
    """Return the shape of an array, whether it lies column after column, and its type."""
    with _member(archive, name) as member:
        return _read_header(member)


def _read_header(member: Any) -> Any:
    """Read what `_header` returns."""
    first = np.lib.format.read_magic(member) == (1, 0)
    read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(member, max_header_size=NPY_HEADER_BYTES)
    if not shape or dtype.hasobject:
        raise ValueError("it holds an array without rows, or of objects")
    return shape, fortran and len(shape) > 1, dtype


def _read(file: Path, archive: NpzFile, names: dict[str, str]) -> dict[str, np.ndarray]:
    """Read some arrays whole, by what they are called here.

    Raises:
        DataError: When they take too much memory, or the file is broken.
    """
    assert archive.zip is not None  # as long as it is open
    size = sum(
        member.file_size for member in archive.zip.infolist() if member.filename.removesuffix(".npy") in names.values()
    )
    if size > memory_limit():
        raise DataError(f"{file}: {memory_problem(size, size)}")
    arrays = {name: archive[given] for name, given in names.items()}
    for name, array in arrays.items():
        # numpy returns the bytes of what is no array. Any number of texts without characters takes no bytes.
        if not isinstance(array, np.ndarray) or array.itemsize == 0 or array.dtype.hasobject:
            raise ValueError(f"{name!r} is no array of plain numbers or texts")
    return {name: array.astype(array.dtype.newbyteorder("="), copy=False) for name, array in arrays.items()}


def _describe(array: np.ndarray) -> str:
    return f"{array.dtype} {array.shape}"


class _LimitedFile(io.FileIO):
    """A file of which zipfile cannot read a large directory, or numpy a large header, in one piece."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Read at most `size` bytes.

        Raises:
            BadZipFile: When more than `ZIP_DIRECTORY_BYTES` are asked for.
        """
        if size is not None and size > ZIP_DIRECTORY_BYTES:
            raise BadZipFile(f"a part of it has {size:,} bytes; expected at most {ZIP_DIRECTORY_BYTES:,}")
        return super().read(size) or b""


@contextmanager
def open_archive(file: Path) -> Iterator[NpzFile]:
    """Open an archive of numpy arrays.

    Raises:
        DataError: When it is no such archive, or its directory declares arrays that are too many or far larger than
            what is stored. Also when an array that is read inside the block is broken.
    """
    try:
        with _LimitedFile(file) as source:
            with ZipFile(source) as archive:
                members = archive.infolist()
            if problem := _directory_problem(members, file.stat().st_size):
                raise DataError(f"{file}: {problem}")
            source.seek(0)
            with np.load(source, allow_pickle=False, max_header_size=NPY_HEADER_BYTES) as arrays:
                yield arrays
    except DataError:
        raise
    # numpy and zipfile raise errors of a dozen types for files that are no archive of arrays, or half of one.
    except Exception as error:
        reason = str(error) or "out of memory"
        raise DataError(f"{file} is no readable .npz file ({reason}); write it with numpy.savez") from error


def _directory_problem(members: list[ZipInfo], stored: int) -> str:
    """Say what is wrong with the members of an archive of `stored` bytes; empty when nothing is."""
    if len(members) > ZIP_MEMBERS:
        return f"it holds {len(members):,} arrays; expected at most {ZIP_MEMBERS:,}"
    for member in members:
        # zipfile limits what it decompresses at a time in these two alone.
        if member.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
            return f"{member.filename} is compressed in another way; write it with numpy.savez or savez_compressed"
    return expansion_problem(sum(member.file_size for member in members), stored)
