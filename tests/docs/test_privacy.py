"""What the page on privacy says that clients send and receive, and that the server keeps, is so."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from descriptions import facts, title_of
from test_choosing import CENTRAL, EVERYONE, NORMALISED, Round, rounds

from fedstrata.algorithms import ALGORITHMS
from fedstrata.core import State
from pulled import pulled_problem

PAGE = Path(__file__).parents[2] / "docs" / "privacy.md"

OWN_MODEL = {"the global model", "the model of its cluster", "nothing but the initial model"}
"""What is said where a client sees no model of another cluster."""

TRAINED = [name for name in ALGORITHMS if name not in (CENTRAL, NORMALISED)]


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
    text = PAGE.read_text()
    assert all(f"\n| [{title_of(name)}](algorithms/{name}.md) |" in text for name in ALGORITHMS)


def test_the_page_of_pacfl_says_that_its_vectors_show_the_data() -> None:
    page = (PAGE.parent / "algorithms" / "pacfl.md").read_text()
    assert "class means" in page and "(../privacy.md" in page
