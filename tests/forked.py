"""Processes that start in a moment: they are forked from one that has imported what they need.

A new Python takes seconds to import torch, and most of a short test would be spent on that:

    done = run(command, "run", "mine.toml")
    assert done.status == 0, done.err

Such a process is one of its own in every respect that a test looks at: signals, limits, files, threads and exit status.
"""

from __future__ import annotations

import io
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import SimpleNamespace, TracebackType
from typing import Any, Self

import pytest

PRELOAD = (
    "fedstrata.cli",
    "fedstrata.comparison",
    "fedstrata.config",
    "fedstrata.data.cache",
    "fedstrata.data.libraries",
    "fedstrata.data.npz",
    "fedstrata.data.parquet",
    "fedstrata.engine.parallel.processes",
    "fedstrata.report",
    "fedstrata.play.run",
    "PIL.Image",
    "pytest",
    "scipy.cluster.hierarchy",
    "scipy.optimize",
    "sklearn.cluster",
    "sklearn.datasets",
    "sklearn.impute",
    "sklearn.metrics",
    "sklearn.neighbors",
    "sklearn.preprocessing",
    "unsynced",
)
"""Modules that are imported once, before the first process is forked."""

_CONTEXT = get_context("forkserver")
_CONTEXT.set_forkserver_preload(list(PRELOAD))


class Process:
    """A process that runs a function, with pipes to its standard streams.

    Args:
        function: What it runs. The module that it lies in is imported in the process.
        arguments: What the function is given.
        limits: Limits on its resources, by their numbers in `resource`.

    Attributes:
        pid: Its id.
        stdin: A pipe to its standard input, likewise `stdout` and `stderr` from its outputs.
    """

    def __init__(
        self, function: Callable[..., object], *arguments: Any, limits: Mapping[int, int] | None = None
    ) -> None:
        """Start it, in the working directory and with the environment of this process, in a session of its own."""
        ours, theirs = list[int](), list[Connection]()
        for writing in (True, False, False):
            ends = os.pipe()
            ours.append(ends[writing])
            theirs.append(Connection(ends[not writing], readable=writing, writable=not writing))
        self.stdin, self.stdout, self.stderr = (os.fdopen(end, mode) for end, mode in zip(ours, "wrr", strict=True))
        settings = (os.getcwd(), dict(os.environ), dict(limits or {}))
        self._process = _CONTEXT.Process(target=_enter, args=(theirs, *settings, function, arguments))
        self._process.start()
        for end in theirs:
            end.close()
        self.pid = _pid(self._process)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, negative when a signal has ended it.

        Raises:
            subprocess.TimeoutExpired: When it still runs after so many seconds.
        """
        return _wait(self._process, timeout)

    def kill(self) -> None:
        """End it at once, and what it has started in its session."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def communicate(self, text: str = "") -> tuple[str, str]:
        """Write to its standard input, close it, and read all output, which has to fit into a pipe."""
        self.stdin.write(text)
        self.stdin.close()
        return self.stdout.read(), self.stderr.read()

    def __enter__(self) -> Self:
        """The process itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End it."""
        self.kill()
        self.wait()
        for stream in (self.stdin, self.stdout, self.stderr):
            stream.close()


@dataclass(frozen=True)
class Done:
    """A process that has ended.

    Attributes:
        status: Its exit status, negative when a signal has ended it.
        out: What it wrote to its standard output.
        err: What it wrote to its standard error.
    """

    status: int
    out: str
    err: str


def run(function: Callable[..., object], *arguments: Any, limits: Mapping[int, int] | None = None) -> Done:
    """Run a function in a process of its own until its end."""
    with Process(function, *arguments, limits=limits) as process:
        out, err = process.communicate()
        return Done(process.wait(), out, err)


def command(*arguments: str) -> None:
    """Be the command line, whose worker processes are forked as well."""
    from fedstrata import cli
    from fedstrata.engine.parallel import processes

    pytest.MonkeyPatch().setattr(processes, "subprocess", forking(get_context("fork")))
    cli.main(arguments)


def script(source: str) -> None:
    """Be a script."""
    exec(source, {"__name__": "__main__"})


class Worker:
    """Stands in for `subprocess.Popen` where worker processes are started, and forks them instead.

    Args:
        context: How it is forked.
        program: The command line of a new Python: the interpreter, ``-c``, the program and its arguments.
        pass_fds: The file that it shares with its parent, which is also one of the arguments.
        options: Other options of `subprocess.Popen`.
    """

    def __init__(self, context: Any, program: Sequence[str], pass_fds: Sequence[int], **options: Any) -> None:
        """Start it."""
        (shared,) = pass_fds
        line = Connection(os.dup(shared))
        self._process = context.Process(target=_work, args=(line, program[2], *program[3:]))
        self._process.start()
        line.close()
        self.pid = _pid(self._process)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def wait(self) -> int:
        """Its exit status, negative when a signal has ended it."""
        return _wait(self._process)


def forking(context: Any = _CONTEXT) -> SimpleNamespace:
    """What stands in for the module `subprocess` where worker processes are started, and forks them instead."""

    def start(program: Sequence[str], **options: Any) -> Worker:
        return Worker(context, program, **options)

    return SimpleNamespace(Popen=start, DEVNULL=subprocess.DEVNULL)


def _pid(process: BaseProcess) -> int:
    assert process.pid is not None
    return process.pid


def _wait(process: BaseProcess, timeout: float | None = None) -> int:
    process.join(timeout)
    if process.exitcode is None:
        raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
    return process.exitcode


def _enter(
    streams: Sequence[Connection],
    folder: str,
    environment: Mapping[str, str],
    limits: Mapping[int, int],
    function: Callable[..., object],
    arguments: Sequence[Any],
) -> None:
    """In the process: take what it is given, and run the function."""
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
        stream.close()
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), "utf-8")
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(
            io.BufferedWriter(io.FileIO(number, "w", closefd=False)), "utf-8", errors=errors, line_buffering=number == 2
        )
        for number, errors in ((1, "strict"), (2, "backslashreplace"))
    )
    for kind, value in limits.items():
        resource.setrlimit(kind, (value, value))
    function(*arguments)


def _work(line: Connection, program: str, path: str, shared: str, *more: str) -> None:
    """In a worker process: run the program as a new Python would, which has no other file of its parent."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for file in map(int, os.listdir("/proc/self/fd")):
        if file not in (1, 2, nothing, line.fileno()):
            os.dup2(nothing, file)
    sys.argv = ["-c", path, str(line.fileno()), *more]
    script(program)
