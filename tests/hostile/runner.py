"""Call a function in a child process that may hang, die or eat memory, and say what it did.

A server process imports the heavy libraries once. It forks a child for every call, so that a call costs no imports:

    with Runner() as runner:
        outcome = runner.call("fedstrata.cli:main", [["run", "wrong.toml"]], folder=here)
    assert complaints(outcome) == []

A call runs in its own process group, which is killed after `seconds`. Its address space is limited, so that a bomb ends
in a MemoryError and does not take the machine with it.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

GIB = 2**30

SECONDS = 30.0
"""A call that takes longer is killed. No call needs 10 seconds; tests that run side by side share the processor."""

MOST_MEMORY = 1 * GIB
"""Bytes that a call may need beyond what the imports have taken."""

CEILING = 3 * GIB
"""Bytes of address space that a call gets beyond what the imports have taken; a larger request fails."""

PRELOAD = (
    "fedstrata.cli",
    "fedstrata.config",
    "fedstrata.data.cache",
    "fedstrata.data.digits",
    "fedstrata.data.npz",
    "fedstrata.data.parquet",
    "fedstrata.report",
    "fedstrata.runner.rounds",
    "PIL.Image",
    "scipy.cluster.hierarchy",
)
"""Modules that the server imports before the first call."""


@dataclass(frozen=True)
class Outcome:
    """What a call did.

    Attributes:
        status: exit status of the process, 0 when the function returned; negative when a signal ended it.
        out: what it wrote to standard output.
        err: what it wrote to standard error.
        error: traceback of an exception other than SystemExit; empty when there was none.
        killed: whether it was still running after `seconds`.
        peak_bytes: most memory that it held beyond what it began with.
        seconds: wall-clock time that it took.
        changed: paths outside the folders it may write to that are new, gone or different.
    """

    status: int
    out: str
    err: str
    error: str
    killed: bool
    peak_bytes: int
    seconds: float
    changed: tuple[str, ...] = ()


class Runner:
    """A warm server process that forks a child for every call.

    Args:
        preload: modules that the server imports before the first call.
        seconds: a call that takes longer is killed.
        ceiling: bytes of address space that a call gets beyond what the imports have taken.
    """

    def __init__(self, preload: Sequence[str] = PRELOAD, *, seconds: float = SECONDS, ceiling: int = CEILING) -> None:
        """Start the server."""
        self._limits = {"seconds": seconds, "ceiling": ceiling}
        # One thread: a forked child has only the thread that forked it.
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "PYTHONWARNINGS": "ignore",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        self._server = subprocess.Popen(
            # Without -P the names of the files beside this one would hide libraries.
            [sys.executable, "-P", __file__, *preload],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def call(
        self,
        function: str,
        arguments: Sequence[Any],
        *,
        folder: Path,
        surroundings: Path | None = None,
        writable: Iterable[Path] = (),
        environment: Mapping[str, str | None] | None = None,
    ) -> Outcome:
        """Call a function in a new process.

        Args:
            function: ``"package.module:name"``.
            arguments: what it is given, as JSON can write it.
            folder: the working directory of the call.
            surroundings: folder in which nothing but `writable` may change; None checks nothing.
            writable: files and folders that the call may make or change.
            environment: variables that are set, or removed where the value is None.
        """
        before = snapshot(surroundings, writable)
        request = {
            "function": function,
            "arguments": list(arguments),
            "folder": str(folder),
            "environment": dict(environment or {}),
            **self._limits,
        }
        assert self._server.stdin and self._server.stdout
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        answer = json.loads(self._server.stdout.readline())
        after = snapshot(surroundings, writable)
        paths = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
        return Outcome(**{**answer, "changed": tuple(paths)})

    def close(self) -> None:
        """End the server."""
        assert self._server.stdin and self._server.stdout
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()

    def __enter__(self) -> Self:
        """The runner itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End the server."""
        self.close()


def complaints(outcome: Outcome, *, accepted: bool = False, most_memory: int = MOST_MEMORY) -> list[str]:
    """What is wrong with an outcome; an empty list when nothing is.

    A refusal is exit status 2 and one printable line on standard error that begins with ``fedstrata:``.

    Args:
        outcome: of a command of the command line.
        accepted: whether the input is valid after all, so that the command should succeed.
        most_memory: bytes that it may need.
    """
    wrong = []
    if outcome.killed:
        wrong.append(f"still running after {outcome.seconds:.1f} s")
    if outcome.error or "Traceback (most recent call last)" in outcome.out + outcome.err:
        last = (outcome.error or outcome.err).strip().splitlines()[-1]
        wrong.append(f"traceback: {last[:200]}")
    expected = 0 if accepted else 2
    if not outcome.killed and outcome.status != expected:
        wrong.append(f"status {outcome.status}, expected {expected}")
    if outcome.peak_bytes > most_memory:
        wrong.append(f"{outcome.peak_bytes / GIB:.2f} GiB of memory, expected at most {most_memory / GIB:.2f}")
    if outcome.changed:
        wrong.append(f"changed outside: {', '.join(outcome.changed[:5])}")
    if not accepted and not wrong:
        wrong += _faults_of_message(outcome.err)
    return wrong


def _faults_of_message(err: str) -> list[str]:
    """What keeps standard error from being one clear line."""
    lines = err.splitlines()
    if len(lines) != 1 or not err.startswith("fedstrata: "):
        return [f"{len(lines)} lines on standard error, expected one that begins with 'fedstrata: ': {err[:200]!r}"]
    if not lines[0].isprintable():
        return [f"characters on standard error that cannot be printed: {err[:200]!r}"]
    if len(lines[0]) > 1000:
        return [f"a line of {len(lines[0])} characters, expected at most 1000: {err[:200]!r}"]
    return []


def snapshot(folder: Path | None, without: Iterable[Path] = ()) -> dict[str, tuple[Any, ...]]:
    """What lies in a folder: path -> type, size, time of the last change, and where a link points.

    Args:
        folder: that is walked, links not followed; None is an empty one.
        without: files and folders that are left out.
    """
    found: dict[str, tuple[Any, ...]] = {}
    left_out = {os.path.abspath(path) for path in without}
    for place, folders, files in os.walk(folder or "/nonexistent", followlinks=False):
        folders[:] = [name for name in folders if os.path.join(place, name) not in left_out]
        for name in [*folders, *files]:
            path = os.path.join(place, name)
            if path in left_out:
                continue
            status = os.lstat(path)
            link = os.readlink(path) if os.path.islink(path) else ""
            # A folder's time changes when a permitted path is made in it; its entries say all that matters.
            facts = () if name in folders else (status.st_size, status.st_mtime_ns)
            found[path] = (status.st_mode, *facts, link)
    return found


def _serve(preload: Sequence[str]) -> None:
    """Answer requests, one JSON object a line, until standard input ends."""
    for name in preload:
        importlib.import_module(name)
    answers = os.fdopen(os.dup(1), "w")
    # Nothing that a library prints in this process may be taken for an answer.
    os.dup2(2, 1)
    for line in sys.stdin:
        answers.write(json.dumps(asdict(_observe(json.loads(line)))) + "\n")
        answers.flush()


def _observe(request: dict[str, Any]) -> Outcome:
    """Fork a child for a request, and wait until it ends or its time is over."""
    out, err = (os.memfd_create(name) for name in ("out", "err"))
    read, write = os.pipe()
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        os.close(read)
        _perform(request, out, err, write)
    os.close(write)
    deadline = began + request["seconds"]
    killed = not _ended(child, deadline)
    if killed:
        os.killpg(child, signal.SIGKILL)
    _, raw, usage = os.wait4(child, 0)
    seconds = time.monotonic() - began
    _kill_group(child)
    # The child writes two short lines, far less than a pipe holds; one that was killed has written only the first.
    with os.fdopen(read) as lines:
        said = {key: value for line in lines for key, value in json.loads(line).items()}
    return Outcome(
        status=os.waitstatus_to_exitcode(raw),
        out=_text(out),
        err=_text(err),
        error=said.get("error", ""),
        killed=killed,
        peak_bytes=max(0, usage.ru_maxrss * 1024 - said.get("resident", 0)),
        seconds=seconds,
    )


def _ended(child: int, deadline: float) -> bool:
    """Whether a child ends before a deadline of the monotonic clock."""
    handle = os.pidfd_open(child)
    try:
        ready, _, _ = select.select([handle], [], [], max(0.0, deadline - time.monotonic()))
        return bool(ready)
    finally:
        os.close(handle)


def _kill_group(leader: int) -> None:
    """End what a child has started and left behind."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


