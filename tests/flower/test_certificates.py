"""Certificates whose time is over, has not come, or that are another host's: nobody in a federation takes one.

The proxies are those of a federation, started as its scripts start them. No SuperLink is behind them, so that the
server's proxy answers 404 or 502 where it lets somebody in.
"""

import os
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from certificates import FAULTS, SOUND, write_certificate
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.supernode.fleet_http_client import FleetHttpClient
from machines import free_ports, listens, within

from fedstrata.flower import deploy

PLACES = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", "/opt/homebrew/bin"])
NGINX = shutil.which("nginx", path=PLACES)

pytestmark = pytest.mark.skipif(NGINX is None, reason="expected the program nginx, found none")

EXPERIMENT: dict[str, Any] = {
    "rounds": 1,
    "data": {"name": "digits", "clients": 1, "samples": 24, "test": 0.2},
    "partition": {"scheme": "iid"},
    "model": {"name": "mlp", "hidden": [8]},
    "engine": {"name": "loop", "device": "cpu"},
}
PATIENCE = 60.0
"""Seconds until a test gives up; a machine may be busy."""


class Federation:
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
            return client.get(f"https://127.0.0.1:{self.port + 2}/nothing").status_code


@pytest.fixture
def federation(made: tuple[Path, int], tmp_path: Path) -> Federation:
    """A federation with certificates of its own, which a test may replace."""
    folder, port = made
    shutil.copytree(folder, tmp_path / "federation")
    found = Federation(tmp_path / "federation", port)
    write_certificate(found.folder / "certificates", "server", SOUND, found.folder / "certificates")
    found.let_in()
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    folder, port = tmp_path_factory.mktemp("certificates") / "federation", free_ports(4)
    deploy.init(folder, EXPERIMENT, port=port)
    return folder, port


def test_certificates_that_hold_are_taken(federation: Federation) -> None:
    with federation.up():
        assert federation.status() == 404


@pytest.mark.parametrize("fault", FAULTS)
def test_a_node_speaks_to_no_server_whose_certificate_does_not_hold(fault: str, federation: Federation) -> None:
    """Signed by the right authority. Not even the request reaches such a server, and a sound one is taken again."""
    certificates = federation.folder / "certificates"
    write_certificate(certificates, "server", FAULTS[fault], certificates)
    with federation.up():
        assert federation.status() == 502
    assert FAULTS[fault].said in (federation.node / "said").read_text()
    assert (federation.folder / "proxy" / "refused.log").read_text() == ""
    write_certificate(certificates, "server", SOUND, certificates)
    with federation.up():
        assert federation.status() == 404


@pytest.mark.parametrize("fault", ["expired", "of the future"])
def test_the_server_lets_no_node_in_whose_certificate_does_not_hold(fault: str, federation: Federation) -> None:
    """Though the operator has let it in: its name is not asked for, but its time is."""
    url = f"https://127.0.0.1:{federation.port}/v1/fleet/pull-messages"
    for found, status in ((FAULTS[fault], 400), (SOUND, 502)):
        write_certificate(federation.node, "tls", found)
        federation.let_in()
        own = ssl.create_default_context(cafile=str(federation.folder / "certificates" / "ca.crt"))
        own.load_cert_chain(federation.node / "tls.crt", federation.node / "tls.key")
        with federation.up(), httpx.Client(verify=own) as client:
            answer = client.post(url, content=b"")
        assert (answer.status_code, answer.headers["server"]) == (status, "nginx")
        assert ("The SSL certificate error" in answer.text) == (status == 400)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_supernode_speaks_to_no_proxy_whose_certificate_does_not_hold(fault: str, federation: Federation) -> None:
    """By Flower's own client: on its own machine, too, somebody else could listen at the proxy's port."""
    write_certificate(federation.node, "tls", FAULTS[fault])
    trusted = ssl.create_default_context(cafile=str(federation.node / "tls.crt"))
    url = f"https://127.0.0.1:{federation.port + 2}"
    with (
        federation.up(),
        FleetHttpClient(url, verify=trusted) as fleet,
        pytest.raises(httpx.ConnectError, match=FAULTS[fault].found),
    ):
        fleet.PullMessages(PullMessagesRequest())
