import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import builders
from builders import report_of, result_of, task_of, trained
from fedstrata.algorithms.fedavg import FedAvg
from fedstrata.core import (
    TRAIN,
    Layout,
    Plan,
    Problem,
    Report,
    Rows,
    RuleAggregation,
    TensorSpec,
)
from fedstrata.testing import toy_layout, toy_problem
from fedstrata.uploads.validation import (
    LARGEST_NORM,
    Norms,
    decide,
    divergence_of_answers,
    divergence_of_loss,
    measure_norms,
    validate,
)

LAYOUT = Layout(
    (
        TensorSpec("conv.weight", "conv", "conv", (2,)),
        TensorSpec("bn.weight", "bn", "norm", (1,)),
        TensorSpec("bn.running_mean", "bn", "buffer", (1,)),
        TensorSpec("fc.weight", "fc", "linear", (2,)),
    )
)


def plan_of(
    clients: list[int], given: list[int] | None = None, tasks: Sequence[str] = (TRAIN,), **changes: Any
) -> Plan:
    """A plan of some tasks that upload everything, with a model of zeros for each that is given."""
    task = task_of([[model] for model in given or [0] * len(clients)], LAYOUT, **changes)
    return builders.plan_of(layout=LAYOUT, tasks=dict.fromkeys(tasks, task), cohort=clients)


def report_of_six(values: Tensor, **changes: Any) -> tuple[Layout, Plan, Report]:
    """What `validate` is given of six clients with some updates, in a plan with some changes of its task."""
    plan = plan_of(list(range(6)), **changes)
    return LAYOUT, plan, report_of(plan, values)


def constants(levels: list[float]) -> Tensor:
    """A row for each level, all of whose columns are that level."""
    return torch.tensor(levels)[:, None] * torch.ones(1, LAYOUT.p)


def rejected_of(report: Report) -> list[int]:
    """Who was rejected, by the events of a validated report."""
    return sorted(client for event in report.events for client in event["clients"])


