"""Sums of quantised updates: how exact they are, what is cut, and what is no sum."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedstrata.base.errors import ContractError
from fedstrata.core import TRAIN, Layout, LocalTask, LocalTraining, Plan, Report, Result, Rows, TensorSpec
from fedstrata.flower.secure_sum.sums import (
    OpenedSum,
    SumTerms,
    groups_of,
    require_sums_alone,
    summed_report,
    without_sizes,
)

TERMS = SumTerms(secure=True, limit=1.0, bits=16)
LAYOUT = Layout((TensorSpec("a", "a", "linear", (3,)), TensorSpec("b", "b", "linear", (2,))))


def plan_of(candidates: list[list[int]], upload: tuple[bool, bool] = (True, True)) -> Plan:
    """A plan in which clients 0 to m - 1 train, each from one of some models."""
    nothing, everything = (False, False), (True, True)
    task = LocalTask(torch.tensor(candidates), LocalTraining(), everything, upload, nothing, nothing)
    return Plan(1, 0, torch.arange(len(candidates)), torch.zeros(2, LAYOUT.p), {TRAIN: task})


def report_of(values: torch.Tensor, sizes: list[int], chosen: list[int]) -> Report:
    """A report of clients 0 to m - 1."""
    losses = torch.full((len(values), 1), torch.nan)
    rows = Rows(torch.arange(len(values)), values)
    return Report({TRAIN: Result(rows, torch.tensor(chosen), torch.tensor(sizes), losses)})


def weighted(values: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    weights = torch.tensor(sizes).double()
    return (values.double() * weights[:, None]).sum(0) / weights.sum()


@pytest.mark.parametrize("bits", [4, 8, 16, 24])
@pytest.mark.parametrize("limit", [0.5, 2.0])
def test_a_mean_is_wrong_by_half_a_step_at_most(bits: int, limit: float) -> None:
    terms = SumTerms(secure=True, limit=limit, bits=bits)
    assert terms.step == limit / (2 ** (bits - 1) - 1)
    sizes = [1, 7, 30, 500]
    values = (torch.rand(4, LAYOUT.p, generator=torch.Generator().manual_seed(bits)) * 2 - 1) * limit
    summed = summed_report(terms, LAYOUT, plan_of([[0]] * 4), report_of(values, sizes, [0] * 4))
    mean = summed.report.results[TRAIN].updates.values[0]
    # The result is float32, whose own rounding is 2^-24 of the number.
    assert (mean.double() - weighted(values, sizes)).abs().max() <= terms.step / 2 + limit * 2**-24
    assert summed.events == [] and not summed.absent


def test_a_sum_by_hand() -> None:
    """Levels of 1 / 7: 0.3 is 2 of them, -1 is -7, and 2 is cut to 7."""
    terms = SumTerms(secure=True, limit=1.0, bits=4)
    added = terms.encoded(torch.tensor([0.3, -1.0, 2.0]), samples=5)
    assert added.tolist() == [10, -35, 35, 5, 1]
    assert replace(terms, weighted=False).encoded(torch.tensor([0.3]), samples=5).tolist() == [2, 1, 0]
    mean = terms.mean(OpenedSum((0, 1), torch.tensor([10 + 7, -35, 35, 5 + 2, 1])))
    assert mean is not None and mean.tolist() == pytest.approx([17 / 49, -35 / 49, 35 / 49])


def test_two_thirds_have_to_stay_and_never_fewer_than_the_least() -> None:
    assert [TERMS.needed(n) for n in (2, 3, 4, 6, 7, 9, 20)] == [3, 3, 3, 4, 5, 6, 14]
    assert SumTerms(min_clients=10).needed(9) == 10


def test_every_client_of_a_sum_has_the_mean_of_all_and_no_size_of_its_own() -> None:
    values = torch.tensor([[0.1], [0.2], [0.4]]).expand(3, LAYOUT.p)
    summed = summed_report(TERMS, LAYOUT, plan_of([[0]] * 3), report_of(values, [1, 1, 2], [0] * 3))
    result = summed.report.results[TRAIN]
    assert result.updates.clients.tolist() == [0, 1, 2] and result.sizes.tolist() == [1, 1, 1]
    assert torch.allclose(result.updates.values, torch.tensor(0.275), atol=TERMS.step)
    assert (result.updates.values == result.updates.values[0]).all()


def test_each_model_has_a_sum_of_its_own_and_one_of_too_few_is_not_opened() -> None:
    values = torch.arange(5.0)[:, None].expand(5, LAYOUT.p) / 10
    plan = plan_of([[0], [0], [0], [1], [1]])
    assert groups_of(plan) == {0: (0, 1, 2), 1: (3, 4)}
    summed = summed_report(TERMS, LAYOUT, plan, report_of(values, [1] * 5, [0, 0, 0, 1, 1]))
    assert summed.report.results[TRAIN].updates.clients.tolist() == [0, 1, 2]
    event = {"kind": "no_sum", "reason": "too few clients", "clients": [3, 4], "answered": 2, "needed": 3}
    assert summed.events == [event]


def test_a_client_with_a_choice_is_in_no_sum() -> None:
    assert groups_of(plan_of([[0, -1], [0, 1], [1, -1]])) == {0: (0,), 1: (2,)}


def test_tensors_that_are_not_sent_are_in_no_sum() -> None:
    values = torch.full((3, LAYOUT.p), 0.5)
    plan = plan_of([[0]] * 3, upload=(False, True))
    summed = summed_report(TERMS, LAYOUT, plan, report_of(values, [1] * 3, [0] * 3))
    assert summed.report.results[TRAIN].updates.values[0].tolist() == pytest.approx([0, 0, 0, 0.5, 0.5], abs=TERMS.step)
    silent = plan_of([[0]] * 3, upload=(False, False))
    report = report_of(values, [1] * 3, [0] * 3)
    assert summed_report(TERMS, LAYOUT, silent, report).report is report


def test_an_update_that_is_not_finite_is_in_no_sum() -> None:
    values = torch.full((4, LAYOUT.p), 0.5)
    values[2, 1] = torch.nan
    summed = summed_report(TERMS, LAYOUT, plan_of([[0]] * 4), report_of(values, [1] * 4, [0] * 4))
    assert summed.report.results[TRAIN].updates.clients.tolist() == [0, 1, 3] and set(summed.absent) == {2}


def test_updates_that_do_not_fit_are_cut_and_counted() -> None:
    values = torch.full((3, LAYOUT.p), 0.5)
    values[:2, 0] = 4.0
    summed = summed_report(TERMS, LAYOUT, plan_of([[0]] * 3), report_of(values, [1] * 3, [0] * 3))
    assert summed.report.results[TRAIN].updates.values[0, 0] == pytest.approx(2.5 / 3, abs=TERMS.step)
    assert summed.events == [{"kind": "cut_updates", "clients": [0, 1, 2], "cut": 2, "limit": 1.0}]


@pytest.mark.parametrize(
    "total",
    [
        [1, 0, 0],  # nobody weighs anything
        [1, -4, 0],
        [1, 13, 0],  # more than the clients can weigh
        [5 * TERMS.levels + 1, 5, 0],  # more than a mean within the limit
        [1, 5, 4],  # more cut updates than clients
        [1, 5, -1],
    ],
)
def test_a_sum_that_no_honest_clients_have_is_not_used(total: list[int]) -> None:
    assert TERMS.mean(OpenedSum((0, 1, 2), torch.tensor(total), max_weight=12)) is None
    assert TERMS.mean(OpenedSum((0, 1, 2), torch.tensor([5 * TERMS.levels, 5, 3]), max_weight=12)) is not None


def test_numbers_of_samples_are_in_the_sum_alone() -> None:
    report = without_sizes(report_of(torch.zeros(2, LAYOUT.p), [30, 40], [0, 0]))
    assert report.results[TRAIN].sizes.tolist() == [1, 1]


def test_a_plan_that_asks_for_more_than_sums_is_refused() -> None:
    plan = plan_of([[0], [1]])
    require_sums_alone(plan)
    task = plan.tasks[TRAIN]
    silent = replace(task, upload=(False, False))
    for changed, message in (
        ({TRAIN: task, "second": task}, "updates in 'second'"),
        ({TRAIN: replace(task, upload_values=(True, False))}, "values of layers"),
        ({TRAIN: replace(task, candidates=torch.tensor([[0, 1], [1, -1]]))}, "updates of clients that choose"),
    ):
        with pytest.raises(ContractError, match=f"of round 1 asks for {message}.*: expected updates in 'train'"):
            require_sums_alone(replace(plan, tasks=changed))
    # Who sends nothing may compare models.
    require_sums_alone(replace(plan, tasks={TRAIN: replace(silent, candidates=torch.tensor([[0, 1], [1, -1]]))}))
