"""The proxy that other tests put between a SuperNode and its server does what it is told to."""

import socket
from collections.abc import Iterator
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread

import pytest
from experiments.trust.tcp_proxy import Faults, TcpProxy
from machines import free_ports

SENT = bytes(range(256)) * 400


class Echo(StreamRequestHandler):
    def handle(self) -> None:
        try:
            while piece := self.request.recv(2**16):
                self.server.heard += len(piece)  # type: ignore[attr-defined]
                self.request.sendall(piece)
        except OSError:
            pass


@pytest.fixture
def ports() -> Iterator[tuple[int, int, ThreadingTCPServer]]:
    """A free port, and that of a server that answers with what it gets."""
    free = free_ports(2)
    with ThreadingTCPServer(("127.0.0.1", free + 1), Echo) as server:
        server.daemon_threads = True
        server.heard = 0  # type: ignore[attr-defined]
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield free, free + 1, server
        server.shutdown()
        thread.join()


def talk(port: int, seconds: float = 60.0) -> bytes:
    """Send, say that this is all, and return what comes back until the end or a reset."""
    found = b""
    with socket.create_connection(("127.0.0.1", port)) as line:
        line.settimeout(seconds)
        Thread(target=send, args=(line,), daemon=True).start()
        try:
            while piece := line.recv(2**16):
                found += piece
        except ConnectionError:
            pass
    return found


def send(line: socket.socket) -> None:
    try:
        line.sendall(SENT)
        line.shutdown(socket.SHUT_WR)
    except OSError:
        pass


@pytest.mark.parametrize(
    "faults", [Faults(), Faults(delay=0.01), Faults(rate=2e6), Faults(cut_share=0.5, cut_at=10**9)]
)
def test_bytes_pass_unchanged(ports: tuple[int, int, ThreadingTCPServer], faults: Faults) -> None:
    port, to, _ = ports
    with TcpProxy(port, to, faults) as proxy:
        assert talk(port) == SENT and talk(port) == SENT
    assert (proxy.opened, proxy.cut, proxy.passed) == (2, [], 4 * len(SENT))


@pytest.mark.parametrize("byte", [0, 1, 5000, 150_000])
def test_a_connection_is_cut_at_a_byte(ports: tuple[int, int, ThreadingTCPServer], byte: int) -> None:
    port, to, _ = ports
    with TcpProxy(port, to, Faults(cut_share=1.0, cut_at=byte)) as proxy:
        found = talk(port)
    assert proxy.cut == [0] and proxy.passed == byte and SENT.startswith(found) and len(found) <= byte


def test_which_connections_are_cut_is_a_function_of_the_seed(ports: tuple[int, int, ThreadingTCPServer]) -> None:
    port, to, _ = ports
    found = list[list[int]]()
    for seed in (0, 0, 1):
        with TcpProxy(port, to, Faults(cut_share=0.3), seed) as proxy:
            whole = [talk(port) == SENT for _ in range(20)]
        assert proxy.cut == [number for number, passed in enumerate(whole) if not passed]
        found.append(proxy.cut)
    assert found[0] == found[1] != found[2] and 0 < len(found[0]) < 20


def test_a_half_open_connection_is_open_and_silent(ports: tuple[int, int, ThreadingTCPServer]) -> None:
    port, to, server = ports
    with TcpProxy(port, to) as proxy, socket.create_connection(("127.0.0.1", port)) as line:
        line.settimeout(60)
        line.sendall(b"one")
        assert line.recv(3) == b"one"
        proxy.faults = Faults(half_open=True)
        line.sendall(b"two")
        with pytest.raises(TimeoutError):
            talk(port, seconds=0.2)
        assert server.heard == 3  # type: ignore[attr-defined]
        proxy.faults = Faults()
        assert talk(port) == SENT
