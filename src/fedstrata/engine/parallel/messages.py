"""Messages to workers: tensors apart from a small frame, in memory that processes share.

The memory has no name, so it is gone with the last process that has it open, however that process ends. New memory
takes the system longer than to write it. So a worker writes its next answer to the memory of an earlier one, when the
process that received that one has told that nothing there reads it any more.
"""

from __future__ import annotations

import errno
import mmap
import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import count
from math import prod
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler, recv_handle, send_handle
from tempfile import TemporaryFile
from typing import IO, Any

import torch
from torch import Tensor

from fedstrata.core.rows import IN_MEMORY, are_unsent, reserve, unsent_rows

_ALIGNED = 64
"""Bytes to a multiple of which every tensor begins."""

_MAX_LENT = 4
"""The number of messages whose memory may be given back. That of older ones is gone when nothing reads it any more."""

_MAX_KEPT = 2**28
"""The most bytes of memory that are kept for the next message."""


@dataclass(frozen=True)
class _TensorPlace:
    """The place of a tensor: its number, and its axes from the outermost in memory to the innermost."""

    number: int
    axes: tuple[int, ...]


@dataclass(frozen=True)
class _UnsentRows:
    """Rows (m, p) of clients that send nothing."""

    m: int
    p: int


@dataclass(frozen=True)
class _Fields:
    """A dataclass by its fields. The dataclass itself could refuse to hold places in place of tensors."""

    kind: type
    parts: Mapping[str, Any]


def pack(thing: Any) -> tuple[Any, list[Tensor]]:
    """Take a thing that is made of dataclasses, mappings, tuples and tensors apart.

    Returns:
        The frame, which holds everything but the tensors; and the tensors, each contiguous.
    """
    tensors: list[Tensor] = []

    def frame(part: Any) -> Any:
        if isinstance(part, Tensor) and part.ndim == 2 and part.dtype == torch.float32 and are_unsent(part):
            return _UnsentRows(*part.shape)
        if isinstance(part, Tensor):
            axes = tuple(sorted(range(part.ndim), key=part.stride, reverse=True))
            tensors.append(part.permute(axes).contiguous())
            return _TensorPlace(len(tensors) - 1, axes)
        if is_dataclass(part) and not isinstance(part, type):
            return _Fields(type(part), {field.name: frame(getattr(part, field.name)) for field in fields(part)})
        if isinstance(part, Mapping):
            return {key: frame(value) for key, value in part.items()}
        return tuple(map(frame, part)) if isinstance(part, tuple) else part

    return frame(thing), tensors


def unpack(frame: Any, tensors: Sequence[Tensor]) -> Any:
    """Put together what `pack` took apart. Every tensor has the memory layout of the one that was packed."""
    if isinstance(frame, _UnsentRows):
        return unsent_rows(frame.m, frame.p)
    if isinstance(frame, _TensorPlace):
        tensor = tensors[frame.number]
        return tensor.permute(sorted(range(tensor.ndim), key=frame.axes.__getitem__))
    if isinstance(frame, _Fields):
        return frame.kind(**{name: unpack(part, tensors) for name, part in frame.parts.items()})
    if isinstance(frame, Mapping):
        return {key: unpack(value, tensors) for key, value in frame.items()}
    return tuple(unpack(part, tensors) for part in frame) if isinstance(frame, tuple) else frame


class BufferPool:
    """Memory of messages, which is written again when it has been given back."""

    def __init__(self) -> None:
        """Begin with none."""
        self._lent: dict[int, int] = {}
        self._free: list[int] = []
        self._numbers = count()
        weakref.finalize(self, _close_all, self._lent, self._free)

    def lend(self) -> tuple[int, int]:
        """A number for the next message, and a file in memory that nobody reads, open at its beginning."""
        handle = self._free.pop() if self._free else os.memfd_create("fedstrata")
        os.lseek(handle, 0, os.SEEK_SET)
        number = next(self._numbers)
        self._lent[number] = handle
        while len(self._lent) > _MAX_LENT:
            os.close(self._lent.pop(min(self._lent)))
        return number, os.dup(handle)

    def take_back(self, numbers: Iterable[int]) -> None:
        """Take back the memory of messages that nobody reads any more."""
        for number in self._lent.keys() & set(numbers):
            handle = self._lent.pop(number)
            if self._free or os.fstat(handle).st_size > _MAX_KEPT:
                os.close(handle)
            else:
                self._free.append(handle)


