from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small import fit_of, loop_of, plan_of

from fedstrata.core import Evaluation, LocalTask, LocalTraining, Plan, Report
from fedstrata.engine.shared_work import (
    LocalStores,
    MergedPlan,
    SharedReports,
    run_shared,
)
from turns import same

SIZES = [10, 1, 7]
"""Training samples of three clients; half of the second's is nothing."""


def answer(engine: Any, *plans: Plan) -> SharedReports:
    return run_shared(plans, [LocalStores(engine) for _ in plans])


def alone(plan: Plan) -> Report:
    return loop_of(SIZES)[0].run(plan)


def moved(start: torch.Tensor, count: int) -> torch.Tensor:
    """So many models near a start, (count, p)."""
    return start + 0.05 * torch.randn(count, len(start), generator=torch.Generator().manual_seed(0))


def test_work_that_two_algorithms_ask_for_is_done_once_whatever_they_call_the_model() -> None:
    engine, layout, start = loop_of(SIZES)
    other = moved(start, 1)[0]
    first = plan_of(start[None], fit_of(layout, [[0]] * 3))
    second = plan_of(torch.stack([other, start.clone()]), fit_of(layout, [[1]] * 3))
    answers = answer(engine, first, second)
    assert answers.done == 3
    assert same(answers.reports[0], alone(first)) and same(answers.reports[1], alone(second))
    assert answers.reports[1].results["train"].chosen.tolist() == [1, 1, 1]


def test_after_a_split_the_clients_of_the_clusters_that_still_coincide_are_shared() -> None:
    """Clients 0 and 1 start from the same model in both; client 2 is in a cluster of its own in the second."""
    engine, layout, start = loop_of(SIZES)
    whole = plan_of(start[None], fit_of(layout, [[0]] * 3))
    split = plan_of(torch.stack([moved(start, 1)[0], start]), fit_of(layout, [[1], [1], [0]]))
    answers = answer(engine, whole, split)
    assert answers.done == 4
    assert same(answers.reports, (alone(whole), alone(split)))


