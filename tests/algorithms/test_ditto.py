from dataclasses import replace

import torch
from baseline_federation import CLIENTS, device, federation, train

from turns import first_plan_of


def test_a_personal_model_starts_from_the_first_global_model_that_its_client_receives() -> None:
    setting = federation("ditto", {"lr": 1e-12}, lam=0.0)
    problem, algorithm = setting.server.problem, setting.server.algorithm
    state = algorithm.init(problem)
    moved = replace(state, models=state.models + 1.0, round=1)
    setting.clients.run(algorithm.plan(problem, state, torch.tensor([0])))
    setting.clients.run(algorithm.plan(problem, moved, torch.tensor([0, 1])))
    assert torch.allclose(device(setting, 0), problem.fresh(0), atol=1e-6)
    assert torch.allclose(device(setting, 1), problem.fresh(0) + 1.0, atol=1e-6)


def test_a_strong_pull_holds_the_personal_models_near_to_the_global_one() -> None:
    distances = []
    for lam in (0.0, 1.0, 4.0):
        setting = federation("ditto", {"lr": 0.1}, lam=lam)
        state, _, _ = train(setting)
        distances.append(float((device(setting, 0) - state.models[0]).norm()))
    assert distances[0] > distances[1] > distances[2]


def test_the_personal_model_may_train_longer() -> None:
    setting = federation("ditto", {"epochs": 2}, epochs=3)
    plan = first_plan_of(setting)
    assert [fit.training.epochs for fit in plan.tasks.values()] == [2, 3]
    assert {fit.stream for fit in plan.tasks.values()} == {"train"}


def test_who_never_took_part_uses_the_global_model() -> None:
    setting = federation("ditto")
    _, _, scores = train(setting, rounds=1, fraction=0.5)
    personal, shared = scores["client"], scores["global"]
    absent = [client for client in range(CLIENTS) if not len(device(setting, client))]
    assert len(absent) == 3 and torch.equal(personal.loss[absent], shared.loss[absent])
    present = [client for client in range(CLIENTS) if client not in absent]
    assert not torch.equal(personal.loss[present], shared.loss[present])
