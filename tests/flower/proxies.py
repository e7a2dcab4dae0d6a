"""The proxies of a federation, started as its scripts start them. No SuperLink is behind them."""

import os
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx
from certificates import SOUND, write_certificate
from in_process import KEYS
from machines import free_ports, listens, within

from builders import keys
from fedstrata.flower import deploy

PLACES = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", "/opt/homebrew/bin"])
NGINX = shutil.which("nginx", path=PLACES)

EXPERIMENT = keys(KEYS, rounds=1, data={"clients": 1}, partition={"scheme": "iid"}, algorithm={"name": "fedavg"})
PATIENCE = 60.0
"""Seconds until a test gives up; a machine may be busy."""


class Proxies:
    """The proxies of a federation of one node.

    Args:
        folder: The folder of the federation.
        port: The port of its server; its node's proxy listens two further on.
    """

    def __init__(self, folder: Path, port: int) -> None:
        """Start nothing yet."""
        self.folder, self.port = folder, port
        self.node = folder / "nodes" / "site-0"

    def let_in(self) -> None:
        """Let in the node whose certificate is there, as the script of the server does."""
        shutil.copy(self.node / "tls.crt", self.folder / "proxy" / "nodes.crt")

    @contextmanager
    def up(self) -> Iterator[None]:
        """Both proxies listen meanwhile."""
        started = list[subprocess.Popen[bytes]]()
        try:
            for home, port in ((self.folder / "proxy", self.port), (self.node, self.port + 2)):
                command = [str(NGINX), "-e", "stderr", "-p", str(home), "-c", str(home / "nginx.conf")]
                with (home / "said").open("wb") as log:
                    started.append(subprocess.Popen([*command, "-g", "daemon off;"], stdout=log, stderr=log))
                assert within(PATIENCE, partial(listens, port)), (home / "said").read_text()
            yield
        finally:
            for process in started:
                process.terminate()
                process.wait()

    def status(self, trusted: str = "tls.crt") -> int:
        """The status of the answer to a request by way of the node's proxy."""
        with httpx.Client(verify=ssl.create_default_context(cafile=str(self.node / trusted))) as client:
            return client.get(f"https://127.0.0.1:{self.port + 2}/v1/fleet/pull-messages").status_code


def new_proxies(folder: Path) -> Proxies:
    """The proxies of a new federation, whose server lets its node in."""
    port = free_ports(4)
    deploy.init(folder, EXPERIMENT, port=port)
    found = Proxies(folder, port)
    write_certificate(folder / "certificates", "server", SOUND, folder / "certificates")
    found.let_in()
    return found
