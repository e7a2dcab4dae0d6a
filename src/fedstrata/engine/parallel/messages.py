"""Messages to workers: tensors apart from the rest, in memory that processes share.

The memory has no name, so it is gone with the last process that has it open, however that process ends.
"""

from __future__ import annotations

import errno
import mmap
import os
import weakref
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from io import BytesIO
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler, recv_handle, send_handle
from tempfile import TemporaryFile
from typing import Any

import torch
from torch import Tensor

from fedstrata.core.rows import IN_MEMORY, are_unsent, reserve, unsent_rows

_ALIGNED = 64
"""Bytes to a multiple of which every tensor begins."""


def pack(thing: Any) -> tuple[bytes, list[Tensor]]:
    """Take the tensors out of a thing.

    Returns:
        The frame, which holds everything else; and the bytes of the tensors, one uint8 tensor without gaps for each.
    """
    frame = BytesIO()
    packer = _Packer(frame)
    packer.dump(thing)
    return frame.getvalue(), packer.tensors


def unpack(frame: bytes, tensors: Sequence[Tensor]) -> Any:
    """Put together what `pack` took apart. Every tensor has the memory layout of the one that was packed."""
    token = _UNPACKED.set(tensors)
    try:
        return ForkingPickler.loads(frame)
    finally:
        _UNPACKED.reset(token)


_UNPACKED = ContextVar[Sequence[Tensor]]("_UNPACKED")
"""The bytes of the tensors of the frame that is put together."""


class _Packer(ForkingPickler):
    """A pickler that notes tensors, and sends dataclasses by their fields, without what they have computed.

    Args:
        frame: The file that everything else is written to.
    """

    def __init__(self, frame: BytesIO) -> None:
        """Note no tensor yet."""
        super().__init__(frame)
        self.tensors = list[Tensor]()

    def reducer_override(self, part: Any) -> Any:
        """Return how a part is made again."""
        if type(part) is Tensor and _are_unsent_rows(part):
            return unsent_rows, tuple(part.shape)
        if type(part) is Tensor and not part.requires_grad:
            axes = tuple(sorted(range(part.ndim), key=part.stride, reverse=True))
            laid = part.permute(axes).contiguous()
            self.tensors.append(laid.flatten().view(torch.uint8))
            return _tensor, (len(self.tensors) - 1, part.dtype, tuple(laid.shape), axes)
        # One that says itself how it is made again, such as an object of the user's script, is asked.
        if is_dataclass(part) and not isinstance(part, type) and type(part).__reduce__ is object.__reduce__:
            return _made, (type(part), {field.name: getattr(part, field.name) for field in fields(part)})
        return NotImplemented


def _tensor(number: int, dtype: torch.dtype, shape: Sequence[int], axes: Sequence[int]) -> Tensor:
    """A tensor of the frame that is put together. Shape and axes begin with the outermost axis in memory."""
    laid = _UNPACKED.get()[number].view(dtype).view(shape)
    return laid.permute(sorted(range(len(axes)), key=axes.__getitem__))


def _are_unsent_rows(part: Tensor) -> bool:
    return part.ndim == 2 and part.dtype == torch.float32 and are_unsent(part)


def _made(kind: type, parts: dict[str, Any]) -> Any:
    return kind(**parts)


class SharedMessage:
    """A thing whose tensors are written once, and mapped by every process that it is sent to.

    Args:
        thing: A thing that can be pickled.

    Raises:
        ResourceError: When the disk has no room for what does not fit into memory.
    """

    def __init__(self, thing: Any) -> None:
        """Write the tensors."""
        self._frame, tensors = pack(thing)
        self._places = list[tuple[int, int]]()
        size = sum(tensor.nbytes + _ALIGNED for tensor in tensors)
        in_memory = size <= IN_MEMORY and hasattr(os, "memfd_create")
        with os.fdopen(os.memfd_create("fedstrata"), "wb") if in_memory else TemporaryFile() as file:
            if not in_memory:
                reserve(file.fileno(), max(size, 1), "what workers share")
            for tensor in tensors:
                file.seek(-file.tell() % _ALIGNED, os.SEEK_CUR)
                self._places.append((file.tell(), tensor.nbytes))
                file.write(tensor.numpy().data)
            # An empty file cannot be mapped.
            self._size = file.truncate(max(file.tell(), 1))
            self._handle = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._handle)

    def send(self, connection: Connection, note: object = None) -> None:
        """Send the frame, and the right to map the tensors.

        Args:
            connection: A socket between two processes.
            note: Something small that goes along.
        """
        connection.send((self._frame, self._places, self._size, note))
        send_handle(connection, self._handle, None)


class ReceivedMessage:
    """A message by `SharedMessage.send`, not yet unpacked. If unpacking fails, the next message can still be received.

    Args:
        connection: The connection to the sender.
        content: The first part of the message, if it has been received already.

    Raises:
        EOFError: When the sender is gone.
        ConnectionError: When the sender is gone.
        OSError: When this process cannot open another file.
    """

    def __init__(self, connection: Connection, content: bytes | None = None) -> None:
        """Wait for the message."""
        self._content = connection.recv_bytes() if content is None else content
        try:
            self._handle = recv_handle(connection)
        except RuntimeError as error:
            # The system drops the handle without an error when a process has too many files open.
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE)) from error

    def open(self) -> tuple[Any, Any]:
        """The thing and the note. A message can be opened once."""
        try:
            frame, places, size, note = ForkingPickler.loads(self._content)
            memory = mmap.mmap(self._handle, size)
        finally:
            os.close(self._handle)
        tensors = [
            # torch maps no empty tensor.
            torch.frombuffer(memory, dtype=torch.uint8, count=count, offset=offset)
            if count
            else torch.empty(0, dtype=torch.uint8)
            for offset, count in places
        ]
        return unpack(frame, tensors), note
