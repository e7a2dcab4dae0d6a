"""Over Flower's messages, as bytes, the same bits as from the loop engine."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from in_process import Federation, without

from fedstrata.algorithms import ALGORITHMS
from fedstrata.build.participation import sample_cohort
from fedstrata.build.run_setup import RunSetup
from fedstrata.config import load_experiment
from fedstrata.core import Plan, Report, State
from personal_stage import METHODS, REFUSED, with_stage
from personal_stage import play as play_personal
from test_every_algorithm import EAGER
from turns import same

KEYS: dict[str, Any] = {
    "data": {"name": "digits", "clients": 8, "samples": 32, "test": 0.2, "public": 32},
    "partition": {"scheme": "rotation", "groups": 2},
    "model": {"name": "mlp", "hidden": [8]},
    "local": {"lr": 0.1, "batch": 8},
}
ROUNDS = 4

Ask = Callable[[Plan, torch.Tensor], Report]
"""Has a plan for a whole cohort done, of which some clients never answer."""


def play(setup: RunSetup, ask: Ask, name: str) -> Iterator[tuple[Report, State]]:
    """A few rounds in which some clients are not asked and some of those asked do not answer."""
    algorithm = load_experiment({**KEYS, "algorithm": {"name": name, **EAGER.get(name, {})}}).algorithm_of()
    problem, state = setup.server.problem, algorithm.init(setup.server.problem)
    for round in range(1, ROUNDS + 1):
        evaluations = algorithm.evaluations(problem, state, setup.everyone)
        cohort, absent = sample_cohort(problem.seed, round, setup.everyone, 0.8, 0.2)
        plan = algorithm.plan(problem, state, cohort)
        report = ask(replace(plan, evaluations=evaluations), absent)
        state, _ = algorithm.update(problem, state, replace(report, cohort=plan.cohort))
        yield report, state


def by_simulator(setup: RunSetup) -> Ask:
    setup.clients.store.restore({})

    def ask(plan: Plan, absent: torch.Tensor) -> Report:
        return setup.clients.run(without(plan, absent))

    return ask


def by_messages(made: Federation, name: str) -> Ask:
    remote, grid = made.remote(run=name)

    def ask(plan: Plan, absent: torch.Tensor) -> Report:
        grid.devices = {node: device for node, device in made.devices.items() if node - 100 not in absent.tolist()}
        report = remote.run(plan)
        assert remote.traffic.absent == dict.fromkeys(absent.tolist(), "no answer in time")
        return report

    return ask


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "centralized"])
def test_a_run_over_messages_is_the_loop_in_every_bit(made: Federation, name: str) -> None:
    """All of them but the training on the union of all data, which no network offers."""
    simulated, real = (play(made.setup, ask, name) for ask in (by_simulator(made.setup), by_messages(made, name)))
    for round, (one, other) in enumerate(zip(real, simulated, strict=True), 1):
        assert same(one, other), f"round {round}"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["ifca", "fedtsdp", "strata"])
def test_the_personal_stage_is_the_loop_in_every_bit(made: Federation, name: str, method: str) -> None:
    if name in REFUSED.get(method, ()):
        pytest.skip("they do not go together")
    expected = play_personal(with_stage(made.setup, name, method))
    remote, grid = made.remote(run=f"{name} {method}")
    grid.devices = dict(made.devices)
    found = play_personal(with_stage(replace(made.setup, clients=remote), name, method), remote.run)
    assert same(found.reports, expected.reports)
    # The server knows which tensors are on the devices, and nothing else of them.
    assert found.stored.keys() == expected.stored.keys()
    assert not any(values.numel() for values in found.stored.values())


def test_what_is_compared_has_choices_and_personal_layers_and_several_clusters(made: Federation) -> None:
    def last(name: str) -> tuple[Report, State]:
        *_, end = play(made.setup, by_simulator(made.setup), name)
        return end

    assert bool((~last("ifca")[0].results["train"].losses.isnan()).sum(dim=1).eq(3).all())
    last("fedper")
    assert made.setup.clients.store.tensors()
    assert any(len(last(name)[1].models) > 1 for name in ("layercfl", "adacfl", "hicfl"))