def _close_all(lent: Mapping[int, int], free: Sequence[int]) -> None:
    for handle in (*lent.values(), *free):
        os.close(handle)


class SharedMessage:
    """A thing whose tensors are written once, and mapped by every process that it is sent to.

    Args:
        thing: A thing as `pack` takes it.
        lender: The lender of the memory; None takes new memory.

    Raises:
        ResourceError: When the disk has no room for what does not fit into memory.
    """

    def __init__(self, thing: Any, lender: BufferPool | None = None) -> None:
        """Write the tensors."""
        self._frame, tensors = pack(thing)
        self._places = []
        self._number: int | None = None
        size = sum(tensor.nbytes + _ALIGNED for tensor in tensors)
        in_memory = size <= IN_MEMORY and hasattr(os, "memfd_create")
        with self._memory(lender) if in_memory else TemporaryFile() as file:
            if not in_memory:
                reserve(file.fileno(), max(size, 1), "what workers share")
            for tensor in tensors:
                file.seek(-file.tell() % _ALIGNED, os.SEEK_CUR)
                self._places.append((file.tell(), tensor.dtype, tuple(tensor.shape)))
                file.write(tensor.flatten().view(torch.uint8).numpy().data)
            # An empty file cannot be mapped.
            self._size = file.truncate(max(file.tell(), 1))
            self._handle = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._handle)

    def _memory(self, lender: BufferPool | None) -> IO[bytes]:
        """A file in memory, to be written from its beginning."""
        if lender is None:
            return os.fdopen(os.memfd_create("fedstrata"), "wb")
        self._number, handle = lender.lend()
        return os.fdopen(handle, "wb")

    def send(self, connection: Connection, note: object = None, given_back: Sequence[int] = ()) -> None:
        """Send the frame, and the right to map the tensors.

        Args:
            connection: A socket between two processes.
            note: Something small that goes along.
            given_back: The numbers of messages from the other process that are no longer read.
        """
        connection.send((self._frame, self._places, self._size, note, self._number, tuple(given_back)))
        send_handle(connection, self._handle, None)


class ReceivedMessage:
    """A message by `SharedMessage.send`, not yet unpacked. If unpacking fails, the next message can still be received.

    Args:
        connection: The connection to the sender.
        content: The first part of the message, if it has been received already.

    Attributes:
        given_back: The numbers of messages that the sender no longer reads, known when this one has been opened.

    Raises:
        EOFError: When the sender is gone.
        ConnectionError: When the sender is gone.
        OSError: When this process cannot open another file.
    """

    def __init__(self, connection: Connection, content: bytes | None = None) -> None:
        """Wait for the message."""
        self._content = connection.recv_bytes() if content is None else content
        self.given_back: tuple[int, ...] = ()
        try:
            self._handle = recv_handle(connection)
        except RuntimeError as error:
            # The system drops the handle without an error when a process has too many files open.
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE)) from error

    def open(self, unread: list[int] | None = None) -> tuple[Any, Any]:
        """The thing and the note. A message can be opened once.

        Args:
            unread: The list that gets the number of the message when nothing reads its tensors any more.
        """
        try:
            frame, places, size, note, number, self.given_back = ForkingPickler.loads(self._content)
            memory = mmap.mmap(self._handle, size)
        finally:
            os.close(self._handle)
        if number is not None and unread is not None:
            weakref.finalize(memory, unread.append, number).atexit = False
        tensors = []
        for offset, dtype, shape in places:
            size = prod(shape)
            # torch maps no empty tensor.
            flat = torch.frombuffer(memory, dtype=dtype, count=size, offset=offset) if size else torch.empty(0)
            tensors.append(flat.to(dtype).view(shape))
        return unpack(frame, tensors), note
