"""What the tables for choosing an algorithm call "none" and "nothing" is so, and what they do not, is not."""

from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from descriptions import facts

from fedstrata.algorithms import ALGORITHMS
from fedstrata.config.tables import algorithm_from
from fedstrata.core import Plan, Report, State, make_pending
from fedstrata.runner.traffic import Traffic, traffic
from pulled import Pulled, pulled_problem
from test_every_algorithm import CASES
from turns import only

EVERYONE = torch.arange(12)
NEWCOMER = 5
CENTRAL = "centralized"
"""Whose only client is the union of all."""
NORMALISED = "fedbn"
"""Which differs from FedAvg only where a network has BatchNorm, as none has here; `test_fedbn.py` has one."""


@dataclass(frozen=True)
class Round:
    """One round of clients that all answer; the newcomer comes in the fifth."""

    before: State
    plan: Plan
    report: Report
    after: State

    @property
    def placed(self) -> list[int]:
        """Rows of the clients whose cluster was known."""
        return [row for row, client in enumerate(self.plan.cohort.tolist()) if int(self.before.labels[client]) >= 0]


@cache
def rounds(name: str) -> list[Round]:
    """Some rounds of an algorithm, with each of the sets of keys by which the conformance tests run it."""
    played = []
    for case in (case for case in CASES.values() if case.name == name):
        algorithm, problem, clients = algorithm_from(name, case.keys), pulled_problem(EVERYONE), Pulled(EVERYONE)
        state: State = make_pending(algorithm.init(problem), [NEWCOMER], node=0)
        for round in range(1, 9):
            cohort = EVERYONE if round >= 5 else EVERYONE[EVERYONE != NEWCOMER]
            plan = algorithm.plan(problem, state, cohort)
            report = replace(clients.run(plan), cohort=cohort)
            after, _ = algorithm.update(problem, state, report)
            played.append(Round(state, plan, report, after))
            state = after
    return played


def is_plain(round: Round, row: int) -> bool:
    """Whether a client of the cohort trained one model once, for the usual epochs, and did nothing else."""
    busy = [task for task in round.plan.tasks.values() if bool((task.candidates[row] >= 0).any())]
    asked = any(bool(who[row]) for who in round.plan.client_stats.values())
    usual = pulled_problem(EVERYONE).training.epochs
    alone = all(int((task.candidates[row] >= 0).sum()) == 1 and task.training.epochs == usual for task in busy)
    return len(busy) == 1 and alone and not asked


def sent(round: Round, row: int) -> Traffic:
    """The bytes of one client."""
    client = round.plan.cohort[row : row + 1]
    alone = round.plan.only(round.plan.cohort == client)
    return traffic(pulled_problem(EVERYONE).layout, alone, only(round.report, client))


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in (CENTRAL, NORMALISED)])
def test_none_and_nothing_are_said_of_what_is_so(name: str) -> None:
    told, played = facts()[name], rounds(name)
    model = 4 * pulled_problem(EVERYONE).layout.p
    rows = [(round, row) for round in played for row in round.placed]
    assert (told["work"] == "none") == all(is_plain(round, row) for round, row in rows)
    assert (told["keeps"] == "nothing") == (
        not any(any(task.save_local) for round in played for task in round.plan.tasks.values())
    )
    assert (told["sends"] == "nothing") == all(sent(*pair) == Traffic(model, model, 0) for pair in rows)
    moved = any(not torch.equal(_placed(round.before, round), _placed(round.after, round)) for round in played)
    assert (told["decides"] == "nothing") == (not moved)


def _placed(state: State, round: Round) -> torch.Tensor:
    """The tree nodes of the clients whose cluster was known before a round."""
    known = round.before.labels >= 0
    return torch.where(state.labels >= 0, state.nodes[state.labels], -1)[known]
