"""What a node's proxy does for it: it asks again when the SuperLink has failed, keeps connections, fetches one app."""

import hashlib
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import httpx
import pytest
from flwr.proto.fab_pb2 import GetFabRequest
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.fab import Fab
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.run import RunNotRunningException
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.nodestate import NodeStateFactory
from proxies import NGINX, Proxies, new_proxies

pytestmark = pytest.mark.skipif(NGINX is None, reason="expected the program nginx, found none")


@dataclass
class SuperLink:
    """What stands for the SuperLink.

    Attributes:
        statuses: The statuses of its next answers; the last one comes first. After them all are 200.
        connections: How many connections to it there were.
    """

    statuses: list[int] = field(default_factory=list)
    connections: int = 0

    @contextmanager
    def up(self, federation: Proxies) -> Iterator[FleetHttpClient]:
        """It and the proxies listen meanwhile, and Flower's own client asks by way of the node's proxy."""
        superlink = self

        class Answers(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                superlink.connections += 1
                super().setup()

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"] or 0))
                self.send_response(superlink.statuses.pop() if superlink.statuses else 200)
                self.send_header("content-type", "application/protobuf")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        certificates = federation.folder / "certificates"
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificates / "server.crt", certificates / "server.key")
        trusted = ssl.create_default_context(cafile=str(federation.node / "tls.crt"))
        with ThreadingHTTPServer(("127.0.0.1", federation.port + 1), Answers) as server:
            # Connections that are kept would else keep the server.
            server.daemon_threads = True
            server.block_on_close = False
            server.socket = context.wrap_socket(server.socket, server_side=True)
            thread = Thread(target=server.serve_forever)
            thread.start()
            try:
                address = f"https://127.0.0.1:{federation.port + 2}"
                with federation.up(), FleetHttpClient(address, verify=trusted) as fleet:
                    yield fleet
            finally:
                server.shutdown()
                thread.join()


def test_a_supernode_asks_again_when_the_server_has_failed(tmp_path: Path) -> None:
    """By Flower's own rule of when to try again, of which only the wait is left out."""
    superlink = SuperLink([200, 500, 500])
    again = make_simple_http_retry_invoker()
    again.wait_function = lambda seconds: None
    with superlink.up(new_proxies(tmp_path / "federation")) as fleet:
        again.invoke(fleet.PullMessages, PullMessagesRequest())
    assert superlink.statuses == []


def test_what_a_supernode_survives_is_passed_on(tmp_path: Path) -> None:
    """It drops a message whose reply the server cannot take, and goes on; it would else try for ever."""
    superlink = SuperLink([500])
    with (
        superlink.up(new_proxies(tmp_path / "federation")) as fleet,
        pytest.raises(httpx.HTTPStatusError, match="500"),
    ):
        fleet.PushMessages(PushMessagesRequest())


def test_the_proxies_keep_their_connections(tmp_path: Path) -> None:
    """A new one takes a handshake on the way to the server's proxy, and one more from there to the SuperLink."""
    superlink = SuperLink()
    with superlink.up(new_proxies(tmp_path / "federation")) as fleet:
        for _ in range(20):
            fleet.PullMessages(PullMessagesRequest())
    assert superlink.connections == 1


def test_a_node_fetches_no_app_but_the_one_that_it_knows(tmp_path: Path) -> None:
    """To its SuperNode, a run of another one is over."""
    superlink, federation = SuperLink([200, 500]), new_proxies(tmp_path / "federation")
    known = (federation.folder / "app.sha256").read_text().strip()
    again = make_simple_http_retry_invoker()
    again.wait_function = lambda seconds: None
    with superlink.up(federation) as fleet:
        for other in ("", "0" * 64, known[:-1], known.upper()):
            with pytest.raises(RunNotRunningException):
                again.invoke(fleet.GetFab, GetFabRequest(node=Node(node_id=7), hash_str=other, run_id=1))
        assert superlink.statuses == [200, 500], "nothing has reached the server"
        again.invoke(fleet.GetFab, GetFabRequest(node=Node(node_id=7), hash_str=known, run_id=1))
    assert superlink.statuses == []


def test_a_supernode_keeps_an_app_by_the_hash_of_its_content() -> None:
    """So what a server sends in the place of the app of that hash is not found."""
    state = NodeStateFactory(ObjectStoreFactory()).state()
    for claimed in ("", hashlib.sha256(b"another app").hexdigest()):
        assert state.store_fab(Fab(claimed, b"another app", {})) == hashlib.sha256(b"another app").hexdigest()
    assert state.get_fab(hashlib.sha256(b"the app").hexdigest()) is None
    with pytest.raises(ValueError, match="hash"):
        state.store_fab(Fab(hashlib.sha256(b"the app").hexdigest(), b"another app", {}))
