"""The processes of a federation on one machine: started and ended by their own ids, nothing else is touched."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType

import psutil

GRACE = 30.0
"""Seconds in which processes end by themselves once they were told to."""


class Machines:
    """A SuperLink and SuperNodes, each a group of processes of its own.

    Args:
        folder: of a federation, as ``fedstrata deploy init`` made it.
        port: of its server.

    Attributes:
        environment: in which Flower's programs are found.
    """

    def __init__(self, folder: Path, port: int) -> None:
        """Start nothing yet."""
        self._folder, self._port = folder, port
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._left = set[psutil.Process]()
        beside = Path(sys.executable).parent
        self.environment = {**os.environ, "PATH": f"{beside}{os.pathsep}{os.environ.get('PATH', '')}"}

    def __enter__(self) -> Machines:
        """Nothing runs yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all that still runs, and all that it started."""
        self._end(list(self._running), signal.SIGTERM)
        if within(GRACE, self._gone):
            return
        send(signal.SIGKILL, self._left)
        if not within(GRACE, self._gone):
            raise RuntimeError(f"processes do not end: {self._left & processes().keys()}")

    def server(self) -> None:
        """Start the SuperLink and its proxy, and wait until both listen."""
        process = self._start("superlink", self._folder / "superlink.sh")
        # The proxy's port is the federation's, that of the SuperLink behind it the next.
        ports = self._port, self._port + 1
        within(120.0, lambda: all(map(listens, ports)) or process.poll() is not None)
        if not all(map(listens, ports)):
            raise RuntimeError(f"the SuperLink does not listen; see {self.log('superlink')}")

    def register(self) -> None:
        """Tell the SuperLink the nodes' public keys."""
        script = str(self._folder / "register.sh")
        done = subprocess.run(["sh", script], env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"a node's key was not taken: {done.stdout}{done.stderr}")

    def node(self, client: str) -> None:
        """Start the SuperNode of a client."""
        self._start(client, self._folder / "nodes" / client / "start.sh")

    def kill(self, name: str) -> None:
        """End one of them as a crash does: what it started finds out by itself."""
        self._end([name], signal.SIGKILL)

    def send_signal(self, name: str, sign: signal.Signals) -> None:
        """Send a signal to all processes of one of them, such as one that stops them for a while."""
        send(sign, family({self._running[name].pid}))

    def log(self, name: str) -> Path:
        """What one of them said."""
        return self._folder / f"{name}.log"

    def _start(self, name: str, script: Path) -> subprocess.Popen[bytes]:
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                ["sh", str(script)], stdout=log, stderr=log, env=self.environment, start_new_session=True
            )
        self._running[name] = process
        return process

    def _gone(self) -> bool:
        return not self._left & processes().keys()

    def _end(self, names: Iterable[str], sign: signal.Signals) -> None:
        """Send a signal to groups of processes, and take leave of those that were started here."""
        ending = [self._running.pop(name) for name in names]
        # Flower starts programs in sessions of their own, which no signal to a group reaches.
        self._left |= family({process.pid for process in ending})
        for process in ending:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, sign)
        for process in ending:
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def processes() -> dict[psutil.Process, int]:
    """All that are alive on this machine, with the id of their parent."""
    found = dict[psutil.Process, int]()
    for id in psutil.pids():
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(id)
            if process.status() != psutil.STATUS_ZOMBIE:
                found[process] = process.ppid()
    return found


def family(ids: set[int]) -> set[psutil.Process]:
    """Processes, and all that they started, in whatever session."""
    alive = processes()
    found = {process for process in alive if process.pid in ids}
    below = found
    while below:
        parents = {process.pid for process in below}
        below = {process for process, parent in alive.items() if parent in parents} - found
        found = found | below
    return found


def send(sign: signal.Signals, to: Iterable[psutil.Process]) -> None:
    """Send a signal to those that are still alive."""
    for process in to:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(sign)


def within(seconds: float, what: Callable[[], bool]) -> bool:
    """Wait until something is so; False when it is not by then."""
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def listens(port: int) -> bool:
    """Whether a server does, on this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_ports(count: int) -> int:
    """The first of so many neighbouring ports of which none is in use."""
    # Below the range from which systems take the near ends of connections; tests side by side start elsewhere.
    for first in range(20_000 + os.getpid() % 500 * 20, 32_000, count):
        with ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise RuntimeError(f"expected {count} free ports between 20000 and 32000, found none")