@pytest.mark.parametrize(
    "changes",
    [
        {"training": LocalTraining(epochs=2, batch=5, lr=0.2)},
        {"trainable": (True, True, False, False)},
        {"upload": (True, True, False, False)},
        {"upload_values": (False, False, True, True)},
        {"prox_weight": 0.5},
        {"fold": "A"},
        {"selection_fold": "B"},
        {"stream": "other"},
        {"max_samples": torch.tensor([4, 1, 4])},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_work_that_differs_in_anything_is_not_shared(changes: dict[str, Any]) -> None:
    engine, layout, start = loop_of(SIZES)
    plain = plan_of(start[None], fit_of(layout, [[0]] * 3))
    other = plan_of(start[None], fit_of(layout, [[0]] * 3, **changes))
    answers = answer(engine, plain, other)
    assert answers.done == sum(len(report.results["train"].sizes) for report in answers.reports)
    assert same(answers.reports, (alone(plain), alone(other)))


def test_what_devices_keep_is_never_shared() -> None:
    """Both do the same in round 1, and train on in round 2 from what only they have."""
    engine, layout, start = loop_of(SIZES)
    devices = [LocalStores(engine), LocalStores(engine)]
    shared = fit_of(layout, [[0]] * 3)
    own = replace(shared, load_local=layout.everything, save_local=layout.everything)
    evaluation = Evaluation(torch.arange(3), torch.zeros(3, 1, dtype=torch.int64), layout.everything)
    once = [plan_of(start[None], shared, own), plan_of(start[None], replace(own, training=LocalTraining(lr=0.5)))]
    evaluations = {"client": evaluation, "global": replace(evaluation, load_local=layout.nothing)}
    twice = [replace(plan, round=2, evaluations=evaluations) for plan in once]
    separate = [loop_of(SIZES)[0] for _ in once]
    for plans in (once, twice):
        answers = run_shared(plans, devices)
        assert answers.done == 9
        assert same(answers.reports, tuple(other.run(plan) for other, plan in zip(separate, plans, strict=True)))
    assert not engine.store.tensors()
    for device, other in zip(devices, separate, strict=True):
        assert device.store.tensors() and same(device.store.tensors(), other.store.tensors())


def test_algorithms_bear_the_time_by_their_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two epochs of one algorithm cost twice the one of the other; nothing is private."""
    ticks = iter([0.0, 6.0])  # of what is shared; all other readings are the same
    monkeypatch.setattr("fedstrata.engine.shared_work.perf_counter", lambda: next(ticks, 6.0))
    engine, layout, start = loop_of(SIZES)
    tasks = [fit_of(layout, [[0]] * 3, training=LocalTraining(epochs=n, batch=5, lr=0.1)) for n in (1, 2)]
    found = answer(engine, *(plan_of(start[None], task) for task in tasks))
    assert found.done == 6 and found.seconds == (2.0, 4.0)


def test_what_is_asked_and_scored_is_shared_as_well() -> None:
    engine, layout, start = loop_of(SIZES)
    runs: list[Plan] = []

    class Counted:
        def run(self, plan: Plan) -> Report:
            runs.append(plan)
            return engine.run(plan)

    def asking(classes: list[bool], clients: list[int], models: list[list[int]]) -> Plan:
        return replace(
            plan_of(moved(start, 2), fit_of(layout, [[-1]] * 3)),
            client_stats={"classes": torch.tensor(classes), "entropy": torch.zeros(3, dtype=torch.bool)},
            evaluations={"client": Evaluation(torch.tensor(clients), torch.tensor(models), layout.nothing)},
        )

    plans = [asking([True, True, False], [0, 2], [[0], [0]]), asking([False, True, True], [2, 0], [[0], [1]])]
    answers = answer(Counted(), *plans)
    assert same(answers.reports, tuple(map(alone, plans))) and answers.done == 0
    (merged,) = runs
    assert merged.client_stats["classes"].tolist() == [True] * 3
    assert sum(len(score.clients) for score in merged.evaluations.values()) == 3


def test_who_asked_for_the_same_bears_it_in_equal_parts() -> None:
    """Client 0 has 10 samples, client 2 has 7; a step is three passes forward, and there are two epochs.

    First: client 0 shared, 3 * 2 * 10 / 2 = 30, and the scores of 4 samples shared, 2. Second: the same, and client 2
    alone, 3 * 2 * 7 + 2 * 7 for the comparison of two offers = 56.
    """
    engine, layout, start = loop_of(SIZES)
    models = moved(start, 2)
    evaluation = Evaluation(torch.tensor([0]), torch.tensor([[0]]), layout.nothing)
    first = replace(plan_of(models, fit_of(layout, [[0]]), cohort=[0]), evaluations={"client": evaluation})
    second = replace(plan_of(models, fit_of(layout, [[0, -1], [0, 1]]), cohort=[0, 2]), evaluations=first.evaluations)
    merged = MergedPlan([first, second])
    assert merged.plan is not None
    assert merged.costs(engine.run(merged.plan)) == [32, 88]
    assert sum(answer(engine, first, second).seconds) > 0


OFFERS = st.lists(st.lists(st.integers(-1, 2), min_size=2, max_size=2), min_size=3, max_size=3)
LIMITS = st.none() | st.lists(st.integers(1, 4), min_size=3, max_size=3).map(torch.tensor)
TASKS = st.tuples(OFFERS, st.sampled_from(["all", "A"]), st.booleans(), LIMITS)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.permutations([0, 1, 2]), st.lists(TASKS, max_size=2)), min_size=1, max_size=3))
def test_whatever_is_asked_everyone_gets_what_it_would_have_got_alone(asked: list[tuple[list[int], list[Any]]]) -> None:
    engine, layout, start = loop_of(SIZES)
    models, training = moved(start, 3), LocalTraining(epochs=1, batch=0, lr=0.1)

    def task_of(models: list[list[int]], fold: str, keep: bool, most: torch.Tensor | None) -> LocalTask:
        own = layout.select("fc") if keep else layout.nothing
        task = fit_of(layout, models, fold=fold, max_samples=most, training=training)
        return replace(task, load_local=own, save_local=own)

    plans = []
    for order, tasks in asked:
        work = {str(place): task_of(*task) for place, task in enumerate(tasks)}
        plans.append(Plan(round=1, seed=7, cohort=torch.tensor(order), models=models[order], tasks=work))
    answers = answer(engine, *plans)
    assert same(answers.reports, tuple(map(alone, plans)))
    assert answers.done <= sum(len(result.sizes) for report in answers.reports for result in report.results.values())
