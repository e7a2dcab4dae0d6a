from dataclasses import replace
from pathlib import Path

import torch
from baseline_federation import CLIENTS, HEAD, PARAMETERS, device, federation, recorded, train


def test_the_head_is_trained_first_and_the_body_under_the_trained_head() -> None:
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


def test_only_the_body_is_averaged() -> None:
    setting = federation("fedrep")
    state, _, _ = train(setting)
    assert torch.equal(state.models[0, -HEAD:], setting.server.problem.fresh(0)[-HEAD:])
    assert not torch.equal(state.models[0, :-HEAD], setting.server.problem.fresh(0)[:-HEAD])


def test_the_head_travels_once_and_the_body_every_round(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", "fedrep")
    body = CLIENTS * 4 * (PARAMETERS - HEAD)
    assert [record["bytes_down"] for record in run.rounds] == [CLIENTS * 4 * PARAMETERS, body, body]
    assert [record["bytes_up"] for record in run.rounds] == [body] * 3
