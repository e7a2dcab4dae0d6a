"""A disk on which everything takes long changes no bit and no deadline.

How slow it is does not depend on a real clock: a call that waits for the disk returns when another thread lets it go,
or sets the clock of the deadlines a day forward.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest

import fedstrata as fs
from builders import keys, left
from fedstrata.engine.parallel import processes

pytestmark = pytest.mark.usefixtures("forked_workers")

KEYS = keys(rounds=3, algorithm={"name": "layercfl"})
DAY = 86_400.0
FEWEST = 3 * (4 + 2)
"""Waits for the disk in three rounds: the checksum and the tensors of a checkpoint, their folder twice, a record, and
the tree. A run has more."""


@contextmanager
def slowed(before: Callable[[], object], patch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Let something happen before each write reaches the disk; the list gets an entry each time."""
    reached = list[int]()
    real = os.fsync

    def fsync(handle: int) -> None:
        before()
        reached.append(handle)
        real(handle)

    with patch.context() as inside:
        inside.setattr(os, "fsync", fsync)
        yield reached


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> object:
    """What the run leaves on a fast disk."""
    return left(fs.run(KEYS, tmp_path_factory.mktemp("fast") / "run", quiet=True).folder)


def test_a_disk_that_lets_go_of_each_write_late_changes_no_bit(
    whole: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread lets go, and only of a write that waits already."""
    waits, lets_go = Event(), Event()
    over = False

    def disk() -> None:
        while True:
            waits.wait()
            waits.clear()
            if over:
                return
            lets_go.set()

    def wait() -> None:
        waits.set()
        lets_go.wait()
        lets_go.clear()

    thread = Thread(target=disk)
    thread.start()
    try:
        with slowed(wait, monkeypatch) as reached:
            run = fs.run(KEYS, tmp_path / "slow", quiet=True)
    finally:
        over = True
        waits.set()
        thread.join()
    assert len(reached) >= FEWEST
    assert left(run.folder) == whole


def test_a_disk_that_takes_a_day_for_each_write_makes_no_worker_late(
    whole: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker has an hour for some progress; the days that its parent waits for the disk are none of its time."""
    later = 0.0
    real = time.monotonic

    def wait() -> None:
        nonlocal later
        later += DAY

    monkeypatch.setattr(processes, "monotonic", lambda: real() + later)
    engine = {"name": "processes", "workers": 2, "timeout": 3600}
    with slowed(wait, monkeypatch) as reached, caplog.at_level(logging.WARNING):
        run = fs.run({**KEYS, "engine": engine}, tmp_path / "slow", quiet=True)
    assert len(reached) >= FEWEST and later >= FEWEST * DAY
    assert "made no progress" not in caplog.text
    assert left(run.folder) == whole
