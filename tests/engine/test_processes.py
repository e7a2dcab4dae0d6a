import gc
import math
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest
from forty import CLIENTS, MODELS, SITE, check, deadly_site, fail, plain, rich, suicide

from fedstrata.base.errors import EngineError, UserCodeError
from fedstrata.core import Report
from fedstrata.engine import Loop, Parallel, Processes
from fedstrata.engine.parallel import processes
from fedstrata.engine.parallel.messages import ReceivedMessage
from turns import same

pytestmark = pytest.mark.usefixtures("forked_workers")


def test_workers_are_as_many_as_cores_unless_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Processes(SITE).workers == processes.cores() >= 1 and Processes(SITE, 3).workers == 3
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert processes.cores() == os.cpu_count()


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Parallel, Processes]]:
    """Two processes that tests take over from each other."""
    transport = Processes(SITE, 2)
    engine = Parallel(SITE, transport)
    yield engine, transport
    engine.close()


@pytest.mark.real_workers
def test_processes_are_the_loop_in_every_bit(running: tuple[Parallel, Processes]) -> None:
    engine, transport = running
    engine.store.restore({})
    check(engine, [rich(), rich(2, [0, 20, 33]), rich(3, [CLIENTS])])
    assert len(transport.pids) == 2


def test_a_worker_that_is_killed_between_two_rounds_changes_no_bit(running: tuple[Parallel, Processes]) -> None:
    engine, transport = running
    engine.store.restore({})
    engine.run(rich())
    victim, other = transport.pids
    os.kill(victim, signal.SIGKILL)
    engine.store.restore({})
    check(engine, [rich()])
    assert not {victim, other} & set(transport.pids)


def deadly(deed: Callable[[], None], once: Path | None = None, timeout: float = 600) -> tuple[Parallel, Processes]:
    spec = deadly_site(deed, once)
    transport = Processes(spec, 1, timeout)
    return Parallel(spec, transport), transport


@cache
def expected() -> Report:
    return Loop.at(SITE).run(plain())


def test_a_worker_that_dies_at_work_changes_no_bit(tmp_path: Path) -> None:
    engine, _ = deadly(suicide, tmp_path / "died")
    found = engine.run(plain())
    assert (tmp_path / "died").exists() and same(found, expected())


def test_work_that_kills_every_worker_fails_and_leaves_none() -> None:
    engine, transport = deadly(suicide)
    with pytest.raises(EngineError, match="lost one in each of 3 attempts, the last one with exit status -9"):
        engine.run(plain())
    assert transport.pids == ()


def test_what_a_worker_raises_is_raised_here_and_the_next_round_is_as_ever(tmp_path: Path) -> None:
    engine, transport = deadly(partial(fail, KeyError("somewhere")), tmp_path / "raised")
    with pytest.raises(UserCodeError, match="failed: KeyError: 'somewhere'") as found:
        engine.run(plain())
    assert "in forward" in found.value.trace and "in forward" in found.value.__notes__[0] and transport.pids == ()
    assert same(engine.run(plain()), expected())


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a worker that is stopped is over at once, and that of others never."""

    def remaining(worker: processes._Worker) -> float:
        try:
            state = Path(f"/proc/{worker.process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):  # the fork server has waited for a worker that was killed
            return math.inf
        return 0.0 if state == "T" else math.inf

    monkeypatch.setattr(processes._Worker, "remaining", remaining)
    monkeypatch.setattr(processes, "wait", lambda lines, seconds: wait(lines, 0.01))


@pytest.mark.usefixtures("impatient")
def test_a_worker_that_stops_at_work_is_replaced_and_changes_no_bit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine, _ = deadly(stop, tmp_path / "stopped", timeout=5)
    found = engine.run(plain())
    assert (tmp_path / "stopped").exists() and same(found, expected())
    (said,) = caplog.messages
    assert "made no progress for 5 s; if its work takes longer, raise engine.timeout; new ones do the work" in said


@pytest.mark.usefixtures("impatient")
def test_a_worker_that_was_stopped_between_two_rounds_changes_no_bit() -> None:
    transport = Processes(SITE, 1, timeout=5)
    engine = Parallel(SITE, transport)
    engine.run(replace(plain(), tasks={}))
    (victim,) = transport.pids
    os.kill(victim, signal.SIGSTOP)
    assert same(engine.run(plain()), expected())
    assert victim not in transport.pids and len(transport.pids) == 1
    engine.close()


def test_work_at_which_every_worker_stops_fails_and_leaves_none() -> None:
    engine, transport = deadly(stop, timeout=1)
    with pytest.raises(
        EngineError, match="in each of 3 attempts, the last one as it made no progress for 1 s"
    ) as found:
        engine.run(plain())
    assert transport.pids == () and "raise engine.timeout" in str(found.value)


def test_a_worker_that_makes_progress_may_take_longer_than_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the clock of the test, 400 s pass before each of many signs; only 600 s without one would be too long."""
    clock, signs, receive = [0.0], list[object](), processes._Worker.receive

    def late(worker: processes._Worker) -> ReceivedMessage | None:
        clock[0] += 400.0
        signs.append(worker)
        return receive(worker)

    monkeypatch.setattr(processes, "monotonic", lambda: clock[0])
    monkeypatch.setattr(processes, "_PROGRESS_SECONDS", 1e-9)
    monkeypatch.setattr(processes._Worker, "receive", late)
    transport = Processes(SITE, 1)
    assert same(Parallel(SITE, transport).run(plain()), expected())
    assert len(signs) > CLIENTS and len(set(signs)) == 1
    transport.close()


