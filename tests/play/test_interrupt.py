"""Ctrl-C, also as real processes meet it: from outside, in the middle of a round, the whole group of them at once."""

import json
import os
import select
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from types import FrameType
from typing import Any

import pytest
import tomli_w

import fedstrata as fs
from builders import keys, left
from fedstrata.engine import Loop, Processes, Ray
from fedstrata.play.interrupt import interruptible
from forked import Process, command, run

pytestmark = pytest.mark.usefixtures("forked_workers")

EXPERIMENT = tomli_w.dumps(
    keys(
        rounds=5,
        data={"clients": 40, "samples": 24},
        model={"name": "mlp", "hidden": [16]},
        local={"lr": 0.1, "batch": 8},
        cohort={"fraction": 0.75, "dropout": 0.2},
        algorithm={"name": "layercfl", "eps1": 0.3, "eps2": 0.2, "gamma": 0.5, "min_split": 3},
        engine={"name": "loop", "workers": 2},
    )
)


def pausing(*arguments: str) -> None:
    """The command line, but the third round tells of its worker processes and waits for a line; then it goes on."""

    def pause(run: Callable[..., Any]) -> Callable[..., Any]:
        def paused(self: Any, order: Any, *more: Any) -> Any:
            if getattr(order, "plan", order).round == 3:
                print("paused", *getattr(self, "pids", ()), flush=True)
                # A signal just before the process waits without end would be seen only after it.
                while not select.select([sys.stdin], [], [], 0.01)[0]:
                    continue
            return run(self, order, *more)

        return paused

    for kind in (Loop, Processes, Ray):
        kind.run = pause(kind.run)  # type: ignore[method-assign]  # which ends with the process
    command(*arguments)


def test_the_first_ctrl_c_asks_and_says_so_and_the_second_interrupts_at_once() -> None:
    before, said = signal.getsignal(signal.SIGINT), SimpleQueue[str]()
    with interruptible(said.put) as patience:
        assert not patience.asked
        signal.raise_signal(signal.SIGINT)
        assert patience.asked and said.get(timeout=60) == "finishing the round; Ctrl-C again stops at once"
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before and said.empty()


def interrupted_at(step: int) -> tuple[bool, BaseException | None]:
    """Let the second Ctrl-C come so many steps of the interpreter after the first one.

    Returns:
        Whether the first one was still being handled then, and what was raised.
    """
    steps = 0

    def count(frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        nonlocal steps
        frame.f_trace_opcodes = True
        if event == "opcode":
            steps += 1
            if steps == step:
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
        return count

    before = sys.gettrace()
    raised = None
    with interruptible(lambda line: None):
        sys.settrace(count)
        try:
            signal.raise_signal(signal.SIGINT)
        except BaseException as error:
            raised = error
        finally:
            sys.settrace(before)
    return steps >= step, raised


def test_a_second_ctrl_c_that_comes_while_the_first_is_handled_interrupts_all_the_same() -> None:
    """One in the middle of the start of a thread was a RuntimeError of its locks, and the exit status was 1."""
    step = 20  # the first steps: nobody has asked yet, so that both signals may count as the first one
    while (found := interrupted_at(step))[0]:
        assert type(found[1]) is KeyboardInterrupt, (step, found)
        step += 1
    assert step > 200


def test_outside_the_main_thread_signals_are_left_alone() -> None:
    before, during = signal.getsignal(signal.SIGINT), []

    def enter() -> None:
        with interruptible(print):
            during.append(signal.getsignal(signal.SIGINT))

    thread = Thread(target=enter)
    thread.start()
    thread.join()
    assert during == [before]


@dataclass(frozen=True)
class Paused:
    """A command in the middle of its third round, in a group of processes of its own.

    Attributes:
        process: it.
        workers: ids of its worker processes.
    """

    process: Process
    workers: Sequence[int]

    def interrupt(self) -> None:
        """Press Ctrl-C, which is for the group, and tell the workers as well, as those do who end a whole job."""
        for worker in self.workers:  # before the process ends, and they with it
            os.kill(worker, signal.SIGINT)
        os.killpg(self.process.pid, signal.SIGINT)

    def heard(self) -> None:
        """Wait until it says that it will stop."""
        while "finishing the round" not in (line := self.process.stderr.readline()):
            assert line, "it ended without a word"


@contextmanager
def paused(*command: str) -> Iterator[Paused]:
    """Start a command, and wait until it has come so far."""
    with Process(pausing, *command) as child:
        word, *workers = child.stdout.readline().split() or ["ended"]
        assert word == "paused", child.communicate()
        yield Paused(child, [int(worker) for worker in workers])


def stopped(*command: str) -> str:
    """Press Ctrl-C once; the command that is said to go on."""
    with paused(*command) as child:
        child.interrupt()
        child.heard()
        _, err = child.process.communicate("\n")
        assert child.process.wait() == 130, err
    said, _, again = err.splitlines()[-1].partition("; go on with: ")
    assert "after round 3" in said and "Traceback" not in err, err
    return again


def typed(line: str) -> None:
    """Do what was said, as a shell takes it apart."""
    name, *arguments = shlex.split(line)
    done = run(command, *arguments)
    assert name == "fedstrata" and done.status == 0, done.err


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with an experiment in it."""
    monkeypatch.chdir(tmp_path)
    Path("my experiment.toml").write_text(EXPERIMENT)
    return tmp_path


@pytest.mark.parametrize(
    ("engine", "out"),
    [("loop", ""), ("processes", "the runs/a"), pytest.param("ray", "the runs/a", marks=pytest.mark.deploy)],
)
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


def test_a_comparison_that_is_stopped_names_a_command_that_goes_on_as_never_stopped(here: Path) -> None:
    given = ["my experiment.toml", "--algorithms", "fedavg, cfl", "--seeds", "0", "--set", "local.lr=0.2"]
    again = stopped("compare", *given)
    folder = "runs/my experiment-compare"
    assert again.endswith(f" --resume --out '{folder}'")
    typed(again)
    whole = fs.compare("my experiment.toml", ["fedavg", "cfl"], [0], "whole", sets=["local.lr=0.2"], quiet=True)
    for one in whole.runs:
        assert left(Path(folder, one.folder.name)) == left(one.folder)


def test_a_second_ctrl_c_stops_in_the_middle_of_the_round(here: Path) -> None:
    with paused("run", "my experiment.toml", "--set", "engine.name=processes", "--out", "a") as child:
        child.interrupt()
        child.heard()
        child.interrupt()
        # Its input stays open and silent: nothing but the signal ends it.
        assert child.process.wait(timeout=60) == 130
    assert sorted(path.stem for path in Path("a/checkpoint").glob("*.sha256")) == ["00001", "00002"]