def rejected(levels: list[float], sizes: list[int] | None = None, given: list[int] | None = None) -> list[int]:
    """The positions of the rows that are rejected; the clients have other ids."""
    clients = [10 * place for place in range(len(levels))]
    plan = plan_of(clients, given)
    return [client // 10 for client in rejected_of(validate(LAYOUT, plan, report_of(plan, constants(levels), sizes)))]


def test_a_client_that_sent_something_not_finite_is_taken_out_of_every_result() -> None:
    plan = plan_of([0, 10, 20, 30], tasks=(TRAIN, "second"))
    good = result_of(plan, torch.zeros(4, LAYOUT.p))
    bad = result_of(plan, constants([1.0, torch.nan, 2.0, torch.inf]))
    checked = validate(LAYOUT, plan, Report({"train": bad, "second": good}))
    assert rejected_of(checked) == [10, 30]
    assert [result.updates.clients.tolist() for result in checked.results.values()] == [[0, 20], [0, 20]]
    assert checked.events == ({"kind": "rejected", "reason": "not finite", "clients": [10, 30]},)


def test_a_client_without_samples_is_taken_out() -> None:
    assert rejected([1.0, 1.0], sizes=[5, -3]) == [1]


def test_a_client_whose_fact_is_not_finite_is_taken_out() -> None:
    plan = plan_of([3, 4])
    facts = {"entropy": Rows(torch.tensor([3, 4]), torch.tensor([[torch.nan], [1.0]]))}
    checked = validate(LAYOUT, plan, replace(report_of(plan, constants([1.0, 1.0])), client_stats=facts))
    assert rejected_of(checked) == [3]
    assert checked.client_stats["entropy"].clients.tolist() == [4]


@given(st.lists(st.floats(0.5, 5.0, width=32), min_size=1, max_size=6))
def test_a_sound_report_is_left_as_it_is(levels: list[float]) -> None:
    plan = plan_of(list(range(len(levels))))
    report = report_of(plan, constants(levels))
    checked = validate(LAYOUT, plan, report)
    assert checked is report


def test_ten_times_the_median_is_accepted_and_no_more() -> None:
    assert rejected([1.0] * 5 + [9.9]) == []
    assert rejected([1.0] * 5 + [10.1]) == [5]


def test_who_has_more_samples_may_move_farther_but_never_a_hundred_times_as_far() -> None:
    levels = [1.0, 1.0, 1.0, 1.0, 1.0, 25.0]
    assert rejected(levels) == [5]
    assert rejected(levels, sizes=[10, 10, 10, 10, 10, 30]) == []
    levels[-1] = 101.0
    assert rejected(levels, sizes=[10, 10, 10, 10, 10, 10**6]) == [5]


def test_norms_that_are_widely_spread_excuse_a_large_one() -> None:
    """Median absolute deviation of the logs of 1, 2, 4, 8, 16: log 2; so exp(3.5 * 1.4826 * log 2) = 36.5 times 4."""
    assert rejected([1.0, 2.0, 4.0, 8.0, 16.0]) == []
    assert rejected([1.0, 2.0, 4.0, 8.0, 4.0 * 36.0]) == []
    assert rejected([1.0, 2.0, 4.0, 8.0, 4.0 * 37.0]) == [4]


def test_clients_are_compared_with_those_that_start_from_the_same_model() -> None:
    levels, given = [1.0] * 4 + [50.0] * 4 + [50.0], [0] * 4 + [1] * 4 + [0]
    assert rejected(levels, given=given) == [8]
    # Alone with its model, a client is compared with everyone.
    assert rejected([1.0] * 5 + [50.0], given=[0] * 5 + [1]) == [5]


def test_zeros_are_no_outliers_and_do_not_count_in_the_median() -> None:
    assert rejected([0.0, 0.0, 0.0, 1.0, 1.0, 1.0]) == []
    assert rejected([0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 11.0]) == [6]


def test_two_clients_cannot_be_compared() -> None:
    assert rejected([1.0, 1e6]) == []


def test_a_norm_whose_square_is_no_float32_number_is_rejected_without_comparison() -> None:
    assert rejected([1e20]) == [0] and rejected([3.4e38, 3.4e38]) == [0, 1]
    plan = plan_of([7])
    (event,) = validate(LAYOUT, plan, report_of(plan, constants([1e20]))).events
    assert event["median"] is None and event["limit"] == pytest.approx(LARGEST_NORM, rel=1e-3)


def test_where_norms_are_not_compared_one_with_which_nothing_can_be_computed_is_rejected_all_the_same() -> None:
    """With central noise: clipping such an update would make numbers that are none."""
    plan = plan_of([3, 5, 7, 9])
    report = report_of(plan, constants([1.0, 1.0, 1e6, 1e30]))
    assert rejected_of(validate(LAYOUT, plan, report, compared=False)) == [9]


def test_a_small_part_of_the_tensors_cannot_hide_beside_the_weights() -> None:
    """The norm of the whole row hardly changes: sqrt(4 * 100**2 + 1) beside sqrt(4 * 100**2 + 40**2)."""
    values = torch.tensor([[100.0, 100.0, 1.0, 1.0, 100.0, 100.0]] * 6)
    for column, part in ((2, "normalisation layers"), (3, "buffers")):
        poisoned = values.clone()
        poisoned[2, column] = 40.0
        (event,) = validate(*report_of_six(poisoned)).events
        assert event == {
            "kind": "rejected",
            "reason": "norm",
            "clients": [2],
            "task": "train",
            "part": part,
            "norm": 40.0,
            "median": 1.0,
            "limit": 10.0,
        }


def test_tensors_that_are_sent_as_they_are_have_norms_of_their_own() -> None:
    """Weights of 30 beside updates of 1 are no outliers; weights of 400 are."""
    values = torch.tensor([[1.0, 1.0, 1.0, 1.0, 30.0, 30.0]] * 6)
    given = report_of_six(values, upload_values=LAYOUT.select("fc"))
    parts = {norms.part for norms in measure_norms(*given)}
    assert parts == {"weights", "normalisation layers", "buffers", "values of weights"}
    assert rejected_of(validate(*given)) == []
    values[4, 4:] = 400.0
    assert rejected_of(validate(*report_of_six(values, upload_values=LAYOUT.select("fc")))) == [4]


def test_norms_of_long_rows_are_those_of_float64_sums_also_of_numbers_whose_squares_are_no_float32_numbers() -> None:
    """Two blocks of columns and a rest; the last rows would overflow, and vanish, in float32."""
    layout = Layout((TensorSpec("fc.weight", "fc", "linear", (70_000,)),))
    values = torch.randn(4, layout.p, generator=torch.Generator().manual_seed(0))
    values *= torch.tensor([1.0, 0.0, 1e30, 1e-30])[:, None]
    plan = builders.plan_of([[0]] * 4, layout)
    (norms,) = measure_norms(layout, plan, report_of(plan, values))
    assert norms.values.tolist() == pytest.approx(values.double().norm(dim=1).tolist(), rel=1e-6)


def norms_of(
    values: Sequence[float], starts: Sequence[int] = (), sizes: Sequence[int] = (), compared: bool = True
) -> Norms:
    """Norms of clients that started from some models, and have so many samples; by default all alike."""
    m = len(values)
    given = torch.tensor(starts or [0] * m, dtype=torch.int64)
    result = trained(torch.zeros(m, 1), chosen=given, sizes=torch.tensor(sizes or [1] * m)).results[TRAIN]
    return Norms(TRAIN, "weights", (), result, np.array(values), compared)


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 1.0, 1.2, 8.0, 9.9, 15.0, math.nan]), st.integers(0, 2), st.integers(0, 3)),
        max_size=12,
    ),
    st.booleans(),
)
def test_no_norm_is_above_its_limit_where_all_are_alike(clients: list[tuple[float, int, int]], compared: bool) -> None:
    values, starts, sizes = zip(*clients, strict=True) if clients else ((), (), ())
    norms = norms_of(values, starts, sizes, compared)
    _, limits = norms.medians_and_limits
    assert (norms.values <= limits * (1 + 1e-9)).all() or not norms.alike


