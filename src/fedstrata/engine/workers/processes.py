"""Workers that are processes of this machine, of one thread each, on data that lie in memory once."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import traceback
import weakref
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from queue import SimpleQueue
from threading import Thread

import torch

from fedstrata.engine.site import Site
from fedstrata.engine.workers.segment import Letter, Segment
from fedstrata.engine.workers.sharding import Answer, Order, Shard, perform
from fedstrata.errors import EngineError

TRIES = 3
"""Workers that may be lost with the same shard before the run fails."""

START = (
    "import json, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); sys.path[:] = json.loads(sys.argv[1]); "
    f"from {__name__} import serve; from multiprocessing.connection import Connection; "
    "serve(Connection(int(sys.argv[2])))"
)
"""What a worker runs. Unlike multiprocessing's own processes it does not import the program that started it: that
may be a script which would begin to run again. What interrupts all processes of a job does not end it either: a round
that is to be finished needs its workers, and they end with whoever started them."""


class Processes:
    """A transport to processes, which are started when the first round needs them.

    They end with this object, on any error, and by themselves when this process is gone.

    Args:
        site: the network and the data.
        workers: how many processes; 0 is one for each core that this process may use.
    """

    def __init__(self, site: Site, workers: int = 0) -> None:
        """Start nothing yet."""
        self.workers = workers or cores()
        self._site, self._pool = site, list[_Worker]()
        weakref.finalize(self, _end, self._pool)

    @property
    def pids(self) -> tuple[int, ...]:
        """Ids of the processes."""
        return tuple(worker.process.pid for worker in self._pool)

    def run(self, order: Order, shards: Sequence[Shard]) -> Sequence[Answer]:
        """As `Transport.run`."""
        try:
            return self._run(Segment(order), shards)
        except BaseException:
            # What the others still compute is for nobody, and would be taken for the answer of the next round.
            self.close()
            raise

    def close(self) -> None:
        """End the processes; the next round starts new ones."""
        _end(self._pool)

    def _run(self, order: Segment, shards: Sequence[Shard]) -> Sequence[Answer]:
        while len(self._pool) < len(shards):
            self._pool.append(_Worker())
        for place, shard in enumerate(shards):
            self._give(place, order, shard)
        answers: dict[int, Answer] = {}
        lost = Counter[int]()
        while len(answers) < len(shards):
            busy = {self._pool[place].connection: place for place in range(len(shards)) if place not in answers}
            for connection in wait(list(busy)):
                place = busy[connection]  # type: ignore[index]  # typeshed knows sockets and handles here as well
                try:
                    answer, _ = Letter(self._pool[place].connection).open()
                except (EOFError, ConnectionError):
                    lost[place] += 1
                    self._replace(place, lost[place])
                    self._give(place, order, shards[place])
                    continue
                if isinstance(answer, Exception):
                    raise answer
                answers[place] = answer
        return [answers[place] for place in range(len(shards))]

    def _give(self, place: int, order: Segment, shard: Shard) -> None:
        worker = self._pool[place]
        # If it is gone, it will answer that it is gone.
        with suppress(ConnectionError):
            if not worker.placed:
                self._data.send(worker.connection)
                worker.placed = True
            order.send(worker.connection, shard)

    @cached_property
    def _data(self) -> Segment:
        """The site, placed once for all workers."""
        return Segment(self._site)

    def _replace(self, place: int, lost: int) -> None:
        status = self._pool[place].end()
        if lost == TRIES:
            raise EngineError(
                f"expected answers from worker processes, lost {lost} in turn with the same clients, the last one with "
                f"exit status {status}; if memory ran out, set engine.workers below {self.workers}"
            )
        self._pool[place] = _Worker()


class _Worker:
    """A process and the line to it.

    Attributes:
        process: it.
        connection: to it.
        placed: whether it was sent the site.
    """

    def __init__(self) -> None:
        """Start it."""
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", START, json.dumps(sys.path), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # Ctrl-C is for the process that waits for it, which then ends this one.
                start_new_session=True,
            )
        self.connection, self.placed = Connection(ours.detach()), False

    def end(self) -> int:
        """End it at once; its exit status."""
        self.connection.close()
        self.process.kill()
        return self.process.wait()


def _end(pool: list[_Worker]) -> None:
    while pool:
        pool.pop().end()


def serve(connection: Connection) -> None:
    """Be a worker: read the site, then answer every order with an `Answer` or the exception that came of it."""
    torch.set_num_threads(1)
    heard = SimpleQueue[Letter]()
    Thread(target=_listen, args=(connection, heard), daemon=True).start()
    site, engine = heard.get(), None
    while True:
        letter = heard.get()
        try:
            engine = engine or site.open()[0].loop()
            said = Segment(perform(engine, *letter.open()))
        except Exception as error:
            said = Segment(_portable(error))
        with suppress(ConnectionError):
            said.send(connection)


def _listen(connection: Connection, heard: SimpleQueue[Letter]) -> None:
    """Hear what is sent while the worker works, and end it as soon as nobody is there any more."""
    with suppress(EOFError, ConnectionError):
        while True:
            heard.put(Letter(connection))
    os._exit(0)


def _portable(error: Exception) -> Exception:
    """An exception that can be sent, with where it was raised as a note."""
    error.add_note("in a worker:\n" + "".join(traceback.format_exception(error)))
    try:
        ForkingPickler.loads(ForkingPickler.dumps(error))
    except Exception:
        # Some take other arguments than their message, or hold what stays where it is.
        portable = RuntimeError(f"{type(error).__name__}: {error}")
        portable.add_note(error.__notes__[-1])
        return portable
    return error


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
