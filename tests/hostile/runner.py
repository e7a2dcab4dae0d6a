"""Call a function in a child process that may hang, die or eat memory, and say what it did.

A server process imports the heavy libraries once. It forks a child that does one call after the other, so that a call
costs neither imports nor a process:

    with Runner() as runner:
        outcome = runner.call("fedstrata.cli:main", [["run", "wrong.toml"]], folder=here)
    assert complaints(outcome) == []

A child runs in its own process group, which is killed when a call takes longer than `seconds`. Its address space is
limited, so that a bomb ends in a MemoryError and does not take the machine with it. After a call that took much memory,
or that was killed, the next one has a new child.
"""

from __future__ import annotations

import gc
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

SPENT = GIB // 8
"""Bytes that a child has grown by when the next call gets a new one."""

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
    "made_once",
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
    """A server process that has imported what calls need, and whose children do them.

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
    # Children share the memory of what is there now, as long as no garbage collection touches it.
    gc.collect()
    gc.freeze()
    answers = os.fdopen(os.dup(1), "w")
    # Nothing that a library prints in this process may be taken for an answer.
    os.dup2(2, 1)
    child: _Child | None = None
    for line in sys.stdin:
        child = child or _Child()
        outcome = child.perform(json.loads(line))
        if child.spent:
            child.end()
            child = None
        answers.write(json.dumps(asdict(outcome)) + "\n")
        answers.flush()
    if child:
        child.end()


class _Child:
    """A forked process that does one call after the other.

    Attributes:
        spent: Whether the next call needs another one.
    """

    def __init__(self) -> None:
        """Fork it."""
        self.spent = False
        self._out, self._err = (os.memfd_create(name) for name in ("out", "err"))
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._requests)
            os.close(self._answers)
            _work(requests, answers, self._out, self._err)
        os.close(requests)
        os.close(answers)
        self._handle = os.pidfd_open(self._pid)

    def perform(self, request: dict[str, Any]) -> Outcome:
        """Have it do a call, and wait until it has, has ended, or its time is over."""
        for stream in (self._out, self._err):
            os.ftruncate(stream, 0)
        began = time.monotonic()
        content = json.dumps(request).encode()
        while content:
            content = content[os.write(self._requests, content) :]
        os.write(self._requests, b"\n")
        ready, _, _ = select.select([self._answers, self._handle], [], [], request["seconds"])
        killed = not ready
        answer = os.read(self._answers, 2**16) if self._answers in ready else b""
        if answer:
            said = json.loads(answer)
        else:
            os.killpg(self._pid, signal.SIGKILL)
            _, raw, usage = os.wait4(self._pid, 0)
            said = {"status": os.waitstatus_to_exitcode(raw), "error": "", "peak_bytes": usage.ru_maxrss * 1024}
        self.spent = not answer or said.pop("spent")
        return Outcome(
            **said, out=_text(self._out), err=_text(self._err), killed=killed, seconds=time.monotonic() - began
        )

    def end(self) -> None:
        """End it, and what it has started and left behind."""
        try:
            os.killpg(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass  # It has ended in a call.
        for file in (self._out, self._err, self._requests, self._answers, self._handle):
            os.close(file)


def _work(requests: int, answers: int, out: int, err: int) -> NoReturn:
    """In the child: do what is asked, line by line."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (out, 1), (err, 2)):
        os.dup2(source, target)
    resource.setrlimit(resource.RLIMIT_FSIZE, (GIB, GIB))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    first = _memory("VmRSS")
    with os.fdopen(requests) as lines:
        for line in lines:
            said = _perform(json.loads(line))
            said["spent"] = said["peak_bytes"] > SPENT or _memory("VmRSS") - first > SPENT or _has_children()
            os.write(answers, json.dumps(said).encode())
    os._exit(0)


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
    try:
        os.chdir(request["folder"])
        for name, value in request["environment"].items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        resource.setrlimit(resource.RLIMIT_AS, (_memory("VmSize") + request["ceiling"], resource.RLIM_INFINITY))
        module, _, name = request["function"].partition(":")
        getattr(importlib.import_module(module), name)(*request["arguments"])
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
    return {"status": status, "error": error, "peak_bytes": max(0, _memory("VmHWM") - resident)}


def _memory(field: str) -> int:
    """Bytes that this process has, by a field of its status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise KeyError(field)


def _has_children() -> bool:
    """Whether a call has left processes behind."""
    return any(task.read_text() for task in Path("/proc/self/task").glob("*/children"))


def _text(handle: int) -> str:
    """What was written to an anonymous file, cut after a megabyte."""
    return os.pread(handle, 2**20, 0).decode("utf-8", errors="backslashreplace")


if __name__ == "__main__":
    _serve(sys.argv[1:])
