"""The server's optimiser inside every cluster, of every algorithm, and over a stop."""

from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

import builders
from fedstrata.algorithms import ALGORITHMS
from fedstrata.base.errors import ExperimentError
from fedstrata.build.build import build_run
from fedstrata.config import Experiment
from fedstrata.core import ServerMoments, State
from fedstrata.engine.device import one_thread
from fedstrata.play.interrupt import Stopped
from fedstrata.play.rounds import answer_plans, timed_reply
from fedstrata.play.run import run_experiment
from fedstrata.play.steps import run_steps
from test_every_algorithm import EAGER
from turns import same


def experiment(name: str, server: dict[str, Any], **algorithm: Any) -> Experiment:
    return builders.experiment(
        rounds=3,
        data={"samples": 48, "public": 32},
        local={"lr": 0.5, "batch": 16},
        server=server,
        algorithm={"name": name, **algorithm},
    )


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_every_algorithm_moves_its_clusters_by_it_and_goes_on_after_a_stop(name: str, tmp_path: Path) -> None:
    wanted = experiment(name, {"optimizer": "adam", "lr": 0.02}, **EAGER.get(name, {}))
    unbroken = run_experiment(wanted, tmp_path / "unbroken", quiet=True)
    moments = unbroken.state.server
    assert isinstance(moments, ServerMoments) and bool(torch.isin(unbroken.state.nodes, moments.nodes).all())
    assert name == "local" or bool(moments.first.any())
    rounds = count()
    setup = build_run(wanted)
    steps = run_steps(wanted, setup, tmp_path / "broken", stop=lambda: next(rounds) > 1)
    with pytest.raises(Stopped), one_thread():
        answer_plans(steps, lambda plan: timed_reply(setup.clients, plan))
    assert same(run_experiment(wanted, tmp_path / "broken", resume=True, quiet=True).state, unbroken.state)


def test_each_true_group_has_moments_of_its_own() -> None:
    setup = build_run(experiment("oracle", {"optimizer": "momentum"}))
    state: State = setup.server.algorithm.init(setup.server.problem)
    for _ in range(2):
        plan = setup.server.algorithm.plan(setup.server.problem, state, setup.everyone)
        report = setup.clients.run(plan)
        state, _ = setup.server.algorithm.update(setup.server.problem, state, report)
    assert isinstance(state.server, ServerMoments)
    assert state.server.nodes.tolist() == state.nodes.tolist() and len(state.nodes) == 2
    assert not torch.equal(state.server.first[0], state.server.first[1])


def test_a_body_that_all_clusters_share_has_no_optimiser() -> None:
    with pytest.raises(ExperimentError, match=r"algorithm.share_body = true: expected false with server.optimizer"):
        build_run(experiment("ifca", {"optimizer": "adam"}, k=2, share_body=True))
