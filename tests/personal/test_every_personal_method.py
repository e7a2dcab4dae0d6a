"""What every personal method must hold beside every algorithm."""

from dataclasses import replace
from functools import cache
from math import inf

import pytest
import torch

import builders
from fedstrata.algorithms import ALGORITHMS
from fedstrata.build.run_setup import RunSetup
from fedstrata.core import CLIENT, SHARED, Plan, Report
from fedstrata.personal import PERSONAL
from fedstrata.play.finish import make_personal
from fedstrata.play.rounds import PlanReply, answer_plans
from fedstrata.play.used_models import chosen_models
from personal_stage import METHODS, REFUSED, Played, play, refused, with_stage
from turns import same

PAIRS = [(name, method) for name in ALGORITHMS for method in METHODS if name not in REFUSED.get(method, ())]


@cache
def federation(engine: str = "loop") -> RunSetup:
    """Eight clients in two groups, with samples for validation."""
    data = {"clients": 8, "public": 32, "validation": 0.1}
    return builders.federation(data=data, local={"lr": 0.1, "batch": 16}, engine={"name": engine})


@cache
def played(name: str, method: str) -> Played:
    return play(with_stage(federation(), name, method))


def test_every_method_is_tested() -> None:
    assert METHODS.keys() == set(PERSONAL)
    assert all(kind.source and (kind.__doc__ or "-").splitlines()[0].endswith(".") for kind in PERSONAL.values())


@pytest.mark.parametrize("method", METHODS)
def test_what_does_not_go_together_is_refused_and_all_else_is_not(method: str) -> None:
    found = {name for name in ALGORITHMS if refused(federation(), name, method)}
    assert found == REFUSED.get(method, set())


@pytest.mark.parametrize(("name", "method"), PAIRS)
def test_the_algorithm_decides_and_averages_as_without_it(name: str, method: str) -> None:
    if hasattr(ALGORITHMS[name], "with_personal_models"):
        pytest.skip("it compares the personal models that clients will make")
    assert same(played(name, method).state, played(name, "none").state)


@pytest.mark.parametrize(("name", "method"), PAIRS)
def test_every_client_has_a_finite_model_and_sends_none(name: str, method: str) -> None:
    done = played(name, method)
    assert all(bool(values.isfinite().all()) for values in done.stored.values())
    if done.made is None:
        assert method == "ditto" and done.stored
        return
    scores = done.made.scores
    assert torch.equal(scores[CLIENT].clients, federation().everyone)
    assert scores.keys() == {CLIENT, "validation"} and bool(scores[CLIENT].loss.isfinite().all())
    assert [choice.client for choice in done.made.choices] == federation().everyone.tolist()
    for report in done.reports[-len(done.plans) :]:
        assert not any(bool(result.updates.values.any()) for result in report.results.values()), "a model was sent"


@pytest.mark.parametrize("method", ["finetune", "best"])
def test_a_tuning_that_diverges_leaves_clients_the_layers_that_they_kept(method: str) -> None:
    done = play(with_stage(federation(), "fedper"), rounds=2)
    setup = with_stage(federation(), "fedper", method)
    problem = setup.server.problem
    evaluation = Plan(4, problem.seed, torch.arange(0), done.state.models, evaluations={CLIENT: done.uses})
    before = setup.clients.run(evaluation).scores[CLIENT]
    diverging = replace(problem, training=replace(problem.training, lr=inf))
    setup = replace(setup, server=replace(setup.server, problem=diverging))
    stage = make_personal(setup, done.state, done.uses, chosen_models(done.uses, Report()), round=4)
    made = answer_plans(stage, lambda plan: PlanReply(setup.clients.run(plan), 0.0))
    assert made is not None and same(made.scores[CLIENT], before)
    assert not any(choice.share for choice in made.choices)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["ifca", "layercfl", "strata"])
def test_played_again_it_is_the_same_in_every_bit(name: str, method: str) -> None:
    """After a stop at any of its plans, the stage is done again from the last round's state and stores."""
    again = play(with_stage(federation(), name, method))
    assert same(again.made, played(name, method).made) and same(again.stored, played(name, method).stored)


@pytest.mark.parametrize("method", METHODS)
def test_the_batched_engine_does_the_same_but_for_rounding(method: str) -> None:
    found = play(with_stage(federation("batched"), "oracle", method))
    expected = played("oracle", method)
    assert found.stored.keys() == expected.stored.keys()
    for name, values in expected.stored.items():
        torch.testing.assert_close(found.stored[name], values, rtol=1e-4, atol=1e-5)
    if expected.made is not None and found.made is not None:
        assert found.made.choices == expected.made.choices and found.made.cost == expected.made.cost


@pytest.mark.parametrize("name", ["fedavg", "oracle", "fedtsdp", "fedper"])
def test_who_keeps_nothing_of_the_tuning_uses_the_model_that_it_had(name: str) -> None:
    """At a learning rate at which nothing moves, no share is better than none."""
    setup = with_stage(federation(), name, "best")
    problem = setup.server.problem
    problem = replace(problem, training=replace(problem.training, lr=1e-30))
    still = replace(setup, server=replace(setup.server, problem=problem))
    done = play(still)
    assert done.made is not None and all(choice.share == 0 and choice.epochs == 0 for choice in done.made.choices)
    last = done.reports[-len(done.plans) - 1].scores
    assert torch.equal(done.made.scores[CLIENT].loss, last[CLIENT].loss)


def test_beside_ditto_both_models_are_scored() -> None:
    done = played("oracle", "ditto")
    scores = done.reports[-1].scores
    alone = played("oracle", "none").reports[-1].scores
    assert torch.equal(scores[SHARED].loss, alone[CLIENT].loss)
    assert not torch.equal(scores[CLIENT].loss, scores[SHARED].loss)
