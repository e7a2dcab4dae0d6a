"""Whatever numbers one client sends: they are refused, as if it had been absent, or the models stay finite."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstrata.config.hyperparameters import algorithm_from
from fedstrata.core import Algorithm, Plan, Report, Rows, State
from fedstrata.uploads.validation import decide, validate
from pulled import LAYOUT, Pulled, pulled_problem
from test_every_algorithm import EAGER
from turns import same

ATTACKER = 4
EVERYONE = torch.arange(12)
ROUND = 3

NOT_FINITE = (float("nan"), float("inf"), -float("inf"))
HUGE = (1e19, 1e30, 1e38, -3.4028234663852886e38)
"""Of one such number the square alone is no float32 number any more."""
ORDINARY = (0.0, -0.0, 1e-45, -1e-45, 1e-40, 1.1754943508222875e-38, 1e-20, -1e-3)
"""Zeros, subnormal numbers and small ones: with a row of its own otherwise, a client may send these."""

columns = st.lists(st.integers(0, LAYOUT.p - 1), min_size=1, max_size=LAYOUT.p, unique=True)


class Federation:
    """A federation of twelve clients after two rounds of an algorithm."""

    def __init__(self, name: str) -> None:
        self.algorithm: Algorithm[Any] = algorithm_from(name, EAGER.get(name, {}))
        self.problem = pulled_problem(EVERYONE)
        clients = Pulled(EVERYONE)
        state: State = self.algorithm.init(self.problem)
        for _ in range(ROUND - 1):
            plan = self.algorithm.plan(self.problem, state, EVERYONE)
            state = self.next(plan, state, clients.run(plan))
        self.plan, self.state = self.algorithm.plan(self.problem, state, EVERYONE), state
        self.report = clients.run(self.plan)
        results = {name: each.only(each.updates.clients != ATTACKER) for name, each in self.report.results.items()}
        stats = {name: rows.at(rows.clients != ATTACKER) for name, rows in self.report.client_stats.items()}
        self.without = self.next(self.plan, state, replace(self.report, results=results, client_stats=stats))

    def next(self, plan: Plan, state: State, report: Report) -> State:
        """The state after a round whose report is validated."""
        checked = validate(self.problem.layout, plan, report)
        found, _, _ = decide(self.algorithm, self.problem, state, replace(checked, cohort=plan.cohort))
        assert isinstance(found, State)
        return found

    def attacked(self, values: dict[int, float]) -> Report:
        """The report in which the attacker has put numbers into columns of every update."""
        results = {}
        for name, result in self.report.results.items():
            rows = result.updates.values.clone()
            for column, value in values.items():
                rows[result.updates.clients == ATTACKER, column] = value
            results[name] = replace(result, updates=Rows(result.updates.clients, rows))
        return replace(self.report, results=results)


@pytest.fixture(scope="module", params=["fedavg", "strata", "layercfl", "hicfl", "adacfl", "ifca", "fesem"])
def here(request: pytest.FixtureRequest) -> Federation:
    return Federation(request.param)


def put(data: st.DataObject, *kinds: float) -> dict[int, float]:
    """Columns, each with one of several numbers."""
    return {column: data.draw(st.sampled_from(kinds)) for column in data.draw(columns)}


@settings(max_examples=30)
@given(st.data())
def test_numbers_that_are_not_finite_or_huge_are_as_if_the_client_were_absent(
    here: Federation, data: st.DataObject
) -> None:
    values = put(data, *ORDINARY, *HUGE, *NOT_FINITE)
    values[data.draw(columns)[0]] = data.draw(st.sampled_from(HUGE + NOT_FINITE))
    report = here.attacked(values)
    (event,) = validate(here.problem.layout, here.plan, report).events
    assert event["clients"] == [ATTACKER]
    assert same(here.next(here.plan, here.state, report), here.without)


@settings(max_examples=30)
@given(st.data())
def test_zeros_and_subnormal_numbers_are_taken_and_leave_finite_models(here: Federation, data: st.DataObject) -> None:
    report = here.attacked(put(data, *ORDINARY))
    assert validate(here.problem.layout, here.plan, report) is report
    after = here.next(here.plan, here.state, report)
    assert bool(after.models.isfinite().all()) and len(after.labels) == len(EVERYONE)
