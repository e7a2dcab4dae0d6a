"""What ``docs/methods/algorithms/facts.toml`` says of every algorithm, and the pages of it, is so.

The tables for choosing an algorithm have it, and the page on privacy: what clients send and receive, and what the
server keeps.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from experiments.tools.descriptions import facts, title_of

from fedstrata.algorithms import ALGORITHMS
from fedstrata.config.hyperparameters import algorithm_from
from fedstrata.core import Plan, Report, State, make_pending
from fedstrata.play.recorder import Traffic, traffic
from pulled import Pulled, pulled_problem
from test_every_algorithm import CASES
from turns import only

EVERYONE = torch.arange(12)
NEWCOMER = 5
CENTRAL = "centralized"
"""Whose only client is the union of all."""
NORMALISED = "fedbn"
"""Which differs from FedAvg only where a network has BatchNorm, as none has here; `test_fedbn.py` has one."""

TRAINED = [name for name in ALGORITHMS if name not in (CENTRAL, NORMALISED)]

PRIVACY = Path(__file__).parents[2] / "docs" / "methods" / "privacy.md"

OWN_MODEL = {"the global model", "the model of its cluster", "nothing but the initial model"}
"""What is said where a client sees no model of another cluster."""


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


@pytest.mark.parametrize("name", TRAINED)
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


@pytest.mark.parametrize("name", TRAINED)
def test_only_an_update_is_said_where_nothing_else_is_sent(name: str) -> None:
    played = [(round, row) for round in rounds(name) for row in round.placed]
    assert (facts()[name]["uploads"] == "its update") == all(sends_all_of_one_model(*pair) for pair in played)


def sends_all_of_one_model(round: Round, row: int) -> bool:
    """Whether a client of the cohort sends one whole update, no statistic, and no losses of several models."""
    busy = [task for task in round.plan.tasks.values() if bool((task.candidates[row] >= 0).any())]
    uploads = [task for task in busy if any(task.upload)]
    asked = any(bool(who[row]) for who in round.plan.client_stats.values())
    chooses = any(int((task.candidates[row] >= 0).sum()) > 1 for task in busy)
    whole = all(all(task.upload) and not any(task.upload_values) for task in uploads)
    return len(uploads) == 1 and whole and not asked and not chooses


@pytest.mark.parametrize("name", TRAINED)
def test_nothing_is_said_where_the_state_holds_nothing_of_single_clients(name: str) -> None:
    plain = {field.name for field in fields(State)}
    held = any(
        of_clients(getattr(round.after, field.name))
        for round in rounds(name)
        for field in fields(round.after)
        if field.name not in plain
    )
    assert (facts()[name]["stores"] == "nothing") == (not held)


def of_clients(part: Any) -> bool:
    """Whether a part of a state has numbers of single clients: a row for each, or some beside their ids."""
    if isinstance(part, torch.Tensor):
        return part.dtype != torch.bool and len(part.shape) > 0 and len(part) == len(EVERYONE) and part.numel() > 0
    parts = [*part] if isinstance(part, tuple) else []
    if is_dataclass(part):
        parts = [getattr(part, field.name) for field in fields(part)]
        if hasattr(part, "clients") and any(numbers(each) for each in parts):
            return True
    return any(of_clients(each) for each in parts)


def numbers(part: Any) -> bool:
    """Whether a part is a tensor of measured numbers."""
    return isinstance(part, torch.Tensor) and part.is_floating_point() and part.numel() > 0


@pytest.mark.parametrize("name", TRAINED)
def test_only_its_own_model_is_said_where_a_client_sees_no_other(name: str) -> None:
    said = facts()[name]["receives"].partition(",")[0]
    seen = [model for round in rounds(name) for row in round.placed for model in other_models(round, row)]
    assert (said in OWN_MODEL) == (not seen)


def other_models(round: Round, row: int) -> Iterator[torch.Tensor]:
    """The models that a client is sent, but for that of its cluster and the initial one."""
    own = int(round.before.labels[round.plan.cohort[row]])
    known = [round.before.models[own], pulled_problem(EVERYONE).fresh(0)]
    for task in round.plan.tasks.values():
        for index in task.candidates[row].tolist():
            model = round.plan.models[index]
            if index >= 0 and not any(torch.equal(model, each) for each in known):
                yield model


def test_every_algorithm_is_in_the_table() -> None:
    text = PRIVACY.read_text()
    assert all(f"\n| [{title_of(name)}](algorithms/{name}.md) |" in text for name in ALGORITHMS)
