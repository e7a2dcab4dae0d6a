"""The processes of a federation on one machine: started and ended by their own ids, nothing else is touched."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType


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
        beside = Path(sys.executable).parent
        self.environment = {**os.environ, "PATH": f"{beside}{os.pathsep}{os.environ.get('PATH', '')}"}

    def __enter__(self) -> Machines:
        """Nothing runs yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all that still runs."""
        for name in list(self._running):
            self.end(name)

    def server(self) -> None:
        """Start the SuperLink and wait until it listens."""
        self._start("superlink", self._folder / "superlink.sh")
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self._port)) == 0:
                    return
            if self._running["superlink"].poll() is not None:
                break
            time.sleep(0.2)
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

    def end(self, name: str, sign: signal.Signals = signal.SIGTERM) -> None:
        """End one of them with all that it started; what does not end by itself is killed."""
        process = self._running.pop(name)
        for sent in (sign, signal.SIGKILL):
            try:
                os.killpg(process.pid, sent)
            except ProcessLookupError:
                break
            _wait(process, 20.0)
        process.wait()

    def log(self, name: str) -> Path:
        """What one of them said."""
        return self._folder / f"{name}.log"

    def _start(self, name: str, script: Path) -> None:
        with self.log(name).open("ab") as log:
            self._running[name] = subprocess.Popen(
                ["sh", str(script)], stdout=log, stderr=log, env=self.environment, start_new_session=True
            )


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait until a process and all that it started have ended, for so long at most."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        process.poll()  # until it is taken leave of, it counts as running
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.2)
