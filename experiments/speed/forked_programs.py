"""Programs of Flower that are forked from one process, so that many SuperNodes fit into one machine.

A SuperNode is three programs: `flower-supernode`, `flower-superexec`, and `flwr-clientapp` for each message. Each
imports Flower anew, the last one also torch. Here one process, the fork server, has imported them all. It forks itself
for each program that is to start, and the new process calls the entry point by which Flower has installed the program.
So the processes share the memory of what is imported, and start at once.

What is real: the processes, their arguments, environments, connections, keys and files, and all code of the programs.
What is not: how a process starts. A folder of small scripts with the names of the programs comes first in ``PATH``.
Each script asks the fork server for a process with its own arguments, environment, directory and output.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import marshal
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

DETACHED = ("flower-superexec", "flwr-clientapp")
"""The programs whose ends nobody waits for."""

PROGRAMS = ("flower-supernode", "flwr", *DETACHED)
"""The programs that are forked."""

IMPORTED = (
    "anyio._backends._asyncio",
    "fedstrata.flower.client_app",
    "fedstrata.models.networks",
    "fedstrata.objective.metrics",
    "flwr.supernode.main",
    "httpcore",
    "torch.utils._device",
    "uvicorn.lifespan.on",
    "uvicorn.loops.auto",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.websockets.auto",
)
"""What the programs import when they are at work."""

WAIT_SECONDS = 120.0
"""Seconds in which the fork server has to start, and its processes have to end."""

REAP_INTERVAL = 0.05
"""Seconds between two looks for processes that have ended."""

SCRIPT = """#!{python} -IS
import marshal, os, signal, socket, sys

with socket.socket(socket.AF_UNIX) as connection:
    connection.connect({address!r})
    request = marshal.dumps([{program!r}, sys.argv, os.getcwd(), dict(os.environ)])
    socket.send_fds(connection, [len(request).to_bytes(4, "big")], [0, 1, 2])
    connection.sendall(request)
    process = int.from_bytes(connection.recv(4), "big")
    if {program!r} in {detached!r}:
        sys.exit(0)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: os.kill(process, number))
    status = connection.recv(1)
sys.exit(status[0] if status else 1)
"""
"""A script that stands for a program. One that is waited for passes signals on, and ends when its process has.

When it is killed, the fork server kills its process.
"""


class ForkedPrograms:
    """The fork server as another process sees it: started and ended with all that it has forked.

    Attributes:
        folder: The folder of the scripts, which has to come first in the ``PATH`` of what starts programs.
        process: The id of the fork server; 0 before it has started.
    """

    def __init__(self) -> None:
        """Start nothing yet."""
        # The path of a socket must be short.
        self._scratch = TemporaryDirectory(prefix="forked-", dir="/tmp")
        self.folder = Path(self._scratch.name) / "bin"
        self.process = 0
        self._server: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ForkedPrograms:
        """Start the fork server, and wait until it has imported all."""
        address = Path(self._scratch.name) / "socket"
        self.folder.mkdir()
        for program in PROGRAMS:
            script = self.folder / program
            names = {"python": sys.executable, "address": str(address), "program": program, "detached": DETACHED}
            script.write_text(SCRIPT.format(**names))
            script.chmod(0o700)
        command = [sys.executable, "-m", "experiments.speed.forked_programs", str(address)]
        # Threads that a library starts when it is imported would not be in a forked process.
        alone = {"OPENBLAS_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        # Its input ends when this process does, however that ends.
        self._server = subprocess.Popen(
            command, stdin=subprocess.PIPE, env={**os.environ, **alone}, start_new_session=True
        )
        self.process = self._server.pid
        end = time.monotonic() + WAIT_SECONDS
        while not address.exists():
            if self._server.poll() is not None or time.monotonic() > end:
                self.__exit__(None, None, None)
                raise RuntimeError("the fork server did not start")
            time.sleep(0.1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the fork server and all its processes."""
        if self._server is not None and self._server.stdin is not None:
            self._server.stdin.close()
            # It gives its processes as long as that before it kills them.
            self._server.wait(2 * WAIT_SECONDS)
        self._scratch.cleanup()


