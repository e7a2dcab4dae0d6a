"""Memory that processes share, without a name: it is gone with the last of them that has it open, however they end."""

from __future__ import annotations

import errno
import mmap
import os
import weakref
from math import prod
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler, recv_handle, send_handle
from tempfile import TemporaryFile
from typing import Any

import torch

from fedstrata.core.rows import IN_MEMORY, reserve
from fedstrata.engine.parallel.serialization import pack, unpack

ALIGNED = 64
"""Bytes to a multiple of which every tensor begins."""


class SharedMessage:
    """A thing whose tensors are written once and can be mapped by any process that it is sent to.

    Args:
        thing: as `pack` takes it.

    Raises:
        ResourceError: When the disk has no room for what does not fit into memory.
    """

    def __init__(self, thing: Any) -> None:
        """Write its tensors down."""
        self._frame, tensors = pack(thing)
        self._places = []
        size = sum(tensor.nbytes + ALIGNED for tensor in tensors)
        in_memory = size <= IN_MEMORY and hasattr(os, "memfd_create")
        with os.fdopen(os.memfd_create("fedstrata"), "wb") if in_memory else TemporaryFile() as file:
            if not in_memory:
                reserve(file.fileno(), max(size, 1), "what workers share")
            for tensor in tensors:
                file.seek(-file.tell() % ALIGNED, os.SEEK_CUR)
                self._places.append((file.tell(), tensor.dtype, tuple(tensor.shape)))
                file.write(tensor.flatten().view(torch.uint8).numpy().data)
            # Nothing cannot be mapped.
            self._size = file.truncate(max(file.tell(), 1))
            self._handle = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._handle)

    def send(self, connection: Connection, note: object = None) -> None:
        """Send the frame, and the right to map the tensors.

        Args:
            connection: a socket between two processes.
            note: something small to go with it.
        """
        connection.send((self._frame, self._places, self._size, note))
        send_handle(connection, self._handle, None)


def _handle(connection: Connection) -> int:
    """A file descriptor that another process sends.

    Raises:
        OSError: When this process has no room for one; the system drops it then without an error.
    """
    try:
        return recv_handle(connection)
    except RuntimeError as error:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE)) from error


class ReceivedMessage:
    """What came of `SharedMessage.send`, still closed: what cannot be read can still be told apart from what follows.

    Args:
        connection: to whoever sends it.
        content: the first part of it, where that has been read already.

    Raises:
        EOFError: when the other side is gone.
        ConnectionError: likewise.
    """

    def __init__(self, connection: Connection, content: bytes | None = None) -> None:
        """Wait for it."""
        self._content = connection.recv_bytes() if content is None else content
        self._handle = _handle(connection)

    def open(self) -> tuple[Any, Any]:
        """The thing, which can be opened once, and the note."""
        try:
            frame, places, size, note = ForkingPickler.loads(self._content)
            memory = mmap.mmap(self._handle, size)
        finally:
            os.close(self._handle)
        tensors = []
        for offset, dtype, shape in places:
            count = prod(shape)
            # torch maps no empty tensor.
            flat = torch.frombuffer(memory, dtype=dtype, count=count, offset=offset) if count else torch.empty(0)
            tensors.append(flat.to(dtype).view(shape))
        return unpack(frame, tensors), note
