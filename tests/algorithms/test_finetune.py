import torch
from baseline_federation import PARAMETERS, device, federation, train


def test_what_is_scored_was_tuned_from_the_model_that_was_received_in_that_round() -> None:
    """The lag that the class admits: after round 3, the model of round 2 and two epochs on the client's own data."""
    setting = federation("finetune", epochs=2)
    problem, algorithm = setting.server.problem, setting.server.algorithm
    before, _, _ = train(setting, rounds=2)
    state, _, scores = train(federation("finetune", epochs=2), rounds=3)
    plan = algorithm.plan(problem, before, setting.everyone)
    assert [fit.training.epochs for fit in plan.tasks.values()] == [1, 2] and torch.equal(plan.models, before.models)
    setting.clients.run(plan)
    assert len(device(setting, 0)) == PARAMETERS and not torch.equal(device(setting, 0), state.models[0])
    assert scores["client"].loss.mean() < scores["global"].loss.mean()


def test_tuning_starts_anew_from_the_global_model_every_time() -> None:
    setting = federation("finetune")
    state, _, _ = train(setting)
    once = device(setting, 1)
    plan = setting.server.algorithm.plan(setting.server.problem, state, setting.everyone)
    assert not any(any(fit.load_local) for fit in plan.tasks.values()) and not any(plan.tasks["finetune"].upload)
    fresh = federation("finetune")
    before, _, _ = train(fresh, rounds=2)
    fresh.clients.store.restore({})
    fresh.clients.run(fresh.server.algorithm.plan(fresh.server.problem, before, fresh.everyone))
    assert torch.equal(device(fresh, 1), once)
