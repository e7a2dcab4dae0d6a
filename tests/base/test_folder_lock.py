"""Two processes in one folder, which are real ones where it matters who dies."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedstrata as fs
from builders import experiment
from fedstrata import report
from fedstrata.base.errors import InputError
from fedstrata.base.files import folder_lock
from fedstrata.build.build import build_run
from fedstrata.play.rounds import timed_reply
from fedstrata.play.steps import run_steps
from fedstrata.report.figures import save_figures

HOLD = """
import os, subprocess, sys
from pathlib import Path
from fedstrata.base.files import folder_lock

with folder_lock(Path(sys.argv[1])):
    worker = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"])
    said, says = os.pipe()
    if os.fork() == 0:
        os.write(says, b".")
        sys.stdin.read()
        os._exit(0)
    os.read(said, 1)  # A process that was forked off lets go of the lock when it begins to run.
    print("held", worker.pid, flush=True)
    sys.stdin.read()
"""
"""Holds a lock, with a worker that was started and one that was forked off; all live until their input ends."""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has the lock of the folder ``run``."""
    (tmp_path / "run").mkdir()
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "run")], **pipes, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("held")
        yield process


def test_who_comes_second_is_told_in_one_line_who_is_there(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    expected = rf"no other process works in this folder, found process {holder.pid} on {socket.gethostname()}; wait"
    with pytest.raises(InputError, match=expected) as caught, folder_lock(tmp_path / "run"):
        pass
    assert "\n" not in str(caught.value)


def test_the_lock_is_free_when_its_process_was_killed_though_its_workers_live(
    holder: subprocess.Popen[str], tmp_path: Path
) -> None:
    holder.kill()
    assert holder.wait() == -signal.SIGKILL
    with folder_lock(tmp_path / "run"):
        assert (tmp_path / "run" / "lock").read_text() == f"{os.getpid()} {socket.gethostname()}\n"


def test_a_folder_is_made_and_one_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    with folder_lock(tmp_path / "new" / "folder"):
        assert (tmp_path / "new" / "folder" / "lock").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="expected a folder that can be made"), folder_lock(tmp_path / "file" / "run"):
        pass


@pytest.mark.parametrize("text", ["", "999999999 elsewhere\n", "\x1b[31m", "x" * 5000])
def test_a_file_that_is_left_over_is_no_lock(text: str, tmp_path: Path) -> None:
    (tmp_path / "lock").write_text(text)
    with folder_lock(tmp_path):
        pass


def test_a_lock_that_leads_elsewhere_is_refused_and_nothing_is_written_there(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("kept")
    for make in (lambda lock: lock.symlink_to(other), lambda lock: os.link(other, lock), os.mkfifo, os.mkdir):
        folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        make(folder / "lock")
        with pytest.raises(InputError, match="expected a file that can be locked, found"), folder_lock(folder):
            pass
    assert other.read_text() == "kept"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Path]:
    """The folder of a run that waits for the answers of its second round."""
    small = experiment(rounds=2)
    setup = build_run(small)
    run = run_steps(small, setup, tmp_path / "run")
    run.send(timed_reply(setup.clients, next(run)))
    yield tmp_path / "run"
    run.close()


def test_nobody_else_writes_into_the_folder_of_a_run_that_goes_on(running: Path) -> None:
    before = {path: path.read_bytes() for path in running.rglob("*") if path.is_file()}
    for act in (
        lambda: fs.run(None, running, resume=True, quiet=True),
        lambda: report.build(running),
        lambda: save_figures(running, "svg"),
    ):
        with pytest.raises(InputError, match=f"no other process works in this folder, found process {os.getpid()}"):
            act()
    assert {path: path.read_bytes() for path in running.rglob("*") if path.is_file()} == before