def test_norms_are_alike_within_a_factor_of_ten() -> None:
    for values in ([1.0, 9.9], [0.0, 1.0, 9.9], [0.0, 0.0], []):
        assert norms_of(values).alike
    for values in ([1.0, 10.1], [1.0, math.nan], [1.0, math.inf], [2e19, 2e19]):
        assert not norms_of(values).alike


def test_after_convergence_an_update_that_is_no_longer_than_the_model_is_accepted() -> None:
    plan = plan_of(list(range(6)))
    plan = replace(plan, models=torch.full_like(plan.models, 10.0))
    for level, found in ((9.9, []), (10.1, [5])):
        report = report_of(plan, constants([0.01] * 5 + [level]))
        assert rejected_of(validate(LAYOUT, plan, report)) == found


def test_of_several_norms_of_a_client_the_worst_is_told() -> None:
    plan = plan_of(list(range(5)), tasks=(TRAIN, "second"))
    results = {
        name: result_of(plan, constants([1.0] * 4 + [worst])) for name, worst in ((TRAIN, 20.0), ("second", 40.0))
    }
    (event,) = validate(LAYOUT, plan, Report(results)).events
    assert event["norm"] == pytest.approx(40.0 * math.sqrt(4), rel=1e-3) and event["task"] == "second"


NORMALISED = Layout((TensorSpec("fc.weight", "fc", "linear", (2,)), TensorSpec("bn.running_var", "bn", "buffer", (9,))))
"""Two weights, and nine running variances."""


def variance_plan(**changes: Any) -> Plan:
    """A plan for ten clients with a model whose weights are 0 and whose running variances are 1."""
    task = task_of([[0]] * 10, NORMALISED)
    model = torch.tensor([0.0] * 2 + [1.0] * 9)
    return builders.plan_of(tasks={"before": task, TRAIN: replace(task, **changes)}, models=model[None])


def variance_report(plan: Plan, worst: float) -> Report:
    """Ten updates whose first running variance moves by -0.1, and that of the last client by another number."""
    values = torch.zeros(10, NORMALISED.p)
    values[:, 2] = -0.1
    values[9, 2] = worst
    return report_of(plan, values)


def test_one_client_cannot_make_a_running_variance_negative_within_the_norm_of_the_buffers() -> None:
    """Nine variances of 1 have a norm of 3, up to which every update is accepted; and 1 - 2.9 < 0."""
    plan = variance_plan()
    checked = validate(NORMALISED, plan, variance_report(plan, -2.9))
    assert rejected_of(checked) == [9]
    assert checked.events == ({"kind": "rejected", "reason": "negative variance", "clients": [9]},)
    assert rejected_of(validate(NORMALISED, plan, variance_report(plan, -2.9), compared=False)) == [9]
    assert rejected_of(validate(NORMALISED, plan, variance_report(plan, -1.0))) == []


