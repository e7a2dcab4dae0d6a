"""Workers that are processes of this machine, of one thread each, on data that lie in memory once."""

from __future__ import annotations

import json
import logging
import math
import os
import socket
import subprocess
import sys
import traceback
import weakref
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

MAX_ATTEMPTS = 3
"""Times that a round is begun, each time with new workers, before the run fails."""

DEFAULT_TIMEOUT = 600
"""Seconds without progress after which a worker is taken for lost by default."""

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
        timeout: Seconds without progress after which a worker is taken for lost; 0 waits without end. A worker makes
            progress whenever it reads a few batches of samples.
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
        """As `Transport.run`. If a worker is lost, new ones do the round again: the same work has the same bits."""
        message = SharedMessage(request)
        attempts = 0
        while True:
            attempts += 1
            try:
                return self._run(message, shards)
            except BaseException as error:
                # What the others still compute would be taken for the answer of the next round.
                self.close()
                if not isinstance(error, _LostWorker):
                    raise
                if attempts == MAX_ATTEMPTS:
                    raise EngineError(
                        f"expected answers from worker processes, lost one in each of {attempts} attempts, "
                        f"the last one {error}"
                    ) from None
                _logger.warning("lost a worker process %s; new ones do the work of this round again", str(error))

    def close(self) -> None:
        """End the processes. The next round starts new ones."""
        _end(self._pool)

    def _run(self, request: SharedMessage, shards: Sequence[Shard]) -> Sequence[ShardReply]:
        """Let a worker do every shard.

        Raises:
            _LostWorker: When one of them is gone or makes no progress.
            Exception: When one of them raised it.
        """
        while len(self._pool) < len(shards):
            self._pool.append(_Worker(self._timeout))
        workers = self._pool[: len(shards)]
        for worker, shard in zip(workers, shards, strict=True):
            worker.give(self._data, request, shard)
        replies = dict[_Worker, ShardReply]()
        while waiting := [worker for worker in workers if worker not in replies]:
            remaining = min(worker.remaining() for worker in waiting)
            lines = [worker.connection for worker in waiting]
            ready = wait(lines, None if remaining == math.inf else max(remaining, 0))
            for worker in waiting:
                if worker.connection in ready:
                    if (message := worker.receive()) is not None:
                        reply, _ = message.open()
                        if isinstance(reply, Exception):
                            raise reply
                        replies[worker] = reply
                elif worker.remaining() <= 0:
                    raise _LostWorker(
                        f"as it made no progress for {worker.limit:g} s; if its work takes longer, raise engine.timeout"
                    )
        return [replies[worker] for worker in workers]

    @cached_property
    def _data(self) -> SharedMessage:
        return SharedMessage(self._spec)


class _LostWorker(Exception):
    """A worker that is gone or makes no progress; with what, and what to do about it."""


class _Worker:
    """A process and the connection to it.

    Args:
        timeout: Seconds without progress after which the process is taken for hung; infinity is never.

    Attributes:
        process: The process.
        connection: The connection.
        limit: Seconds that it may be silent now; more until its first sign, as it has to start.
    """

    def __init__(self, timeout: float) -> None:
        """Start the process."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            interval = min(timeout / 4, _PROGRESS_SECONDS) if timeout < math.inf else 0
            self.process = subprocess.Popen(
                [sys.executable, "-c", START, json.dumps(sys.path), str(theirs.fileno()), str(interval)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # Ctrl-C is for the process that waits for it, which then ends this one.
                start_new_session=True,
            )
            self.connection = Connection(ours.detach())
        self._has_spec = False
        self.limit = max(timeout, _STARTUP_SECONDS)
        self._timeout = timeout
        self._deadline = monotonic() + self.limit

    def give(self, spec: SharedMessage, request: SharedMessage, shard: Shard) -> None:
        """Send a shard of a request, and the specification before the first one."""
        self.restart_clock()
        with suppress(ConnectionError):  # `receive` will find that it is gone
            if not self._has_spec:
                spec.send(self.connection)
                self._has_spec = True
            request.send(self.connection, shard)

    def receive(self) -> ReceivedMessage | None:
        """The message that it sends, or None for a sign of progress.

        Raises:
            _LostWorker: When it is gone.
        """
        reason = ""
        try:
            content = self.connection.recv_bytes()
            if content.startswith(FAILED):
                reason = " ".join(content.removeprefix(FAILED).decode().split())
                raise EOFError
            self.limit = self._timeout
            self.restart_clock()
            return None if content == PROGRESS else ReceivedMessage(self.connection, content)
        except (EOFError, ConnectionError):
            status = self.end()
            raise _LostWorker(
                f"with {reason or f'exit status {status}'}; if memory ran out, free some or lower engine.workers"
            ) from None

    def restart_clock(self) -> None:
        """Count the seconds without progress from now on."""
        self._deadline = monotonic() + self.limit

    def remaining(self) -> float:
        """Seconds until the process is taken for hung if it sends nothing."""
        return self._deadline - monotonic()

    def end(self) -> int:
        """End the process at once, and return its exit status."""
        self.connection.close()
        self.process.kill()
        return self.process.wait()


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
