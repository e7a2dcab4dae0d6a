"""Inputs of samples in a file: written one block after the other, mapped into memory, and read when they are needed."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Self, TypeAlias
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from fedstrata.base.errors import DataError
from fedstrata.base.lazy_torch import torch
from fedstrata.base.limits import memory_limit
from fedstrata.data.column_roles import Memory

if TYPE_CHECKING:
    from torch import Tensor

BLOCK_SAMPLES = 4096
"""The largest number of samples that are read or converted at a time."""

_BLOCK_NUMBERS = 2**22
"""The largest number of numbers in them, unless one sample has more."""


@dataclass(frozen=True)
class InputFile:
    """A file that holds numbers and nothing else.

    Attributes:
        path: The file.
        dtype: The type of the numbers, as numpy writes it.
        shape: The shape of all inputs, (samples, ...).
    """

    path: Path
    dtype: str
    shape: tuple[int, ...]

    def __len__(self) -> int:
        """Return the number of samples."""
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Return the size of the file in bytes."""
        return np.dtype(self.dtype).itemsize * prod(self.shape)

    @cached_property
    def rows(self) -> NDArray[Any]:
        """Return all inputs, which are read from the file when they are looked at.

        Raises:
            DataError: When the file is not there, or has another size. It may lie on another machine.
        """
        try:
            if self.path.stat().st_size != self.nbytes:
                raise OSError(f"it has another size than {self.nbytes:,} bytes")
            return np.memmap(self.path, self.dtype, "r", shape=self.shape)
        except OSError as error:
            reason = error.strerror or str(error)
            raise DataError(
                f"{self.path}: expected the converted inputs of a data set ({reason}); run again to convert them, and "
                "on several machines let FEDSTRATA_CACHE be a folder that all of them see, or set data.memory = 'ram'"
            ) from error