def test_a_client_that_is_rejected_for_its_norm_is_told_so_and_not_of_its_variance() -> None:
    plan = variance_plan()
    (event,) = validate(NORMALISED, plan, variance_report(plan, -3.1)).events
    assert event["reason"] == "norm"


def test_running_variances_are_judged_as_what_the_client_ended_with() -> None:
    plan = variance_plan(upload_values=NORMALISED.buffers)
    assert len(rejected_of(validate(NORMALISED, plan, variance_report(plan, 0.1)))) == 9
    # Such a client started from other variances, so that its update says nothing about where it ended.
    for changes in ({"load_local": NORMALISED.buffers}, {"continues": "before"}, {"upload": (True, False)}):
        plan = variance_plan(**changes)
        assert rejected_of(validate(NORMALISED, plan, variance_report(plan, -2.9))) == []


@pytest.mark.parametrize(("rounding", "kept"), [(1e-7, True), (1e-4, False)])
def test_a_decision_that_leaves_a_negative_variance_is_taken_back_but_not_for_rounding(
    rounding: float, kept: bool
) -> None:
    fresh = variance_plan().models[0]
    problem = Problem(NORMALISED, lambda seed: fresh, clients=10, aggregation=RuleAggregation())
    algorithm = FedAvg()
    state = algorithm.init(problem)
    plan = algorithm.plan(problem, state, torch.arange(10))
    values = torch.zeros(10, NORMALISED.p)
    values[:, 2] = -1.0 - rounding
    after, _, events = decide(algorithm, problem, state, report_of(plan, values))
    assert bool((after.models[0, 2] < 0.5).all()) == kept
    assert [event["reason"] for event in events] == ([] if kept else ["models"])


def test_a_decision_that_leaves_a_model_that_cannot_be_trained_is_taken_back() -> None:
    layout = toy_layout()
    problem = toy_problem(2, layout)
    algorithm = FedAvg()
    state = algorithm.init(problem)
    plan = algorithm.plan(problem, state, torch.tensor([0, 1]))
    for level in (math.inf, 3e19):
        after, _, events = decide(algorithm, problem, state, report_of(plan, torch.full((2, layout.p), level)))
        assert torch.equal(after.models, state.models) and after.round == 1
        assert events == [{"kind": "diverged", "reason": "models", "nodes": [0]}]


def test_a_round_diverges_when_most_answers_are_not_finite() -> None:
    for bad, told in ((2, False), (3, True)):
        plan = plan_of(list(range(4)))
        report = report_of(plan, constants([torch.nan] * bad + [1.0] * (4 - bad)))
        events = divergence_of_answers(report, validate(LAYOUT, plan, report).events)
        expected = [{"kind": "diverged", "reason": "answers", "clients": list(range(bad)), "answered": 4}]
        assert events == (expected if told else [])


def test_no_round_diverges_in_which_nobody_trained() -> None:
    plan = plan_of([0])
    report = Report({}, client_stats={"counts": Rows(torch.tensor([0]), torch.tensor([[torch.nan]]))})
    checked = validate(LAYOUT, plan, report)
    assert rejected_of(checked) == [0] and divergence_of_answers(report, checked.events) == []


def test_a_round_diverges_when_the_loss_of_the_median_client_is_far_above_that_of_guessing() -> None:
    """Two classes: guessing has ln 2 = 0.693, and the bound is twice that."""
    assert divergence_of_loss(LAYOUT, torch.tensor([1.3, 1.3, torch.inf])) == []
    (event,) = divergence_of_loss(LAYOUT, torch.tensor([1.3, 1.5, 1.5]))
    assert event["reason"] == "loss" and event["guessing"] == pytest.approx(math.log(2))
    for most in (torch.nan, torch.inf):
        (event,) = divergence_of_loss(LAYOUT, torch.tensor([1.0, most, most]))
        assert event["loss"] == math.inf


def test_of_a_loss_whose_guessing_is_not_known_a_round_diverges_when_the_median_is_not_finite() -> None:
    assert divergence_of_loss(LAYOUT, torch.tensor([1e9, 1e9, torch.inf]), classifies=False) == []
    for most in (torch.nan, torch.inf):
        (event,) = divergence_of_loss(LAYOUT, torch.tensor([1.0, most, most]), classifies=False)
        assert event["loss"] == math.inf and event["guessing"] is None
