"""The page of a folder that is still being written, served to the browsers of this machine only.

What is served is made from the records; a request can never name a file.
"""

import json
import sys
from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from threading import Lock
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from markupsafe import Markup

from fedstrata.base.errors import InputError, RecordError
from fedstrata.base.files import read_file
from fedstrata.report.page import render
from fedstrata.report.reader import read
from fedstrata.report.template import script_hash, templates

_FRAME = "/"
"""The path of the outer page, which shows another one and refreshes it."""

_PAGE = "/page"
"""The path of the page of the folder, which the outer page shows first."""

_CHANGING_FILES = ("comparison.html", "experiment.toml", "rounds.jsonl", "tree.json", "summary.json")
"""Every round changes some of these files."""

_SHOWN_FILES = (*_CHANGING_FILES, "clients", "gaps", "matrices")

_LOOPBACK = "127.0.0.1"
_HOSTS = (_LOOPBACK, "localhost")
"""The names by which a browser may call this machine. Another website could make its own name lead here."""

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self' 'unsafe-inline' data: blob:; frame-ancestors 'self'",
    "Content-Type": "text/html; charset=utf-8",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Page(NamedTuple):
    """A page, and a tag that changes with its records."""

    tag: str
    text: str


class Pages:
    """The pages of a folder and of the runs in it, made again when their records have changed.

    Args:
        folder: The folder of a run or of a comparison, in whatever state.
    """

    def __init__(self, folder: Path) -> None:
        """Read nothing yet."""
        self._folder = folder.resolve()
        self._lock = Lock()
        self._newest: dict[Path, Page] = {}

    def tag(self, path: str) -> str | None:
        """Return the tag of the page at the path of an address; None where there is no page."""
        if path == _FRAME:
            return "frame"
        folder = self._folder_of(path)
        return None if folder is None else _tag(folder)

    def page(self, path: str) -> Page | None:
        """Return the page at the path of an address, as it is now; None where there is none."""
        if path == _FRAME:
            return Page("frame", self._frame())
        folder = self._folder_of(path)
        if folder is None:
            return None
        with self._lock:
            # The tag is from before the records are read: the next look sees what is written meanwhile.
            tag = _tag(folder)
            if folder not in self._newest or self._newest[folder].tag != tag:
                # Only one page is kept: it has megabytes, and a comparison has many runs.
                self._newest = {folder: Page(tag, self._render(folder))}
            return self._newest[folder]

    def _frame(self) -> str:
        script = templates().get_template("live.js").render()
        return (
            templates()
            .get_template("live.html")
            .render(title=self._folder.name, script=Markup(script), hash=script_hash(script), page=_PAGE)
        )

    def _folder_of(self, path: str) -> Path | None:
        """Return the folder whose page a path means: this one, or that of a run in it, as a comparison names it."""
        if path == _PAGE:
            return self._folder
        name, _, file = unquote(path).removeprefix("/").rpartition("/")
        try:
            folder = (self._folder / name).resolve()
            inside = folder.parent == self._folder and (folder / "experiment.toml").is_file()
        except (OSError, ValueError):  # a name that no file can have
            return None
        return folder if inside and file == "report.html" else None

    def _render(self, folder: Path) -> str:
        links = [name for name in _SHOWN_FILES if not (folder / name).resolve().is_relative_to(self._folder)]
        if links:
            return _waiting(folder, f"{links[0]} is a link out of {self._folder}, and such links are not followed.")
        try:
            if (folder / "rounds.jsonl").is_file():
                return render(read(folder))
            # The runs of a comparison may be anywhere, so its page is served as it was made.
            if (folder / "comparison.html").is_file():
                return read_file(folder / "comparison.html").decode("utf-8", errors="replace")
        except (OSError, RecordError) as error:
            return _waiting(folder, str(error))
        return _waiting(folder, runs=_runs(folder))


def _waiting(folder: Path, problem: str = "", runs: Sequence[str] = ()) -> str:
    """Return the page of a folder that has no records yet, or whose records cannot be shown."""
    return templates().get_template("live_waiting.html").render(title=folder.name, problem=problem, runs=runs)


def _runs(folder: Path) -> list[str]:
    """Return the names of the runs in the folder of a comparison."""
    return sorted(path.parent.name for path in folder.glob("*/experiment.toml"))


def _tag(folder: Path) -> str:
    """Return a digest of the sizes and times of the records, and of the names of the runs."""
    found: list[object] = [str(folder), _runs(folder)]
    for name in _CHANGING_FILES:
        try:
            state = (folder / name).stat()
        except OSError:
            continue
        found.append([name, state.st_size, state.st_mtime_ns])
    return sha256(json.dumps(found).encode()).hexdigest()[:32]


class LiveServer(ThreadingHTTPServer):
    """Serves the page of a folder until it is closed.

    Args:
        folder: The folder of a run or of a comparison, in whatever state.
        port: The port to listen on; with 0 the system chooses one.

    Raises:
        RecordError: When there is no such folder.
        InputError: When the port is not free.
    """

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0) -> None:
        """Listen. Requests are answered by `serve_forever`."""
        if not folder.is_dir():
            raise RecordError(f"expected the folder of a run, found no folder at {folder}; start the run first")
        try:
            super().__init__((_LOOPBACK, port), partial(_Handler, Pages(folder)))
        except OSError as error:
            reason = error.strerror or error
            raise InputError(
                f"--port = {port}: expected a free port: {reason}; leave it out and one is chosen"
            ) from None

    def server_bind(self) -> None:
        """Bind without asking the network for the name of this machine."""
        TCPServer.server_bind(self)
        self.server_name = _LOOPBACK
        self.server_port = self.socket.getsockname()[1]

    @property
    def url(self) -> str:
        """The address for a browser."""
        return f"http://{_LOOPBACK}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that leaves in the middle of a page."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    timeout = 30  # seconds; a connection without a request is closed

    def __init__(self, pages: Pages, *connection: Any) -> None:
        self._pages = pages
        super().__init__(*connection)

    def do_GET(self) -> None:
        path = self._checked_path()
        if path is not None:
            self._answer(self._pages.page(path))

    def do_HEAD(self) -> None:
        path = self._checked_path()
        tag = None if path is None else self._pages.tag(path)
        if path is not None:
            self._answer(None if tag is None else Page(tag, ""), with_body=False)

    def version_string(self) -> str:
        return "fedstrata"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _checked_path(self) -> str | None:
        """Return the requested path; None, after an error was sent, where the request names another machine."""
        try:
            host = urlsplit(f"//{self.headers.get('Host', '')}").hostname
        except ValueError:
            host = None
        if host in _HOSTS:
            return urlsplit(self.path).path
        self.send_error(HTTPStatus.MISDIRECTED_REQUEST, f"expected one of {', '.join(_HOSTS)} as the host")
        return None

    def _answer(self, page: Page | None, *, with_body: bool = True) -> None:
        """Send a page, or say that there is none at this path."""
        if page is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        body = page.text.encode()
        self.send_response(HTTPStatus.OK)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("ETag", f'"{page.tag}"')
        if with_body:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
