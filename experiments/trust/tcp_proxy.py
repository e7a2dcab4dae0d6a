"""A TCP proxy on 127.0.0.1 that makes the network between two programs as bad as a test wants it."""

from __future__ import annotations

import asyncio
import math
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from threading import Thread
from types import TracebackType

PIECE = 2**14
"""Bytes that are passed on at a time, at most."""

WAITING = 16
"""Pieces that may be on their way at a time; further ones wait in the sockets."""


@dataclass(frozen=True)
class Faults:
    """What happens to connections.

    Attributes:
        delay: Seconds that bytes take, in each direction.
        rate: Bytes in a second, in each direction of each connection.
        cut_share: The share of the connections that are reset.
        cut_within: A connection that is reset has passed on fewer bytes than this, in both directions together; how
            many is drawn.
        cut_at: The number of these bytes where it is not drawn.
        half_open: Whether connections stay open and nothing passes any more, which neither side is told.
    """

    delay: float = 0.0
    rate: float = math.inf
    cut_share: float = 0.0
    cut_within: int = 2**12
    cut_at: int | None = None
    half_open: bool = False


class TcpProxy:
    """Passes on what comes to one port to another one, with faults.

    Which connections are cut, and where, is a function of the seed and of their number, in the order in which they
    come.

    Args:
        port: The port at which it listens.
        to: The port to which it connects.
        faults: What happens to connections.
        seed: The seed of what is drawn.

    Attributes:
        faults: What happens to connections that come from now on; `Faults.half_open` counts for all at once.
        opened: The number of connections so far.
        cut: The numbers of those that were reset.
        passed: The bytes that were passed on, in both directions together.
    """

    def __init__(self, port: int, to: int, faults: Faults | None = None, seed: int = 0) -> None:
        """Listen not yet."""
        self.faults = faults or Faults()
        self.opened = 0
        self.cut = list[int]()
        self.passed = 0
        self._port, self._to, self._seed = port, to, seed
        self._links = set[asyncio.Task[None]]()
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name=f"proxy of port {port}", daemon=True)

    def __enter__(self) -> TcpProxy:
        """Listen."""
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all connections."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def end_connections(self) -> None:
        """End all connections that there are, so that new ones come."""
        for task in list(self._links):
            self._loop.call_soon_threadsafe(task.cancel)

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", self._port)

    async def _end(self) -> None:
        self._server.close()
        for task in list(self._links):
            task.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        link = _Link(self, self.opened, self.faults, self._seed)
        self.opened += 1
        with suppress(OSError, asyncio.CancelledError):
            await link.connect(reader, writer, self._to)
        self._links.discard(task)


class _Link:
    """One connection, by its number."""

    def __init__(self, proxy: TcpProxy, number: int, faults: Faults, seed: int) -> None:
        self._proxy, self._number, self._faults = proxy, number, faults
        draw = Random(f"{seed}/{number}")
        cuts = draw.random() < faults.cut_share
        within = draw.randrange(faults.cut_within) if faults.cut_at is None else faults.cut_at
        self._left = within if cuts else math.inf

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to: int) -> None:
        """Connect to a port, and pass bytes on until either side has ended."""
        writers = [writer]
        try:
            if self._left == 0:
                return self._reset(writers)
            if self._proxy.faults.half_open:
                # The other side is not even asked; nothing is answered, until the proxy ends.
                await asyncio.get_running_loop().create_future()
            other, onward = await asyncio.open_connection("127.0.0.1", to)
            writers.append(onward)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(reader, onward, writers))
                group.create_task(self._pass_on(other, writer, writers))
        except* OSError:
            pass
        finally:
            for each in writers:
                each.close()

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, both: list[asyncio.StreamWriter]
    ) -> None:
        """Pass on one direction: bytes are read as they come, and written when they are due."""
        clock = asyncio.get_running_loop().time
        queue = asyncio.Queue[tuple[float, bytes]](WAITING)

        async def deliver() -> None:
            free = clock()
            while True:
                due, piece = await queue.get()
                free = max(free, due) + len(piece) / self._faults.rate
                await asyncio.sleep(free - clock())
                if self._proxy.faults.half_open:
                    continue
                piece = piece[: int(min(self._left, len(piece)))] if piece else piece
                self._left -= len(piece)
                self._proxy.passed += len(piece)
                if not piece and self._left > 0:
                    return writer.write_eof()
                writer.write(piece)
                await writer.drain()
                if self._left == 0:
                    return self._reset(both)

        async with asyncio.TaskGroup() as group:
            delivery = group.create_task(deliver())
            while not delivery.done():
                piece = await reader.read(PIECE)
                await queue.put((clock() + self._faults.delay, piece))
                if not piece:
                    return

    def _reset(self, writers: list[asyncio.StreamWriter]) -> None:
        """End the connection as a router does that has lost it: both sides are told at their next word."""
        self._proxy.cut.append(self._number)
        self._left = -1
        for writer in writers:
            line: socket.socket = writer.get_extra_info("socket")
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
