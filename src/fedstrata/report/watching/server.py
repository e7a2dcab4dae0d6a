"""The server of a watched folder: loopback only, read only, and deaf to names that are not of this machine."""

import sys
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any
from urllib.parse import urlsplit

from fedstrata.errors import InputError, RecordError
from fedstrata.report.watching.pages import Pages

LOOPBACK = "127.0.0.1"
NAMES = (LOOPBACK, "localhost")
"""What a browser of this machine calls it. A page from elsewhere whose name was made to lead here has another one."""
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self' 'unsafe-inline' data: blob:; frame-ancestors 'self'",
    "Content-Type": "text/html; charset=utf-8",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Watcher(ThreadingHTTPServer):
    """Serves the page of a folder until it is closed.

    Args:
        folder: of a run or of a comparison, however far it is.
        port: to listen on; 0 is one that the system chooses.

    Raises:
        RecordError: when there is no such folder.
        InputError: when the port cannot be had.
    """

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0) -> None:
        """Listen; requests are answered by `serve_forever`."""
        if not folder.is_dir():
            raise RecordError(f"expected the folder of a run, found no folder at {folder}; start the run first")
        try:
            super().__init__((LOOPBACK, port), partial(_Handler, Pages(folder)))
        except OSError as error:
            reason = error.strerror or error
            raise InputError(
                f"--port = {port}: expected a free port: {reason}; leave it out and one is chosen"
            ) from None

    def server_bind(self) -> None:
        """Bind, without asking the network for the name of this machine."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = LOOPBACK, self.socket.getsockname()[1]

    @property
    def url(self) -> str:
        """What a browser opens."""
        return f"http://{LOOPBACK}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Pass over a browser that has left in the middle of a page."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    timeout = 30  # seconds; a connection that asks for nothing is closed

    def __init__(self, pages: Pages, *connection: Any) -> None:
        self._pages = pages
        super().__init__(*connection)

    def do_GET(self) -> None:
        path = self._path()
        found = None if path is None else self._pages.page(path)
        if found is not None:
            body = found.text.encode()
            self._head(found.tag, len(body))
            self.wfile.write(body)
        elif path is not None:
            self.send_error(HTTPStatus.NOT_FOUND)

    def do_HEAD(self) -> None:
        path = self._path()
        tag = None if path is None else self._pages.tag(path)
        if tag is not None:
            self._head(tag)
        elif path is not None:
            self.send_error(HTTPStatus.NOT_FOUND)

    def version_string(self) -> str:
        return "fedstrata"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _path(self) -> str | None:
        """The path that is asked for; None after an answer to one who does not call this machine by its name."""
        try:
            host = urlsplit(f"//{self.headers.get('Host', '')}").hostname
        except ValueError:
            host = None
        if host in NAMES:
            return urlsplit(self.path).path
        self.send_error(HTTPStatus.MISDIRECTED_REQUEST, f"expected one of {', '.join(NAMES)} as the host")
        return None

    def _head(self, tag: str, length: int | None = None) -> None:
        self.send_response(HTTPStatus.OK)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("ETag", f'"{tag}"')
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()
