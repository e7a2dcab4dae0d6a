"""A few rounds of an algorithm on forty clients, by any engine."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from fedstrata.build.build import build_run
from fedstrata.build.participation import sample_cohort
from fedstrata.build.run_setup import RunSetup
from fedstrata.config import load_experiment
from fedstrata.core import Report, State
from test_every_algorithm import EAGER

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
    return play(loop_setting(), name)


@cache
def loop_setting() -> RunSetup:
    return setting_of("loop")
