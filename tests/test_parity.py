"""The same bits from every engine that does the loop's arithmetic, whatever the number of workers and their luck.

The batched engine, which is equal within a tolerance, is compared in ``engine/test_batched.py``.
"""

import os
import signal
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import fedstrata as fs
from builders import DISK_EVENTS, keys, left
from fedstrata.algorithms import ALGORITHMS
from fedstrata.build.build import build_run
from fedstrata.build.run_setup import RunSetup
from fedstrata.config import Experiment, load_experiment
from fedstrata.engine import Parallel, Processes
from fedstrata.engine.device import one_thread
from fedstrata.play.interrupt import Stopped
from fedstrata.play.rounds import answer_plans, timed_reply
from fedstrata.play.steps import run_steps
from personal_stage import METHODS, with_stage
from personal_stage import play as play_personal
from played_rounds import KEYS, ROUNDS, by_loop, loop_setting, play, setting_of
from turns import same

pytestmark = pytest.mark.usefixtures("forked_workers")


ALONE = ("fedtsdp", "ifca", "strata")
"""What is played on a single process too: between them they choose, keep, tell facts and train on parts."""


@pytest.fixture(scope="module")
def processes() -> Iterator[dict[int, RunSetup]]:
    """The federation on one process and on three, which all algorithms take over from each other."""
    settings = {workers: setting_of("processes", workers) for workers in (1, 3)}
    yield settings
    for setup in settings.values():
        _transport(setup).close()


def _transport(setup: RunSetup) -> Processes:
    assert isinstance(setup.clients, Parallel) and isinstance(setup.clients._transport, Processes)
    return setup.clients._transport


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_processes_are_the_loop_in_every_bit(processes: dict[int, RunSetup], name: str) -> None:
    for workers in (1, 3) if name in ALONE else (3,):
        assert same(play(processes[workers], name), by_loop(name)), f"{workers} workers"


@pytest.mark.parametrize("method", METHODS)
def test_the_personal_stage_is_the_loop_in_every_bit(processes: dict[int, RunSetup], method: str) -> None:
    expected = play_personal(with_stage(loop_setting(), "strata", method))
    found = play_personal(with_stage(processes[3], "strata", method))
    assert same(found.reports, expected.reports) and same(found.stored, expected.stored)


def test_what_is_compared_has_absent_clients_and_choices_and_personal_layers() -> None:
    turns, _ = by_loop("ifca")
    assert all(0 < len(turn.report.results["train"].sizes) < 32 for turn in turns)
    assert bool((~turns[-1].report.results["train"].losses.isnan()).sum(dim=1).eq(3).all())
    assert by_loop("fedper")[1].keys() != set() != by_loop("ditto")[1].keys()
    assert any(len(by_loop(name)[0][-1].after.models) > 1 for name in ("layercfl", "adacfl", "hicfl"))


def test_a_worker_that_is_killed_changes_no_bit(processes: dict[int, RunSetup]) -> None:
    transport, killed = _transport(processes[3]), list[int]()

    def kill() -> None:
        killed.append(transport.pids[-1])
        os.kill(killed[-1], signal.SIGKILL)

    assert same(play(processes[3], "fedper", kill), by_loop("fedper"))
    assert len(set(killed)) == ROUNDS


def one_round(experiment: Experiment, out: Path) -> None:
    """Go on with a run for one round, and stop."""
    rounds = count()
    setup = build_run(experiment)
    steps = run_steps(experiment, setup, out, resume=out.exists(), stop=lambda: next(rounds) > 0)
    with pytest.raises(Stopped), one_thread():
        answer_plans(steps, partial(timed_reply, setup.clients))


def test_a_run_that_goes_on_with_other_workers_changes_no_bit(tmp_path: Path) -> None:
    def tables(engine: str, workers: int = 0) -> dict[str, Any]:
        return keys(KEYS, algorithm={"name": "fedrep"}, engine={"name": engine, "workers": workers})

    out = tmp_path / "broken"
    unbroken = fs.run(tables("loop"), tmp_path / "unbroken", quiet=True)
    for workers in (1, 3):
        one_round(load_experiment(tables("processes", workers)), out)
    finished = fs.run(tables("loop"), out, resume=True, quiet=True)
    assert same(finished.state, unbroken.state)
    assert left(out, without=DISK_EVENTS) == left(unbroken.folder, without=DISK_EVENTS)
