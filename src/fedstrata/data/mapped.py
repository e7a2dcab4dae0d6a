"""Inputs of samples in a file: written one block after the other, mapped into memory, and read when they are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from io import BytesIO
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

import numpy as np
from numpy.lib import format as npy
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


@dataclass(frozen=True, eq=False)
class MappedInputs:
    """The inputs of a data set in a file. It has the properties of a tensor that are needed; what is read is a tensor.

    It can be sent to other processes, which map the same file: no input is copied.

    Attributes:
        path: The file, an array in numpy's format, (samples', ...).
        read_as: The type that inputs have when they are read; None for that of the file.
        positions: The position of each sample in the file, (samples,) int64; None for all in order.
        side: The height and width to which images are resized when they are read; None where they are not.
    """

    path: Path
    read_as: torch.dtype | None = None
    positions: Tensor | None = None
    side: int | None = None

    @cached_property
    def rows(self) -> NDArray[Any]:
        """The whole file, which is read where it is looked at.

        Raises:
            DataError: When the file is not there, or was cut. It may lie on another machine.
        """
        try:
            return npy.open_memmap(self.path, mode="r")
        except (OSError, ValueError) as error:
            raise DataError(
                f"{self.path}: expected the converted inputs of a data set ({error}); run again to convert them, and "
                "on several machines let FEDSTRATA_CACHE be a folder that all of them see, or set data.memory = 'ram'"
            ) from error

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.rows if self.positions is None else self.positions)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of all inputs, (samples, ...)."""
        sample = self.rows.shape[1:]
        return (len(self), *(sample if self.side is None else (sample[0], self.side, self.side)))

    @property
    def ndim(self) -> int:
        """Return the number of axes."""
        return self.rows.ndim

    @property
    def dtype(self) -> torch.dtype:
        """Return the type of the numbers that are read."""
        return self.read_as or getattr(torch, self.rows.dtype.name)

    def to(self, dtype: torch.dtype) -> MappedInputs:
        """Return the inputs as numbers of another type, without reading them."""
        return replace(self, read_as=dtype)

    def __getitem__(self, index: Tensor) -> Tensor:
        """Read the inputs of the samples at some positions: (s,) int64 -> (s, ...), in memory."""
        places = index if self.positions is None else self.positions[index]
        # A copy in memory, of a class of its own that says no more.
        inputs = torch.from_numpy(np.asarray(self.rows[places.numpy()]))
        if self.side is not None:
            inputs = resize(inputs, self.side)
        return inputs.to(self.dtype)

    def at(self, index: Tensor) -> MappedInputs:
        """Return some of the samples without reading them, by positions (s,) or by a bool (samples,)."""
        places = index.nonzero().flatten() if index.dtype == torch.bool else index
        return replace(self, positions=places if self.positions is None else self.positions[places])


Inputs: TypeAlias = "Tensor | MappedInputs"
"""The inputs of a data set, in memory or in files."""


Collect: TypeAlias = "Callable[[Iterable[NDArray[Any]]], Inputs]"
"""Makes the inputs of a data set of parts of them, as `collected` does."""


def blocks(inputs: Inputs, rows: Tensor | None = None) -> Iterator[Tensor]:
    """Yield inputs, some samples at a time: all of them, or those at some positions, int64."""
    at_once = max(1, min(BLOCK_SAMPLES, _BLOCK_NUMBERS // max(1, prod(inputs.shape[1:]))))
    chosen = torch.arange(len(inputs)) if rows is None else rows
    return (inputs[part] for part in chosen.split(at_once))


def collected(parts: Iterable[NDArray[Any]], place: str, memory: Memory = "ram", path: Path | None = None) -> Inputs:
    """Collect the inputs of a data set, in memory or in a file.

    Args:
        parts: Some samples after the others, at least one, (s, ...), all of one shape and type.
        place: Where the inputs come from, for messages.
        memory: Where they are collected.
        path: The file; needed unless `memory` is "ram". Its folder is made.

    Returns:
        A tensor, or `MappedInputs` on the file.

    Raises:
        DataError: When they take more memory than data may, or the file cannot be made.
    """
    written: BinaryIO = BytesIO()
    nbytes = count = 0
    with ExitStack() as drafts:
        for part in parts:
            nbytes += part.nbytes
            count += len(part)
            if isinstance(written, BytesIO) and (memory == "disk" or nbytes > memory_limit()):
                if memory == "ram" or path is None:
                    raise DataError(
                        f"{place}: the samples take {nbytes:,} bytes in memory; expected at most {memory_limit():,}; "
                        "leave them on the disk with data.memory = 'disk', or use a part of them"
                    )
                before = written
                written = drafts.enter_context(replacing(path))
                _write_header(written, part, 0)
                written.write(before.getbuffer())
                del before
            written.write(np.ascontiguousarray(part).data)
        if isinstance(written, BytesIO):
            return torch.from_numpy(np.frombuffer(written.getbuffer(), part.dtype).reshape(count, *part.shape[1:]))
        written.seek(0)
        _write_header(written, part, count)
    assert path is not None
    return MappedInputs(path)


def _write_header(file: BinaryIO, part: NDArray[Any], count: int) -> None:
    """Write the header of an array of so many samples like those of a part."""
    # numpy leaves room in it for more digits of the first axis, so that it can be written again when that is known.
    header = {"descr": part.dtype.str, "fortran_order": False, "shape": (count, *part.shape[1:])}
    npy.write_array_header_1_0(file, header)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Write a file, whose folder is made, that replaces another one when it is complete.

    Raises:
        DataError: When it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=path.parent, suffix=".partial") as folder:
            draft = Path(folder) / path.name
            with draft.open("wb") as file:
                yield file
            draft.replace(path)
    except OSError as error:
        raise DataError(
            f"{path.parent}: expected a folder for inputs on disk ({error.strerror}); set FEDSTRATA_CACHE "
            "to one that can be written, or data.memory = 'ram'"
        ) from error


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
