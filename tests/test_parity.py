"""The same bits from every engine that does the loop's arithmetic, whatever the number of workers and their luck.

The batched engine, which is equal within a tolerance, is compared in ``engine/test_batched.py``.
"""

import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from fedstrata.algorithms import ALGORITHMS
from fedstrata.config import Experiment, load_experiment
from fedstrata.core import Report, State
from fedstrata.engine import Parallel, Processes
from fedstrata.runner.build import build_run
from fedstrata.runner.interrupt import Stopped
from fedstrata.runner.membership import sample_cohort
from fedstrata.runner.rounds import answer_plans, one_thread, timed_reply
from fedstrata.runner.run import run_experiment
from fedstrata.runner.run_setup import RunSetup
from fedstrata.runner.steps import run_steps
from personal_stage import METHODS, with_stage
from personal_stage import play as play_personal
from test_every_algorithm import EAGER
from turns import same

KEYS: dict[str, Any] = {
    "rounds": 3,
    # Three blocks of client ids, the last one smaller.
    "data": {"name": "digits", "clients": 40, "samples": 16, "test": 0.2, "public": 32},
    "partition": {"scheme": "rotation", "groups": 2},
    "model": {"name": "mlp", "hidden": [8]},
    "local": {"lr": 0.1, "batch": 8},
    "cohort": {"fraction": 0.8, "dropout": 0.2},
}

Played = tuple[tuple[tuple[Report, State], ...], dict[str, torch.Tensor]]
"""The reports and states of some rounds, and what is on the clients' devices at the end."""


def setting_of(engine: str, workers: int = 0) -> RunSetup:
    return build_run(load_experiment({**KEYS, "engine": {"name": engine, "workers": workers}}))


def play(setup: RunSetup, name: str, between: Callable[[], None] = lambda: None) -> Played:
    """A few rounds of an algorithm: some are not asked, some of those do not answer, everyone is scored.

    Args:
        setup: whose federation and engine it is.
        name: of the algorithm.
        between: done after every round.
    """
    algorithm = load_experiment({**KEYS, "algorithm": {"name": name, **EAGER.get(name, {})}}).algorithm_of()
    problem, clients, rates = setup.server.problem, setup.clients, load_experiment(KEYS).cohort
    clients.store.restore({})
    state, turns = algorithm.init(problem), list[tuple[Report, State]]()
    for round in range(1, KEYS["rounds"] + 1):
        evaluations = algorithm.evaluations(problem, state, setup.everyone)
        cohort, absent = sample_cohort(problem.seed, round, setup.everyone, rates.fraction, rates.dropout)
        plan = algorithm.plan(problem, state, cohort)
        report = clients.run(replace(plan.only(~torch.isin(plan.cohort, absent)), evaluations=evaluations))
        state, _ = algorithm.update(problem, state, replace(report, cohort=plan.cohort))
        turns.append((report, state))
        between()
    return tuple(turns), clients.store.tensors()


@cache
def by_loop(name: str) -> Played:
    return play(_loop(), name)


@cache
def _loop() -> RunSetup:
    return setting_of("loop")


@pytest.fixture(scope="module")
def processes() -> Iterator[dict[int, RunSetup]]:
    """The federation on one, two and three processes, for all algorithms one after the other."""
    settings = {workers: setting_of("processes", workers) for workers in (1, 2, 3)}
    yield settings
    for setup in settings.values():
        _transport(setup).close()


def _transport(setup: RunSetup) -> Processes:
    assert isinstance(setup.clients, Parallel) and isinstance(setup.clients._transport, Processes)
    return setup.clients._transport


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_processes_are_the_loop_in_every_bit(processes: dict[int, RunSetup], name: str) -> None:
    for workers, setup in processes.items():
        assert same(play(setup, name), by_loop(name)), f"{workers} workers"


@pytest.mark.parametrize("method", METHODS)
def test_the_personal_stage_is_the_loop_in_every_bit(processes: dict[int, RunSetup], method: str) -> None:
    expected = play_personal(with_stage(_loop(), "strata", method))
    for setup in processes.values():
        found = play_personal(with_stage(setup, "strata", method))
        assert same(found.reports, expected.reports) and same(found.stored, expected.stored)


def test_what_is_compared_has_absent_clients_and_choices_and_personal_layers() -> None:
    turns, _ = by_loop("ifca")
    assert all(0 < len(report.results["train"].sizes) < 32 for report, _ in turns)
    assert bool((~turns[-1][0].results["train"].losses.isnan()).sum(dim=1).eq(3).all())
    assert by_loop("fedper")[1].keys() != set() != by_loop("ditto")[1].keys()
    assert any(len(by_loop(name)[0][-1][1].models) > 1 for name in ("layercfl", "adacfl", "hicfl"))


def test_a_worker_that_is_killed_changes_no_bit(processes: dict[int, RunSetup]) -> None:
    transport, killed = _transport(processes[2]), list[int]()

    def kill() -> None:
        killed.append(transport.pids[-1])
        os.kill(killed[-1], signal.SIGKILL)

    assert same(play(processes[2], "fedper", kill), by_loop("fedper"))
    assert len(set(killed)) == KEYS["rounds"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning")  # of Ray itself
def test_ray_is_the_loop_in_every_bit() -> None:
    setup = setting_of("ray", 2)
    for name in ("centralized", "ditto", "ifca", "pacfl", "strata"):
        assert same(play(setup, name), by_loop(name)), name
    found, expected = (play_personal(with_stage(each, "ifca", "best")) for each in (setup, _loop()))
    assert same(found.reports, expected.reports) and same(found.stored, expected.stored)


def one_round(experiment: Experiment, out: Path) -> None:
    """Go on with a run for one round, and stop."""
    rounds = count()
    setup = build_run(experiment)
    steps = run_steps(experiment, setup, out, resume=out.exists(), stop=lambda: next(rounds) > 0)
    with pytest.raises(Stopped), one_thread():
        answer_plans(steps, partial(timed_reply, setup.clients))


@pytest.mark.slow
def test_a_run_that_goes_on_with_other_workers_changes_no_bit(tmp_path: Path) -> None:
    def lines(folder: str) -> list[dict[str, Any]]:
        read = [json.loads(line) for line in (tmp_path / folder / "rounds.jsonl").read_text().splitlines()]
        return [{key: value for key, value in line.items() if not key.startswith("seconds")} for line in read]

    def experiment(engine: str, workers: int) -> Experiment:
        return load_experiment(
            {**KEYS, "algorithm": {"name": "fedrep"}, "engine": {"name": engine, "workers": workers}}
        )

    out = tmp_path / "broken"
    run_experiment(experiment("loop", 0), tmp_path / "unbroken", quiet=True)
    for workers in (1, 3):
        one_round(experiment("processes", workers), out)
    finished = run_experiment(experiment("loop", 0), out, resume=True, quiet=True)
    unbroken = run_experiment(experiment("loop", 0), tmp_path / "unbroken", resume=True, quiet=True)
    assert same(finished.state, unbroken.state) and lines("broken") == lines("unbroken")
    for path in (tmp_path / "unbroken" / "models").iterdir():
        assert path.read_bytes() == (tmp_path / "broken" / "models" / path.name).read_bytes()