@dataclass(frozen=True, eq=False)
class MappedInputs:
    """The inputs of a data set in a file. It has the properties of a tensor that are needed; what is read is a tensor.

    It can be sent to other processes, which map the same file: no input is copied.

    Attributes:
        file: The file.
        dtype: The type that inputs have when they are read.
        positions: The position of each sample in the file, (samples,) int64; None for all in order.
        side: The height and width to which images are resized when they are read; None where they are not.
    """

    file: InputFile
    dtype: torch.dtype
    positions: Tensor | None = None
    side: int | None = None

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.file) if self.positions is None else len(self.positions)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of all inputs, (samples, ...)."""
        sample = self.file.shape[1:]
        return (len(self), *(sample if self.side is None else (sample[0], self.side, self.side)))

    @property
    def ndim(self) -> int:
        """Return the number of axes."""
        return len(self.shape)

    def numel(self) -> int:
        """Return the number of numbers in all inputs."""
        return prod(self.shape)

    def element_size(self) -> int:
        """Return the bytes of a number."""
        return self.dtype.itemsize

    def is_floating_point(self) -> bool:
        """Return whether the numbers are floats."""
        return self.dtype.is_floating_point

    def __getitem__(self, place: int | slice) -> Tensor:
        """Read the input of one sample, (...), or of some samples that follow each other, (s, ...)."""
        if isinstance(place, slice):
            return self.read(torch.arange(len(self))[place])
        return self.read(torch.tensor([int(place)]))[0]

    def read(self, index: Tensor) -> Tensor:
        """Read the inputs of the samples at some positions: (s,) int64 -> (s, ...), in memory."""
        places = index if self.positions is None else self.positions[index]
        # A copy in memory, of a class of its own that says no more.
        inputs = torch.from_numpy(np.asarray(self.file.rows[places.numpy()]))
        if self.side is not None:
            inputs = resize(inputs, self.side)
        return inputs.to(self.dtype)

    def at(self, index: Tensor) -> MappedInputs:
        """Return some of the samples without reading them, by positions (s,) or by a bool (samples,)."""
        places = index.nonzero().flatten() if index.dtype == torch.bool else index
        return replace(self, positions=places if self.positions is None else self.positions[places])


Inputs: TypeAlias = "Tensor | MappedInputs"
"""The inputs of a data set, in memory or in files."""


def picked(values: Inputs, index: Tensor) -> Inputs:
    """Return some rows of a tensor, or of inputs in files, by positions or by a bool."""
    return values.at(index) if isinstance(values, MappedInputs) else values[index]


def blocks(inputs: Inputs, rows: Tensor | None = None) -> Iterator[Tensor]:
    """Yield inputs, some samples at a time: all of them, or those at some positions, int64."""
    step = _samples_at_once(inputs.shape)
    if rows is None:
        return (inputs[start : start + step] for start in range(0, len(inputs), step))
    return (inputs.read(part) if isinstance(inputs, MappedInputs) else inputs[part] for part in rows.split(step))


def _samples_at_once(shape: Sequence[int]) -> int:
    """Return the number of samples of inputs of a shape, (samples, ...), that are read at a time."""
    return max(1, min(BLOCK_SAMPLES, _BLOCK_NUMBERS // max(1, prod(shape[1:]))))


class InputWriter:
    """Collects the inputs of a data set, some samples after the others, in memory or in a file.

    Inside a ``with`` block; what was written is gone when the block ends without `finish`.

    Args:
        place: Where the inputs come from, for messages.
        memory: Where they are collected.
        path: The file; needed unless `memory` is "ram". Its folder is made.

    Attributes:
        samples: The number of all samples, if it is known before: they are then in memory once at any time. 0 if not.
        shape: The shape of one sample; empty before the first.
        nbytes: The bytes of all samples so far.
        crc: The CRC-32 of what is in the file.
    """

    def __init__(self, place: str, memory: Memory = "ram", path: Path | None = None) -> None:
        """Write nothing yet."""
        self.samples = 0
        self.shape: tuple[int, ...] = ()
        self.nbytes = 0
        self.crc = 0
        self._place = place
        self._memory = memory
        self._path = path
        self._parts = list[NDArray[Any]]()
        self._file: BinaryIO | None = None
        self._draft = Path()
        self._count = 0
        self._dtype = np.dtype(np.uint8)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Remove a file that was not finished."""
        if self._file is not None:
            self._file.close()
            self._draft.unlink(missing_ok=True)

    def add(self, block: NDArray[Any]) -> None:
        """Add some samples, (s, ...), of the same shape and type as those before.

        Raises:
            DataError: When they take more memory than data may, or the folder of the file cannot be made.
        """
        self.shape = block.shape[1:]
        self._dtype = block.dtype
        self.nbytes += block.nbytes
        self._count += len(block)
        needed = max(self.nbytes, self.samples * block[0].nbytes)
        if self._file is None and (self._memory == "disk" or needed > memory_limit()):
            if self._memory == "ram":
                raise DataError(f"{self._place}: {too_large_for_memory(needed)}")
            self._begin_file()
        if self._file is not None:
            self._append(block)
        elif self.samples:
            if not self._parts:
                self._parts = [np.empty((self.samples, *self.shape), self._dtype)]
            self._parts[0][self._count - len(block) : self._count] = block
        else:
            self._parts.append(block)

    def finish(self) -> Inputs:
        """Return all inputs, of which there are some: a tensor, or `MappedInputs` on the file."""
        if self._file is None:
            whole = self._parts[0] if len(self._parts) == 1 else np.concatenate(self._parts)
            # Arrow's own memory is not to be written to.
            return torch.from_numpy(np.require(whole, requirements="W"))
        assert self._path is not None
        self._file.close()
        os.replace(self._draft, self._path)
        self._file = None
        file = InputFile(self._path, self._dtype.str, (self._count, *self.shape))
        return MappedInputs(file, torch.from_numpy(np.empty(0, self._dtype)).dtype)

    def _begin_file(self) -> None:
        """Begin a file with what is in memory."""
        assert self._path is not None, "a writer that may use the disk has a path"
        make_folder(self._path.parent)
        handle, draft = tempfile.mkstemp(dir=self._path.parent, suffix=".partial")
        self._draft = Path(draft)
        self._file = os.fdopen(handle, "wb")
        for block in self._parts:
            self._append(block)
        self._parts = []

    def _append(self, block: NDArray[Any]) -> None:
        assert self._file is not None
        content = np.ascontiguousarray(block).data
        self.crc = crc32(content, self.crc)
        self._file.write(content)


def make_folder(folder: Path) -> None:
    """Make a folder for inputs on disk.

    Raises:
        DataError: When it cannot be made, or nothing can be written into it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        reason = "" if os.access(folder, os.W_OK) else os.strerror(errno.EACCES)
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        raise DataError(
            f"{folder}: expected a folder for inputs on disk ({reason}); set FEDSTRATA_CACHE to one that can be "
            "written, or data.memory = 'ram'"
        )


def too_large_for_memory(size: int) -> str:
    """Say that inputs take too much memory, and what to do."""
    return (
        f"the samples take {size:,} bytes in memory; expected at most {memory_limit():,}; leave them on the disk with "
        "data.memory = 'disk', or use a part of them"
    )


def resize(images: Tensor, side: int) -> Tensor:
    """Resize images bilinearly, as whole numbers of 0 to 255.

    Args:
        images: The images, (samples, channels, height, width) uint8.
        side: The new height and width in pixels.

    Returns:
        The images, (samples, channels, side, side) float32.
    """
    resized = torch.nn.functional.interpolate(
        images.float(), size=(side, side), mode="bilinear", align_corners=False, antialias=True
    )
    return resized.round_().clamp_(0, 255)