class ForkServer:
    """Forks this process for each request that comes to a socket.

    Args:
        address: The path of the socket.
        programs: The entry points by the names of the programs.
    """

    def __init__(self, address: str, programs: dict[str, Callable[[], Any]]) -> None:
        """Listen, so that scripts can ask."""
        self._programs = programs
        self._running = dict[int, socket.socket]()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen(1024)

    def serve(self) -> Callable[[], Any] | None:
        """Fork until the standard input ends.

        Returns:
            In a forked process what it has to run, and None in this one when all others have ended.
        """
        with selectors.DefaultSelector() as ready:
            ready.register(self._listener, selectors.EVENT_READ)
            ready.register(0, selectors.EVENT_READ)
            while True:
                found = {key.fd: key.data for key, _ in ready.select(REAP_INTERVAL)}
                if 0 in found:
                    break
                for process in filter(None, found.values()):
                    # The script of a process has been killed.
                    os.kill(process, signal.SIGKILL)
                    ready.unregister(self._running[process])
                if self._listener.fileno() in found and (program := self._fork(ready)):
                    return program
                self._reap(ready)
            self._end(ready)
        return None

    def _fork(self, ready: selectors.BaseSelector) -> Callable[[], Any] | None:
        """Answer a request; the forked process gets what it has to run."""
        connection, _ = self._listener.accept()
        size, files, _, _ = socket.recv_fds(connection, 4, 3)
        with connection.makefile("rb") as stream:
            name, arguments, folder, environment = marshal.loads(stream.read(int.from_bytes(size, "big")))
        process = os.fork()
        if process:
            for file in files:
                os.close(file)
            self._running[process] = connection
            if name not in DETACHED:
                ready.register(connection, selectors.EVENT_READ, process)
            with contextlib.suppress(OSError):
                connection.sendall(process.to_bytes(4, "big"))
            return None
        os.setsid()
        for other in (self._listener, connection, *self._running.values()):
            other.close()
        for place, file in enumerate(files):
            os.dup2(file, place)
            os.close(file)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = arguments
        return self._programs[name]

    def _reap(self, ready: selectors.BaseSelector) -> None:
        """Tell the scripts of processes that have ended how these ended."""
        while self._running:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                return
            code = os.waitstatus_to_exitcode(status)
            if self._running[process] in ready.get_map():
                ready.unregister(self._running[process])
            with self._running.pop(process) as connection, contextlib.suppress(OSError):
                # As a shell says it of a process that a signal has ended.
                connection.sendall(bytes([code if code >= 0 else 128 - code]))

    def _end(self, ready: selectors.BaseSelector) -> None:
        """End all that still runs."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in self._running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, number)
            end = time.monotonic() + WAIT_SECONDS
            while self._running and time.monotonic() < end:
                self._reap(ready)
                time.sleep(REAP_INTERVAL)


def main() -> None:
    """Import all, and fork; a forked process goes on as its program."""
    installed = {each.name: each for each in entry_points(group="console_scripts") if each.name in PROGRAMS}
    programs = {name: installed[name].load() for name in PROGRAMS}
    for module in IMPORTED:
        importlib.import_module(module)
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        raise RuntimeError("expected one thread before the first fork, found more")
    # A collection in a forked process would write to every object, and so copy it.
    gc.collect()
    gc.freeze()
    program = ForkServer(sys.argv[1], programs).serve()
    if program is None:
        return
    status = 1
    try:
        status = ended_with(program)
    finally:
        # As an interpreter does. But that then takes all modules apart, and so copies most of the shared memory.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def ended_with(program: Callable[[], Any]) -> int:
    """Run a program, and return the status with which it ends."""
    try:
        found = program()
    except SystemExit as end:
        found = end.code
    except BaseException:
        traceback.print_exc()
        return 1
    if found is None or isinstance(found, int):
        return found or 0
    print(found, file=sys.stderr)
    return 1


if __name__ == "__main__":
    main()