def _perform(request: dict[str, Any], out: int, err: int, said: int) -> NoReturn:
    """In the child: do what was asked, say how it ended, and exit."""
    os.setsid()
    page = resource.getpagesize()
    size, resident = (int(pages) * page for pages in Path("/proc/self/statm").read_text().split()[:2])
    os.write(said, json.dumps({"resident": resident}).encode() + b"\n")
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (out, 1), (err, 2)):
        os.dup2(source, target)
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), "utf-8", errors="backslashreplace")
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), "utf-8", errors="backslashreplace")
    status, error = 0, ""
    try:
        os.chdir(request["folder"])
        for name, value in request["environment"].items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        most = size + request["ceiling"]
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_FSIZE, (GIB, GIB))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        path, _, name = request["function"].partition(":")
        getattr(importlib.import_module(path), name)(*request["arguments"])
    except SystemExit as leave:
        status = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
    except BaseException:
        status = 1
        error = traceback.format_exc(limit=-3)[-4000:]
    sys.stdout.flush()
    sys.stderr.flush()
    os.write(said, json.dumps({"error": error}).encode() + b"\n")
    os._exit(status)


def _text(handle: int) -> str:
    """What was written to an anonymous file, cut after a megabyte."""
    text = os.pread(handle, 2**20, 0).decode("utf-8", errors="backslashreplace")
    os.close(handle)
    return text


if __name__ == "__main__":
    _serve(sys.argv[1:])
