"""Certificates whose time is over, has not come, or that are another host's: nobody in a federation takes one.

The proxies are those of a federation, started as its scripts start them. No SuperLink is behind them, so that the
server's proxy answers 404 or 502 where it lets somebody in.
"""

import shutil
import ssl
from pathlib import Path

import httpx
import pytest
from certificates import FAULTS, SOUND, write_certificate
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.supernode.fleet_http_client import FleetHttpClient
from proxies import NGINX, Proxies, new_proxies

pytestmark = pytest.mark.skipif(NGINX is None, reason="expected the program nginx, found none")


@pytest.fixture
def federation(made: Proxies, tmp_path: Path) -> Proxies:
    """A federation with certificates of its own, which a test may replace."""
    shutil.copytree(made.folder, tmp_path / "federation")
    return Proxies(tmp_path / "federation", made.port)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Proxies:
    return new_proxies(tmp_path_factory.mktemp("certificates") / "federation")


def test_certificates_that_hold_are_taken(federation: Proxies) -> None:
    with federation.up():
        assert federation.status() == 404


@pytest.mark.parametrize("fault", FAULTS)
def test_a_node_speaks_to_no_server_whose_certificate_does_not_hold(fault: str, federation: Proxies) -> None:
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
def test_the_server_lets_no_node_in_whose_certificate_does_not_hold(fault: str, federation: Proxies) -> None:
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
def test_a_supernode_speaks_to_no_proxy_whose_certificate_does_not_hold(fault: str, federation: Proxies) -> None:
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
