"""Zip files that may be hostile: what the directory says is checked before a member is read."""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from tokenize import TokenError
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import numpy as np
from numpy.lib import format as npy

from fedstrata.errors import DataError
from fedstrata.limits import NPY_HEADER_BYTES, ZIP_DIRECTORY_BYTES, ZIP_MEMBERS, too_much

ENCRYPTED = 0x1
"""The flag of a member that needs a password."""

BROKEN = (
    ValueError,
    OSError,
    EOFError,
    RuntimeError,
    NotImplementedError,
    SyntaxError,
    TokenError,
    BadZipFile,
    zlib.error,
    MemoryError,
)
"""What numpy and zipfile raise for files that are no archive of arrays, or half of one."""


class _Source(io.FileIO):
    """A file of which zipfile cannot read a large directory: it reads the directory in one piece."""

    limited = True

    def read(self, size: int | None = -1, /) -> bytes:
        """Read at most `size` bytes.

        Raises:
            BadZipFile: when more than `ZIP_DIRECTORY_BYTES` are asked for while the directory is read.
        """
        if self.limited and size is not None and size > ZIP_DIRECTORY_BYTES:
            raise BadZipFile(f"its directory has {size:,} bytes; expected at most {ZIP_DIRECTORY_BYTES:,}")
        return super().read(size) or b""


@contextmanager
def opened_zip(file: Path) -> Iterator[ZipFile]:
    """Open an archive of numpy arrays whose directory says nothing that is hostile.

    Raises:
        DataError: when it is no zip file, has too many members or a member that is encrypted, no array, there twice or
            far larger than what is stored; and when a member that is read inside the block is broken.
    """
    try:
        with _Source(file) as source, ZipFile(source) as archive:
            source.limited = False
            members = archive.infolist()
            if problem := _problem(members, os.fstat(source.fileno()).st_size):
                raise DataError(f"{file}: {problem}")
            yield archive
    except BROKEN as error:
        reason = str(error) or "out of memory"
        raise DataError(f"{file} is no readable .npz file ({reason}); write it with numpy.savez") from error


def _problem(members: list[ZipInfo], stored: int) -> str:
    """Say what is wrong with the members of an archive of so many bytes; empty when nothing is."""
    if len(members) > ZIP_MEMBERS:
        return f"it holds {len(members):,} arrays; expected at most {ZIP_MEMBERS:,}"
    names = {member.filename for member in members}
    if len(names) < len(members):
        return "it holds an array twice; write it with numpy.savez"
    for member in members:
        if member.flag_bits & ENCRYPTED:
            return f"{member.filename} is encrypted; expected no password, so write it with numpy.savez"
        if not member.filename.endswith(".npy"):
            return f"it holds {member.filename!r}; expected arrays alone, as numpy.savez writes them"
        if member.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
            return f"{member.filename} is compressed in another way; write it with numpy.savez or savez_compressed"
    return too_much(sum(member.file_size for member in members), stored)


def read_array(archive: ZipFile, name: str) -> np.ndarray:
    """Read an array, if its header says what its member holds.

    Args:
        archive: from `opened_zip`.
        name: of the array, without ``.npy``.

    Raises:
        ValueError: when the header is too long, the array is of objects or records, or its size is not the member's.
    """
    member = archive.getinfo(f"{name}.npy")
    with archive.open(member) as stream:
        start = io.BytesIO(stream.read(NPY_HEADER_BYTES))
    version = npy.read_magic(start)
    # The length of a header is believed before it is checked, and may be four gigabytes in version 2.
    width = 2 if version == (1, 0) else 4
    length = int.from_bytes(start.read(width), "little")
    if version not in ((1, 0), (2, 0)) or length + start.tell() > NPY_HEADER_BYTES:
        raise ValueError(f"{member.filename} has a header of version {version} and {length:,} bytes")
    start.seek(0)
    npy.read_magic(start)
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read_header(start, max_header_size=NPY_HEADER_BYTES)
    if dtype.hasobject or dtype.names is not None or dtype.subdtype is not None:
        raise ValueError(f"{member.filename} holds {dtype}")
    # Texts without characters take no bytes, however many they are.
    if min(shape, default=0) < 0 or dtype.itemsize == 0:
        raise ValueError(f"{member.filename} holds {dtype} of shape {shape}")
    if start.tell() + prod(shape) * dtype.itemsize != member.file_size:
        raise ValueError(f"{member.filename} has {member.file_size:,} bytes; its header says {dtype} of shape {shape}")
    with archive.open(member) as stream:
        array: np.ndarray = npy.read_array(stream, allow_pickle=False, max_header_size=NPY_HEADER_BYTES)
    return array
