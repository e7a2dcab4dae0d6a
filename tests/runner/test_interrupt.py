"""Ctrl-C, also as real processes meet it: from outside, in the middle of a round, the whole group of them at once."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

import pytest

import fedstrata as fs
from fedstrata.runner.interrupt import Patience, Stopped
from run_folder import left

EXPERIMENT = """
rounds = 5
[data]
name = "digits"
clients = 40
samples = 24
[partition]
scheme = "rotation"
groups = 2
[model]
name = "mlp"
hidden = [16]
[local]
lr = 0.1
batch = 8
[cohort]
fraction = 0.75
dropout = 0.2
[algorithm]
name = "layercfl"
eps1 = 0.3
eps2 = 0.2
[engine]
name = "loop"
workers = 2
"""

PAUSING = """
import sys
from fedstrata import cli
from fedstrata.engine import Loop, Processes, Ray

def pausing(run):
    def paused(self, order, *more):
        if getattr(order, "plan", order).round == 3:
            print("paused", *getattr(self, "pids", ()), flush=True)
            sys.stdin.readline()
        return run(self, order, *more)
    return paused

for kind in (Loop, Processes, Ray):
    kind.run = pausing(kind.run)
cli.main(sys.argv[1:])
"""
"""The command line, but the third round tells of its worker processes and waits for a line. It then goes on as ever."""


def test_the_first_ctrl_c_asks_and_says_so_and_the_second_interrupts_at_once() -> None:
    before, said = signal.getsignal(signal.SIGINT), SimpleQueue[str]()
    with Patience(said.put) as patience:
        assert not patience.asked
        signal.raise_signal(signal.SIGINT)
        assert patience.asked and said.get(timeout=60) == "finishing the round; Ctrl-C again stops at once"
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before and said.empty()


def test_outside_the_main_thread_signals_are_left_alone() -> None:
    before, during = signal.getsignal(signal.SIGINT), []

    def enter() -> None:
        with Patience(print):
            during.append(signal.getsignal(signal.SIGINT))

    thread = Thread(target=enter)
    thread.start()
    thread.join()
    assert during == [before]


def test_what_was_stopped_says_how_to_go_on_from_python() -> None:
    stop = Stopped("stopped after round 3 of 5", Path("a"))
    assert str(stop) == "stopped after round 3 of 5; go on with resume=True and out='a'"


@dataclass(frozen=True)
class Paused:
    """A command in the middle of its third round, in a group of processes of its own.

    Attributes:
        process: it.
        workers: ids of its worker processes.
    """

    process: subprocess.Popen[str]
    workers: Sequence[int]

    def interrupt(self) -> None:
        """Press Ctrl-C, which is for the group, and tell the workers as well, as those do who end a whole job."""
        os.killpg(self.process.pid, signal.SIGINT)
        for worker in self.workers:
            os.kill(worker, signal.SIGINT)

    def heard(self) -> None:
        """Wait until it says that it will stop."""
        assert self.process.stderr is not None
        while "finishing the round" not in (line := self.process.stderr.readline()):
            assert line, "it ended without a word"


@contextmanager
def paused(*command: str) -> Iterator[Paused]:
    """Start a command, and wait until it has come so far."""
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(
        [sys.executable, "-c", PAUSING, *command], **pipes, text=True, start_new_session=True
    ) as child:
        assert child.stdout is not None
        word, *workers = child.stdout.readline().split() or ["ended"]
        assert word == "paused", child.communicate()
        yield Paused(child, [int(worker) for worker in workers])


def stopped(*command: str) -> str:
    """Press Ctrl-C once; the command that is said to go on."""
    with paused(*command) as child:
        child.interrupt()
        child.heard()
        _, err = child.process.communicate("\n")
    assert child.process.returncode == 130, err
    said, _, again = err.splitlines()[-1].partition("; go on with: ")
    assert "after round 3" in said and "Traceback" not in err, err
    return again


def typed(command: str) -> None:
    """Do what was said, in a shell."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        ["sh", "-c", command], env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with an experiment in it."""
    monkeypatch.chdir(tmp_path)
    Path("my experiment.toml").write_text(EXPERIMENT)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "out"), [("loop", ""), ("processes", "the runs/a"), ("ray", "the runs/a")])
def test_a_run_that_is_stopped_in_the_middle_of_a_round_finishes_it_and_goes_on_as_never_stopped(
    engine: str, out: str, here: Path
) -> None:
    given = ["--out", out] if out else []
    again = stopped("run", "my experiment.toml", "--set", f"engine.name={engine}", *given)
    folder = Path(out or "runs/my experiment-layercfl-0")
    assert again == f"fedstrata run --resume --out '{folder}'"
    rounds = [json.loads(line)["round"] for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert rounds == [1, 2, 3] and not (folder / "summary.json").exists()
    typed(again)
    whole = fs.run("my experiment.toml", "whole", quiet=True)
    assert whole.summary["clusters"] > 1 and left(folder) == left(whole.folder)


@pytest.mark.slow
@pytest.mark.parametrize("out", ["", "the runs"])
def test_a_comparison_that_is_stopped_names_a_command_that_goes_on_as_never_stopped(out: str, here: Path) -> None:
    keys = ["my experiment.toml", "--algorithms", "fedavg, cfl", "--seeds", "0", "--set", "local.lr=0.2"]
    again = stopped("compare", *keys, *(["--out", out] if out else []))
    folder = out or "runs/my experiment-compare"
    assert again.endswith(f" --resume --out '{folder}'")
    typed(again)
    whole = fs.compare("my experiment.toml", ["fedavg", "cfl"], [0], "whole", sets=["local.lr=0.2"], quiet=True)
    for run in whole.runs:
        assert left(Path(folder, run.folder.name)) == left(run.folder)


@pytest.mark.slow
def test_a_second_ctrl_c_stops_in_the_middle_of_the_round(here: Path) -> None:
    with paused("run", "my experiment.toml", "--set", "engine.name=processes", "--out", "a") as child:
        child.interrupt()
        child.heard()
        child.interrupt()
        # Its input stays open and silent: nothing but the signal ends it.
        assert child.process.wait(timeout=60) == 130
    assert sorted(path.stem for path in Path("a/checkpoint").glob("*.sha256")) == ["00001", "00002"]
