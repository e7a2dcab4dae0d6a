"""What is served of a folder: pages made of its records, never a file that somebody names."""

import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import NamedTuple
from urllib.parse import unquote

from markupsafe import Markup

from fedstrata.errors import RecordError
from fedstrata.files import read_file
from fedstrata.report.page import render
from fedstrata.report.read import read
from fedstrata.report.sheet import environment, hashed

FRAME, PAGE = "/", "/page"
"""Where the frame is that refreshes what it holds, and where the page of the folder, which it holds at first."""
RECORDS = ("comparison.html", "experiment.toml", "rounds.jsonl", "tree.json", "summary.json")
"""Some of these change with every round."""
READ = (*RECORDS, "clients", "gaps", "matrices")


class Page(NamedTuple):
    """A page, and the tag of the records that it was made of."""

    tag: str
    text: str


class Pages:
    """The pages of a folder and of the runs in it, made anew when their records have changed.

    Args:
        folder: of a run or of a comparison, however far it is.
    """

    def __init__(self, folder: Path) -> None:
        """Nothing is read yet."""
        self._folder, self._lock, self._newest = folder.resolve(), Lock(), dict[Path, Page]()
        self._templates = environment()

    def tag(self, path: str) -> str | None:
        """What tells two states of a page apart; None where there is no page.

        Args:
            path: of the address.
        """
        if path == FRAME:
            return "frame"
        folder = self._place(path)
        return None if folder is None else _tag(folder)

    def page(self, path: str) -> Page | None:
        """A page as it is now; None where there is none."""
        if path == FRAME:
            script = self._templates.get_template("live.js").render()
            content = {"title": self._folder.name, "script": Markup(script), "hash": hashed(script), "page": PAGE}
            return Page("frame", self._templates.get_template("live.html").render(content))
        folder = self._place(path)
        if folder is None:
            return None
        with self._lock:
            # Before it is read: what is written meanwhile is seen by the next look.
            tag = _tag(folder)
            if folder not in self._newest or self._newest[folder].tag != tag:
                # A page has megabytes, and a comparison many runs.
                self._newest = {folder: Page(tag, self._text(folder))}
            return self._newest[folder]

    def _place(self, path: str) -> Path | None:
        """The folder whose page a path means: this one, or that of a run right in it, as a comparison names it."""
        if path == PAGE:
            return self._folder
        name, _, file = unquote(path).removeprefix("/").rpartition("/")
        try:
            folder = (self._folder / name).resolve()
            inside = folder.parent == self._folder and (folder / "experiment.toml").is_file()
        except (OSError, ValueError):  # a name that no file can have
            return None
        return folder if inside and file == "report.html" else None

    def _text(self, folder: Path) -> str:
        links = [name for name in READ if not (folder / name).resolve().is_relative_to(self._folder)]
        if links:
            return self._waiting(folder, f"{links[0]} is a link out of {self._folder}, and those are not followed.", ())
        if (folder / "rounds.jsonl").is_file():
            try:
                return render(read(folder))
            except RecordError as error:
                return self._waiting(folder, str(error), ())
        # The runs of a comparison may lie anywhere, so its page is served as it was made.
        if (compared := folder / "comparison.html").is_file():
            try:
                return read_file(compared).decode("utf-8", errors="replace")
            except (OSError, RecordError) as error:
                return self._waiting(folder, str(error), ())
        return self._waiting(folder, "", _runs(folder))

    def _waiting(self, folder: Path, trouble: str, runs: Sequence[str]) -> str:
        template = self._templates.get_template("live_waiting.html")
        return template.render(title=folder.name, trouble=trouble, runs=runs)


def _runs(folder: Path) -> list[str]:
    """The names of the runs in the folder of a comparison."""
    return sorted(path.parent.name for path in folder.glob("*/experiment.toml"))


def _tag(folder: Path) -> str:
    """Of the sizes and times of the records, and of the runs that there are."""
    found: list[object] = [_runs(folder)]
    for name in RECORDS:
        try:
            state = (folder / name).stat()
        except OSError:
            continue
        found.append([name, state.st_size, state.st_mtime_ns])
    return sha256(json.dumps([str(folder), *found]).encode()).hexdigest()[:32]
