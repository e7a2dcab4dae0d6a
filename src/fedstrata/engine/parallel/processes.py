"""Workers that are processes of this machine, of one thread each, on data that lie in memory once."""

from __future__ import annotations

import json
import logging
import math
import os
import socket
import struct
import subprocess
import sys
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from queue import SimpleQueue
from threading import Thread
from time import monotonic

import torch

from fedstrata.base.errors import EngineError
from fedstrata.engine.client_data import SimulationSpec
from fedstrata.engine.loop import Loop
from fedstrata.engine.parallel.messages import ReceivedMessage, SharedMessage
from fedstrata.engine.parallel.sharding import Shard, ShardReply, ShardRequest, perform

_logger = logging.getLogger(__name__)

MAX_LOST = 3
"""Workers that may be lost with the same shard before the run fails."""

MAX_HUNG = 2
"""Workers that may stop making progress with the same shard before the run fails."""

DEFAULT_TIMEOUT = 600
"""Seconds without progress after which a worker is replaced by default."""

_STARTUP_SECONDS = 300
"""Seconds that a new worker has until it reads its first samples, even with a shorter timeout."""

_PROGRESS_SECONDS = 5.0
"""Seconds between two signs of progress at least, with a timeout of 20 s or more."""

PROGRESS = b"progress"
"""What a worker sends while it works. An answer is a pickle, which begins otherwise."""

FAILED = b"failed: "
"""What a worker sends before it ends, with the reason, when it cannot answer at all."""

START = f"""
import json, os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.path[:] = json.loads(sys.argv[1])
from multiprocessing.connection import Connection
connection = Connection(int(sys.argv[2]))
try:
    from {__name__} import run_worker
    run_worker(connection, float(sys.argv[3]))
except Exception as error:
    try:
        connection.send_bytes({FAILED!r} + f"{{type(error).__name__}}: {{error}}".encode())
    finally:
        os._exit(1)
"""
"""The program of a worker. Unlike a process of `multiprocessing`, it does not import the script that started it, which
might begin to run again. It ignores Ctrl-C, because a round that is to be finished needs its workers."""


