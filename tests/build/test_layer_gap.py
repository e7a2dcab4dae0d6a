import math
from dataclasses import replace

import pytest
import torch

from fedstrata.build.probes import client_matrices, gaps
from fedstrata.core import Plan, Report, Result, Rows, fedavg_plan, initial_state
from fedstrata.records.schema import ALL_CLIENTS
from fedstrata.testing import toy_problem

UPDATES = torch.tensor(
    [[3.0, 4, 0, 1, 0, 0], [4.0, 3, 0, 0, 1, 0], [0.0, 0, 5, 0, 2, 0], [0.0, 3, 4, 0, 1, 1]],
)
LAYOUT = toy_problem(4).layout
TRUTH = torch.tensor([0, 0, 1, 1])
START = torch.tensor([1.0, 0, 0, 0, 1, 0])


def plan_and_report(clients: list[int]) -> tuple[Plan, Report]:
    problem = toy_problem(4)
    plan = fedavg_plan(problem, initial_state(problem), torch.arange(4))
    plan = Plan(1, 0, plan.cohort, START[None], plan.tasks)
    m = len(clients)
    rows = Rows(torch.tensor(clients), UPDATES[clients])
    return plan, Report({"train": Result(rows, torch.zeros(m, dtype=torch.int64), torch.ones(m), torch.zeros(m, 1))})


def test_the_gap_of_every_layer_reproduces_golden_case_2() -> None:
    records = gaps(LAYOUT, *plan_and_report([0, 1, 2, 3]), TRUTH, ["dcos", "dl2", "l2", "cos"])
    found = {(record["layer"], record["measure"]): record["gap"] for record in records}
    golden = {
        ("conv", "dcos"): 0.32,
        ("conv", "dl2"): 1.936742,
        ("fc", "dcos"): -1.0,
        ("fc", "dl2"): -0.414214,
        ("all", "dcos"): 0.333305,
        ("all", "dl2"): 1.921063,
    }
    for key, value in golden.items():
        assert found[key] == pytest.approx(value, abs=1e-6)
    for layer in ("conv", "fc", "all"):  # all clients started from the same weights
        assert found[layer, "l2"] == pytest.approx(found[layer, "dl2"], abs=1e-5)
    assert found["conv", "cos"] == pytest.approx(0.807692 - 0.554700, abs=1e-6)


def test_without_two_groups_among_those_who_answered_there_is_no_gap() -> None:
    records = gaps(LAYOUT, *plan_and_report([0, 1]), TRUTH, ["dcos"])
    assert all(math.isnan(float(record["gap"])) for record in records)


def test_the_weights_of_a_tensor_that_is_sent_as_values_are_those_values() -> None:
    plan, report = plan_and_report([0, 1, 2, 3])
    plan = replace(plan, tasks={"train": replace(plan.tasks["train"], upload_values=LAYOUT.select("fc"))})
    records = gaps(LAYOUT, plan, report, TRUTH, ["cos", "dcos"])
    found = {(record["layer"], record["measure"]): float(record["gap"]) for record in records}
    assert found["fc", "cos"] == pytest.approx(-1.0)  # the cosines of golden case 1's updates, not of its weights
    assert found["conv", "cos"] == pytest.approx(0.807692 - 0.554700, abs=1e-6)
    assert found["conv", "dcos"] == pytest.approx(0.32) and math.isnan(found["fc", "dcos"])


def test_what_is_not_sent_is_not_measured() -> None:
    plan, report = plan_and_report([0, 1, 2, 3])
    silent = replace(plan.tasks["train"], upload=LAYOUT.nothing)
    assert gaps(LAYOUT, replace(plan, tasks={"train": silent}), report, TRUTH, ["dcos"]) == []
    base = replace(plan.tasks["train"], upload=(True, False))
    both = replace(report, results={"head": report.results["train"], "train": report.results["train"]})
    records = gaps(LAYOUT, replace(plan, tasks={"head": silent, "train": base}), both, TRUTH, ["dcos", "cos"])
    assert [str(record["layer"]) for record in records if math.isnan(float(record["gap"]))] == ["fc", "fc"]


def test_the_union_of_all_data_is_no_client_that_could_be_apart_from_others() -> None:
    plan, report = plan_and_report([0, 1, 2, 3])
    union = replace(plan, cohort=torch.tensor([4]))
    assert gaps(LAYOUT, union, report, TRUTH, ["dcos"]) == []


def test_all_clients_are_compared_by_what_each_selector_names() -> None:
    """Updates of the convolution: (3, 4, 0), (4, 3, 0), (0, 0, 5), (0, 3, 4), all of length 5."""
    plan, report = plan_and_report([3, 0, 2])
    one, all_of_them = client_matrices(LAYOUT, plan, report, 4, ["dcos"], ["conv", "*"])
    assert (one.node, one.layer, one.measure, one.clients.tolist()) == (ALL_CLIENTS, "conv", "dcos", [3, 0, 2])
    torch.testing.assert_close(one.values[0, 1:], torch.tensor([12 / 25, 20 / 25], dtype=one.values.dtype))
    # Over all columns the updates of clients 0 and 2 have the lengths sqrt(26) and sqrt(29), and no common column.
    assert all_of_them.layer == "*" and float(all_of_them.values[1, 2]) == 0.0
    names = [(each.layer, each.measure) for each in client_matrices(LAYOUT, plan, report, 4, ["l2", "dcos"])]
    assert names == [(layer, measure) for measure in ("l2", "dcos") for layer in ("conv", "fc", "all")]
