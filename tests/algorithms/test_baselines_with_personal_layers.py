"""FedPer, FedRep and LG-FedAvg: some layers are averaged, and some never leave their client."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from baseline_federation import CLIENTS, HEAD, PARAMETERS, device, federation, recorded, train

from builders import layout_with
from fedstrata.algorithms.lg_fedavg import LGFedAvg
from fedstrata.testing import toy_problem

FIRST = 64 * 12 + 12
ALL = torch.arange(PARAMETERS)
OWN = {"fedper": ALL[-HEAD:], "fedrep": ALL[-HEAD:], "lg_fedavg": ALL[:FIRST]}
"""The columns of the layers that stay on the clients."""


@pytest.mark.parametrize("name", OWN)
def test_own_layers_differ_between_clients_and_the_servers_stay_as_they_were(name: str) -> None:
    """So newcomers start from them. All other layers are averaged."""
    setting = federation(name)
    state, _, _ = train(setting)
    start = setting.server.problem.fresh(0)
    assert torch.equal(state.models[0, OWN[name]], start[OWN[name]]) and not torch.equal(state.models[0], start)
    kept = torch.stack([device(setting, client) for client in range(CLIENTS)])
    assert kept.shape == (CLIENTS, len(OWN[name])) and len(kept.unique(dim=0)) == CLIENTS


@pytest.mark.parametrize("name", OWN)
def test_own_layers_travel_once_and_the_others_every_round(name: str, tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", name)
    shared = CLIENTS * 4 * (PARAMETERS - len(OWN[name]))
    assert [record["bytes_down"] for record in run.rounds] == [CLIENTS * 4 * PARAMETERS, shared, shared]
    assert [record["bytes_up"] for record in run.rounds] == [shared] * 3


def test_an_absent_client_keeps_its_head() -> None:
    setting = federation("fedper")
    train(setting, rounds=1)
    before = device(setting, 0)
    state = setting.server.algorithm.init(setting.server.problem)
    setting.clients.run(setting.server.algorithm.plan(setting.server.problem, state, torch.tensor([1, 2])))
    assert torch.equal(device(setting, 0), before)


def test_fedrep_trains_the_head_first_and_the_body_under_the_trained_head() -> None:
    setting = federation("fedrep", {"epochs": 2}, head_epochs=3)
    problem, algorithm = setting.server.problem, setting.server.algorithm
    plan = algorithm.plan(problem, algorithm.init(problem), setting.everyone)
    assert list(plan.tasks) == ["head", "train"]
    first, second = plan.tasks.values()
    assert (first.training.epochs, second.training.epochs) == (3, 2)
    assert problem.layout.columns(first.trainable).tolist() == problem.layout.columns(first.save_local).tolist()
    head, body = setting.clients.run(plan).results.values()
    assert not head.updates.values.any() and body.updates.values[:, :-HEAD].any()
    assert not body.updates.values[:, -HEAD:].any()
    trained = device(setting, 0)
    assert trained.shape == (HEAD,) and not torch.equal(trained, problem.fresh(0)[-HEAD:])
    other = federation("fedrep", {"epochs": 2}, head_epochs=3)
    untrained = other.clients.run(replace(plan, tasks={"train": second})).results["train"]
    assert not torch.equal(untrained.updates.values, body.updates.values)


@pytest.mark.parametrize(("depth", "local"), [(4, 2), (3, 1), (2, 1), (1, 1)])
def test_lg_fedavg_shares_the_two_deepest_layers_and_keeps_at_least_one(depth: int, local: int) -> None:
    """semantics.md, A32: FL-bench shares the shallow layers instead, which is the wrong way round."""
    problem, algorithm = toy_problem(2, layout_with({f"{i}.weight": 1 for i in range(depth)})), LGFedAvg()
    fit = algorithm.plan(problem, algorithm.init(problem), torch.arange(2)).tasks["train"]
    assert fit.load_local == fit.save_local == (True,) * local + (False,) * (depth - local)
    assert fit.upload == (False,) * local + (True,) * (depth - local)


def test_lg_fedavg_that_is_told_to_keep_the_head_is_fedper() -> None:
    ours, _, scores = train(federation("lg_fedavg", personal="head"), fraction=0.5)
    other, _, expected = train(federation("fedper"), fraction=0.5)
    assert torch.equal(ours.models, other.models) and torch.equal(scores["client"].loss, expected["client"].loss)