class Processes:
    """A transport to processes, which are started when the first round needs them.

    The processes end with this object, on any error, and by themselves when this process is gone.

    Args:
        spec: The network and the data.
        workers: The number of processes; 0 is one for each core that this process may use.
        timeout: Seconds without progress after which a worker is replaced and its work is given to another one; 0 waits
            without end. A worker makes progress whenever it reads a few batches of samples.
    """

    def __init__(self, spec: SimulationSpec, workers: int = 0, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Start nothing yet."""
        self.workers = workers or cores()
        self._timeout = timeout or math.inf
        self._spec = spec
        self._pool = list[_Worker]()
        weakref.finalize(self, _end, self._pool)

    @property
    def pids(self) -> tuple[int, ...]:
        """The ids of the processes."""
        return tuple(worker.process.pid for worker in self._pool)

    def run(self, request: ShardRequest, shards: Sequence[Shard]) -> Sequence[ShardReply]:
        """As `Transport.run`."""
        try:
            return self._run(SharedMessage(request), shards)
        except BaseException:
            # What the others still compute would be taken for the answer of the next round.
            self.close()
            raise

    def close(self) -> None:
        """End the processes. The next round starts new ones."""
        _end(self._pool)

    def _run(self, request: SharedMessage, shards: Sequence[Shard]) -> Sequence[ShardReply]:
        while len(self._pool) < len(shards):
            self._pool.append(_Worker(self._timeout))
        for place, shard in enumerate(shards):
            self._give(place, request, shard)
        replies: dict[int, ShardReply] = {}
        lost = Counter[int]()
        hung = Counter[int]()
        while waiting := [place for place in range(len(shards)) if place not in replies]:
            for place in self._ready(waiting):
                worker = self._pool[place]
                try:
                    message = worker.receive()
                except (EOFError, ConnectionError):
                    lost[place] += 1
                    self._replace_lost(place, lost[place])
                    self._give(place, request, shards[place])
                except BlockingIOError:
                    worker.give_up()
                else:
                    if message is not None:
                        reply, _ = message.open()
                        if isinstance(reply, Exception):
                            raise reply
                        replies[place] = reply
            for place in waiting:
                if place not in replies and self._pool[place].remaining() <= 0:
                    hung[place] += 1
                    self._replace_hung(place, hung[place], shards[place])
                    self._give(place, request, shards[place])
        return [replies[place] for place in range(len(shards))]

    def _ready(self, waiting: Sequence[int]) -> list[int]:
        """The places of workers that have sent something, or none when the time of one of them is over."""
        places = {self._pool[place].connection: place for place in waiting}
        remaining = min(self._pool[place].remaining() for place in waiting)
        ready = wait(list(places), None if remaining == math.inf else max(remaining, 0))
        return [places[connection] for connection in ready]  # type: ignore[index]  # typeshed knows sockets here as well

    def _give(self, place: int, request: SharedMessage, shard: Shard) -> None:
        worker = self._pool[place]
        worker.restart_clock()
        try:
            if not worker.has_spec:
                self._data.send(worker.connection)
                worker.has_spec = True
            request.send(worker.connection, shard)
        except ConnectionError:
            pass  # `receive` will find that it is gone.
        except BlockingIOError:
            worker.give_up()

    @cached_property
    def _data(self) -> SharedMessage:
        return SharedMessage(self._spec)

    def _replace_lost(self, place: int, times: int) -> None:
        """Replace a worker that has ended, unless the work has cost `MAX_LOST` workers."""
        worker = self._pool[place]
        status = worker.end()
        if times == MAX_LOST:
            fewer = f"set engine.workers below {self.workers}" if self.workers > 1 else "free some"
            raise EngineError(
                f"expected answers from worker processes, lost {times} in turn with the same clients, "
                f"the last one with {worker.reason or f'exit status {status}'}; if memory ran out, {fewer}"
            )
        self._pool[place] = _Worker(self._timeout)

    def _replace_hung(self, place: int, times: int, shard: Shard) -> None:
        """Replace a worker that makes no progress, unless the work has cost `MAX_HUNG` workers."""
        worker = self._pool[place]
        worker.end()
        if times == MAX_HUNG:
            raise EngineError(
                f"expected answers from worker processes, found {times} in turn that made no progress for "
                f"{worker.limit:g} s with the same clients; if their work takes longer, raise engine.timeout"
            )
        _logger.warning(
            "worker process %d made no progress for %g s and is ended; another one does the work of its %d clients",
            worker.process.pid,
            worker.limit,
            len(shard),
        )
        self._pool[place] = _Worker(self._timeout)


class _Worker:
    """A process and the connection to it.

    Args:
        timeout: Seconds without progress after which the process is taken for hung; infinity is never.

    Attributes:
        process: The process.
        connection: The connection.
        has_spec: Whether the specification was sent to it.
        limit: Seconds that it may be silent now; more until its first sign, as it has to start.
        reason: The reason why it ends, if it has sent one.
    """

    def __init__(self, timeout: float) -> None:
        """Start the process."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            if timeout < math.inf:
                _limit_waiting(ours, timeout)
            interval = min(timeout / 4, _PROGRESS_SECONDS) if timeout < math.inf else 0
            self.process = subprocess.Popen(
                [sys.executable, "-c", START, json.dumps(sys.path), str(theirs.fileno()), str(interval)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # Ctrl-C is for the process that waits for it, which then ends this one.
                start_new_session=True,
            )
            self.connection = Connection(ours.detach())
        self.has_spec = False
        self.reason = ""
        self.limit = max(timeout, _STARTUP_SECONDS)
        self._timeout = timeout
        self._deadline = monotonic() + self.limit

    def receive(self) -> ReceivedMessage | None:
        """The message that it sends, or None for a sign of progress.

        Raises:
            EOFError: When it is gone.
            ConnectionError: When it is gone.
            BlockingIOError: When it has stopped in the middle of a message.
        """
        content = self.connection.recv_bytes()
        if content.startswith(FAILED):
            self.reason = " ".join(content.removeprefix(FAILED).decode().split())
            raise EOFError
        self.limit = self._timeout
        self.restart_clock()
        return None if content == PROGRESS else ReceivedMessage(self.connection, content)

    def restart_clock(self) -> None:
        """Count the seconds without progress from now on."""
        self._deadline = monotonic() + self.limit

    def remaining(self) -> float:
        """Seconds until the process is taken for hung if it sends nothing."""
        return self._deadline - monotonic()

    def give_up(self) -> None:
        """Take the process for hung at once."""
        self._deadline = -math.inf

    def end(self) -> int:
        """End the process at once, and return its exit status."""
        self.connection.close()
        self.process.kill()
        return self.process.wait()


def _limit_waiting(line: socket.socket, seconds: float) -> None:
    """Let reading and writing raise BlockingIOError when the other side has stopped in the middle of a message."""
    # The system's struct timeval; Python's own timeouts of sockets do not hold for the connection made of this one.
    duration = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        line.setsockopt(socket.SOL_SOCKET, option, duration)


def _end(pool: list[_Worker]) -> None:
    while pool:
        pool.pop().end()


def run_worker(connection: Connection, interval: float = 0.0) -> None:
    """Receive the specification, then answer every request with a `ShardReply` or the exception that came of it.

    Args:
        connection: The connection to the process that sends requests.
        interval: Seconds between signs of progress, at least; 0 sends none.

    Raises:
        Exception: When nothing can be received or sent any more.
    """
    torch.set_num_threads(1)
    received = SimpleQueue[ReceivedMessage | Exception]()
    Thread(target=_listen, args=(connection, received), daemon=True).start()
    show_progress = _progress_sender(connection, interval)
    spec = _next(received)
    engine = None
    while True:
        request = _next(received)
        try:
            if engine is None:
                made: SimulationSpec = spec.open()[0]
                made.client_data.on_read = show_progress
                engine = Loop.at(made)
            reply = SharedMessage(perform(engine, *request.open()))
        except Exception as error:
            reply = SharedMessage(_portable(error))
        with suppress(ConnectionError):
            reply.send(connection)


def _progress_sender(connection: Connection, interval: float) -> Callable[[], None]:
    """The function that sends a sign of progress, if the last one is older than the interval; 0 sends none."""
    last = -math.inf

    def send() -> None:
        nonlocal last
        now = monotonic()
        if interval and now - last >= interval:
            last = now
            with suppress(ConnectionError):
                connection.send_bytes(PROGRESS)

    return send


def _listen(connection: Connection, received: SimpleQueue[ReceivedMessage | Exception]) -> None:
    """Receive messages while the worker works, and end the worker as soon as the other process is gone."""
    try:
        while True:
            received.put(ReceivedMessage(connection))
    except (EOFError, ConnectionError):
        os._exit(0)
    except Exception as error:
        # Without this, the worker would wait without end for what it can no longer receive.
        received.put(error)


def _next(received: SimpleQueue[ReceivedMessage | Exception]) -> ReceivedMessage:
    found = received.get()
    if isinstance(found, Exception):
        raise found
    return found


def _portable(error: Exception) -> Exception:
    """An exception that can be sent, with its traceback as a note."""
    error.add_note("in a worker:\n" + "".join(traceback.format_exception(error)))
    try:
        ForkingPickler.loads(ForkingPickler.dumps(error))
    except Exception:
        # Some exceptions take other arguments than their message, or hold what cannot be sent.
        portable = RuntimeError(f"{type(error).__name__}: {error}")
        portable.add_note(error.__notes__[-1])
        return portable
    return error


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