WITHOUT_MEMORY = "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**28, 2**28))\n"
WITHOUT_FILES = (
    "import os, resource; resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir('/proc/self/fd')) - 1,) * 2)"
)


@pytest.mark.real_workers
@pytest.mark.parametrize(
    ("start", "reason"),
    [
        (WITHOUT_MEMORY + processes.START, "Error: .*; if memory ran out, free some"),
        (
            processes.START.replace("    run_worker(", f"    {WITHOUT_FILES}\n    run_worker("),
            "OSError: .*Too many open files",
        ),
    ],
)
def test_a_worker_that_cannot_even_listen_says_why_in_one_line(
    start: str, reason: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(processes, "START", start)
    transport = Processes(SITE, 1)
    with pytest.raises(EngineError, match=f"lost one in each of 3 attempts, the last one with .*{reason}"):
        Parallel(SITE, transport).run(plain())
    assert transport.pids == () and capfd.readouterr().err == ""


@pytest.mark.usefixtures("impatient")
def test_replaced_workers_leave_no_file_open_and_no_thread() -> None:
    transport = Processes(SITE, 2, timeout=5)
    engine, counts = Parallel(SITE, transport), list[tuple[int, int]]()
    for end in (None, signal.SIGKILL, signal.SIGSTOP, signal.SIGKILL):
        if end is not None:
            os.kill(transport.pids[0], end)
        engine.run(plain())
        gc.collect()
        counts.append((len(os.listdir("/proc/self/fd")), threading.active_count()))
    assert len(set(counts)) == 1, counts
    engine.close()


def interrupt() -> None:
    os.kill(os.getppid(), signal.SIGINT)


@pytest.mark.real_workers
def test_an_interrupted_round_leaves_no_process(tmp_path: Path) -> None:
    engine, transport = deadly(interrupt, tmp_path / "interrupted")
    watched = list[int]()
    start = processes._Worker.__init__

    def watching(self: Any, timeout: float) -> None:
        start(self, timeout)
        watched.append(os.pidfd_open(self.process.pid))

    # Whoever starts tests in the background has them ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(processes._Worker, "__init__", watching)
            with pytest.raises(KeyboardInterrupt):
                engine.run(plain())
    finally:
        signal.signal(signal.SIGINT, before)
    assert transport.pids == () and len(watched) == 1 and all(map(ended, watched))


def ended(process: int) -> bool:
    """Whether a process ends, by a handle on it that is closed then."""
    found, *_ = select.select([process], [], [], 60)
    os.close(process)
    return bool(found)


def test_processes_end_with_their_engine() -> None:
    transport = Processes(SITE, 1)
    engine = Parallel(SITE, transport)
    engine.run(replace(plain(), tasks={}))
    watched = [os.pidfd_open(pid) for pid in transport.pids]
    del engine, transport
    gc.collect()
    assert len(watched) == 1 and all(map(ended, watched))


ORPHANS = """
import os, sys
sys.path[:0] = sys.argv[1:]
import signal, torch
from forty import SITE, plain
from fedstrata.engine import Parallel, Processes
transport = Processes(SITE, 1)
engine = Parallel(SITE, transport)
engine.run(plain())
print(*transport.pids, flush=True)
sys.stdin.read()
"""


def test_processes_end_with_a_parent_that_was_killed() -> None:
    """It is also a script without a guard around what it does, which no worker may run again."""
    here = Path(__file__).parent
    command = [sys.executable, "-c", ORPHANS, str(here), str(here.parent)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        watched = [os.pidfd_open(int(pid)) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert len(watched) == 1 and all(map(ended, watched))


@pytest.mark.parametrize("workers", [1, 2])
def test_reports_stay_as_they_are_when_others_come(workers: int) -> None:
    """The answer of a single worker is not copied, and workers write to the memory of earlier answers again."""
    loop, parallel = Loop.at(SITE), Parallel(SITE, Processes(SITE, workers))
    plans = [plain(MODELS * factor) for factor in (1.0, 0.5, 2.0, -1.0)]
    held = [parallel.run(plan) for plan in plans[:2]]
    for plan in plans * 2:
        assert same(parallel.run(plan), loop.run(plan))
    for plan, report in zip(plans, held, strict=False):
        assert same(report, loop.run(plan))
    parallel.close()
