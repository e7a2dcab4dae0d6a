"""A SuperLink that answers 500 because it has too much to do: a SuperNode asks again, and does not stop for ever."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supernode.fleet_http_client import FleetHttpClient
from proxies import NGINX, Proxies, new_proxies

pytestmark = pytest.mark.skipif(NGINX is None, reason="expected the program nginx, found none")


@contextmanager
def superlink(federation: Proxies, statuses: list[int]) -> Iterator[None]:
    """What stands for the SuperLink: it answers with one status after the other, the last of them removed first."""

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"] or 0))
            self.send_response(statuses.pop())
            self.send_header("content-type", "application/protobuf")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    certificates = federation.folder / "certificates"
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates / "server.crt", certificates / "server.key")
    with HTTPServer(("127.0.0.1", federation.port + 1), Answers) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def test_a_supernode_asks_again_when_the_server_has_failed(tmp_path: Path) -> None:
    """By Flower's own client and its own rule of when to try again, of which only the wait is left out."""
    federation = new_proxies(tmp_path / "federation")
    left = [200, 500, 500]
    again = make_simple_http_retry_invoker()
    again.wait_function = lambda seconds: None
    trusted = ssl.create_default_context(cafile=str(federation.node / "tls.crt"))
    with (
        superlink(federation, left),
        federation.up(),
        FleetHttpClient(f"https://127.0.0.1:{federation.port + 2}", verify=trusted) as fleet,
    ):
        again.invoke(fleet.PullMessages, PullMessagesRequest())
    assert left == []
