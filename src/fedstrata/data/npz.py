"""Read ``.npz`` files of numpy. They may be hostile, so sizes that they declare are checked."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

import numpy as np
import pyarrow as pa

from fedstrata.base.errors import DataError
from fedstrata.base.limits import ZIP_DIRECTORY_BYTES, expansion_problem
from fedstrata.data.tables import MemoryTable, tensors

_TEST = "_test"
"""Ends the name of an array of test samples."""


def read_archive(file: Path) -> list[MemoryTable]:
    """Return the arrays of a ``.npz`` file as a table to train on, and one to test on if it has some for that.

    Every array is a column, (rows,) or (rows, channels, ...). Test samples have the same names with ``_test`` appended.
    Arrays of numbers are mapped from temporary files, unless the order of their axes or bytes is another one.

    Raises:
        DataError: When it is no such file, or its arrays have not as many rows.
    """
    columns = dict[str, Any]()
    with _opened(file) as archive, TemporaryDirectory() as folder:
        for member in archive.namelist():
            name = member.removesuffix(".npy")
            # What is mapped stays readable when its file is removed.
            array = np.load(archive.extract(member, folder), mmap_mode="r", allow_pickle=False)
            columns[name] = tensors(array, f"{file}: {name}")
        tests = {name: name + _TEST for name in columns if name + _TEST in columns}
        splits = [{name: name for name in columns if name not in tests.values()}, tests]
        return [
            MemoryTable(str(file), pa.table({name: columns[array] for name, array in split.items()}))
            for split in splits
            if split
        ]


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
