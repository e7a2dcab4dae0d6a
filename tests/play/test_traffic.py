from dataclasses import replace
from typing import Any

import torch

from fedstrata.core import Layout, Plan, Problem, Report, TensorSpec, fedavg_plan, initial_state
from fedstrata.play.recorder import traffic
from fedstrata.testing import Scripted, toy_problem


def planned(problem: Problem, **changes: Any) -> Plan:
    """The plan of FedAvg for all clients with other fields of its task, and three models."""
    plan = fedavg_plan(problem, initial_state(problem), torch.arange(problem.clients))
    task = replace(plan.tasks["train"], **changes)
    return replace(plan, models=torch.zeros(3, problem.layout.p), tasks={"train": task})


def answered(problem: Problem, plan: Plan, losses: list[list[float]] | None = None) -> Report:
    """The report of all clients, with losses of their candidates."""
    report = Scripted([torch.zeros(problem.clients, problem.layout.p)]).run(plan)
    if losses is None:
        return report
    found = {name: replace(result, losses=torch.tensor(losses)) for name, result in report.results.items()}
    return Report(found)


def test_fedavg_sends_every_parameter_both_ways() -> None:
    """semantics.md, Bytes: 33,580 parameters and 20 clients make 5,372,800 bytes a round, up and down."""
    problem = toy_problem(20, Layout((TensorSpec("w", "w", "conv", (33_580,)),)))
    plan = planned(problem)
    sent = traffic(problem.layout, plan, answered(problem, plan))
    assert (sent.down + sent.up, sent.buffers) == (5_372_800, 0)


def test_every_offered_model_is_sent_once_and_the_choice_costs_four_bytes() -> None:
    problem = toy_problem(1)
    plan = planned(problem, candidates=torch.tensor([[0, 1, -1]]))
    plan = replace(plan, tasks={**plan.tasks, "again": plan.tasks["train"]})
    sent = traffic(problem.layout, plan, answered(problem, plan, [[0.1, 0.2, torch.nan]]))
    assert (sent.down, sent.up) == (2 * 24, 2 * (24 + 4))


def test_models_that_are_only_compared_come_back_as_their_losses() -> None:
    problem = toy_problem(2)
    none = problem.layout.nothing
    plan = planned(problem, candidates=torch.tensor([[0, 1, 2], [0, 1, -1]]), trainable=none, upload=none)
    sent = traffic(problem.layout, plan, answered(problem, plan, [[0.1, 0.2, 0.3], [0.1, 0.2, torch.nan]]))
    assert (sent.down, sent.up) == ((3 + 2) * 24, (3 + 2) * 4)


BODY_AND_HEAD = (TensorSpec("a", "a", "conv", (3,)), TensorSpec("b", "b", "linear", (2,)))


def test_what_a_client_keeps_is_not_sent_and_statistics_are_counted_apart() -> None:
    problem = toy_problem(1, Layout((*BODY_AND_HEAD, TensorSpec("s", "s", "buffer", (5,)))))
    plan = planned(problem, load_local=(False, True, False), upload=(True, False, True))
    sent = traffic(problem.layout, plan, answered(problem, plan))
    assert (sent.down, sent.up, sent.buffers) == (12, 12, 40)


def test_what_a_device_is_to_keep_but_does_not_have_yet_is_sent() -> None:
    """semantics.md, Bytes: FedPer sends all layers in the first round, so that all heads start equal."""
    problem = toy_problem(2, Layout(BODY_AND_HEAD))
    plan = planned(problem, load_local=(False, True))
    devices: dict[int, list[int]] = {0: [1], 1: []}
    sent = traffic(problem.layout, plan, answered(problem, plan), lambda client: devices[client])
    assert sent.down == 12 + 20


def test_facts_are_paid_for_by_those_that_are_asked_for_them() -> None:
    problem = toy_problem(3)
    asked = {"classes": torch.tensor([True, False, True]), "entropy": torch.tensor([False, False, True])}
    plan = replace(planned(problem), client_stats=asked)
    clients = Scripted([torch.zeros(3, 6)], client_stats={"classes": torch.ones(3, 2), "entropy": torch.ones(3, 1)})
    answer = clients.run(plan)
    assert {name: rows.clients.tolist() for name, rows in answer.client_stats.items()} == {
        "classes": [0, 2],
        "entropy": [2],
    }
    assert traffic(problem.layout, plan, answer).up == 3 * 24 + 4 * (2 * 2 + 1)
    answer = clients.run(plan.only(torch.tensor([True, True, False])))
    assert traffic(problem.layout, plan, answer).up == 2 * 24 + 4 * 2
