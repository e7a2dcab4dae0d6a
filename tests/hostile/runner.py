"""Call a function in a child process that may hang, die or eat memory, and say what it did.

A child does one call after the other, so that most calls cost neither imports nor a process:

    with Runner() as runner:
        outcome = runner.call("fedstrata.cli:main", [["run", "wrong.toml"]], folder=here)
    assert complaints(outcome) == []

A child runs in its own process group, which is killed when a call takes longer than `seconds`. Its address space is
limited, so that a bomb ends in a MemoryError and does not take the machine with it. After a call that took much memory,
or that was killed, the next one has a new child.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import resource
import select
import sys
import time
import traceback
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from forked import Process
from imported import looked_for

GIB = 2**30

SECONDS = 30.0
"""A call that takes longer is killed. No call needs 10 seconds; tests that run side by side share the processor."""

MOST_MEMORY = 1 * GIB
"""Bytes that a call may need beyond what the imports have taken."""

CEILING = 3 * GIB
"""Bytes of address space that a call gets beyond what the imports have taken; a larger request fails."""

SPENT = GIB // 8
"""Bytes that a child has grown by when the next call gets a new one."""


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
        looked_for: modules that fedstrata's own code looked for; one that was imported before is not looked for.
    """

    status: int
    out: str
    err: str
    error: str
    killed: bool
    peak_bytes: int
    seconds: float
    changed: tuple[str, ...] = ()
    looked_for: tuple[str, ...] = ()


class Runner:
    """Calls functions in a child, and in a new one where the last one is spent.

    Args:
        seconds: a call that takes longer is killed.
        ceiling: bytes of address space that a call gets beyond what its child has when it begins.
    """

    def __init__(self, *, seconds: float = SECONDS, ceiling: int = CEILING) -> None:
        """Start nothing yet."""
        self._seconds, self._ceiling = seconds, ceiling
        self._child: _Child | None = None

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
        """Call a function in a child of the server.

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
            "ceiling": self._ceiling,
        }
        self._child = self._child or _Child()
        found = self._child.perform(request, self._seconds)
        if self._child.spent:
            self.close()
        after = snapshot(surroundings, writable)
        paths = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
        modules = tuple(found.pop("looked_for", ()))
        return Outcome(**found, changed=tuple(paths), looked_for=modules)

    def close(self) -> None:
        """End the child."""
        if self._child:
            self._child.end()
            self._child = None

    def __enter__(self) -> Self:
        """The runner itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End the child."""
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


class _Child:
    """A process that does one call after the other.

    Attributes:
        spent: Whether the next call needs another one.
    """

    def __init__(self) -> None:
        """Start it."""
        self.spent = False
        # Its output goes to memory, where it is found even when the process was killed.
        self._out, self._err = (Connection(os.memfd_create(name)) for name in ("out", "err"))
        self._process = Process(_work, self._out, self._err)
        assert self._process.stdout.readline() == "ready\n"

    def perform(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Have it do a call, and wait until it has, has ended, or its time is over; the fields of the outcome."""
        for stream in (self._out, self._err):
            os.ftruncate(stream.fileno(), 0)
        began = time.monotonic()
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], seconds)
        answer = self._process.stdout.readline() if ready else ""
        if answer:
            found = json.loads(answer)
        else:
            self._process.kill()
            found = {"status": self._process.wait(), "error": "", "peak_bytes": 0, "spent": True}
        self.spent = found.pop("spent")
        output = {"out": _text(self._out), "err": _text(self._err)}
        return {**found, **output, "killed": not ready, "seconds": time.monotonic() - began}

    def end(self) -> None:
        """End it, and what it has started and left behind."""
        with self._process:
            self._out.close()
            self._err.close()


def _work(out: Connection, err: Connection) -> None:
    """In the child: do what is asked, one JSON object a line, until there is nothing more."""
    import made_once  # noqa: F401 (which computes, and not in the process that reads this file)

    requests, answers = (os.fdopen(os.dup(stream), mode) for stream, mode in ((0, "r"), (1, "w")))
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (out.fileno(), 1), (err.fileno(), 2)):
        os.dup2(source, target)
    resource.setrlimit(resource.RLIMIT_FSIZE, (GIB, GIB))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    os.environ["HF_HUB_OFFLINE"] = "1"
    print("ready", file=answers, flush=True)
    first = _memory("VmRSS")
    for line in requests:
        found = _perform(json.loads(line))
        found["spent"] = found["peak_bytes"] > SPENT or _memory("VmRSS") - first > SPENT or _has_children()
        print(json.dumps(found), file=answers, flush=True)


def _perform(request: dict[str, Any]) -> dict[str, Any]:
    """In the child: do one call, and say how it ended."""
    environment, path = dict(os.environ), list(sys.path)
    for stream in (1, 2):
        os.lseek(stream, 0, os.SEEK_SET)
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), "utf-8", errors="backslashreplace")
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), "utf-8", errors="backslashreplace")
    Path("/proc/self/clear_refs").write_text("5")  # The peak begins anew.
    resident = _memory("VmRSS")
    status, error = 0, ""
    modules = list[str]()
    try:
        os.chdir(request["folder"])
        for name, value in request["environment"].items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        resource.setrlimit(resource.RLIMIT_AS, (_memory("VmSize") + request["ceiling"], resource.RLIM_INFINITY))
        module, _, name = request["function"].partition(":")
        function = getattr(importlib.import_module(module), name)
        with looked_for() as modules:
            function(*request["arguments"])
    except SystemExit as leave:
        status = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
    except BaseException:
        status = 1
        error = traceback.format_exc(limit=-3)[-4000:]
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    sys.stdout.flush()
    sys.stderr.flush()
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = path
    peak_bytes = max(0, _memory("VmHWM") - resident)
    return {"status": status, "error": error, "peak_bytes": peak_bytes, "looked_for": modules}


def _memory(field: str) -> int:
    """Bytes that this process has, by a field of its status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise KeyError(field)


def _has_children() -> bool:
    """Whether a call has left processes behind."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _text(stream: Connection) -> str:
    """What was written to an anonymous file, cut after a megabyte."""
    return os.pread(stream.fileno(), 2**20, 0).decode("utf-8", errors="backslashreplace")
