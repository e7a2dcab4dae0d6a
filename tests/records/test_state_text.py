from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from fedstrata.base.errors import ContractError
from fedstrata.core import State, extend_state, initial_state
from fedstrata.records.checkpoint import Checkpoint, find_checkpoint, require_saveable, save
from fedstrata.testing import toy_problem


@dataclass(frozen=True)
class Counting(State):
    """Fields of the kinds that an algorithm of one's own may have."""

    answers: Mapping[int, int] = field(default_factory=dict)
    last: tuple[float, str] = (0.0, "")
    anchor: torch.Tensor = field(default_factory=lambda: torch.zeros(0))


@dataclass(frozen=True)
class Listing(State):
    """A field that no checkpoint can have."""

    seen: list[torch.Tensor] = field(default_factory=list)


def test_numbered_mappings_mixed_tuples_and_parts_of_models_come_back(tmp_path: Path) -> None:
    """Keys of JSON are texts, and a file holds no memory twice."""
    state = initial_state(toy_problem(3))
    parts = {"answers": {0: 2, 10: 1}, "last": (0.5, "linear"), "anchor": state.models[0]}
    counting = replace(extend_state(state, Counting, **parts), round=1)
    require_saveable(counting)
    save(tmp_path, Checkpoint(counting, {}, {}))
    found = find_checkpoint(tmp_path, Counting)
    assert found is not None and (found.state.answers, found.state.last) == ({0: 2, 10: 1}, (0.5, "linear"))
    assert torch.equal(found.state.anchor, state.models[0])


def test_a_field_that_cannot_be_saved_is_named_before_the_first_round() -> None:
    listing = extend_state(initial_state(toy_problem(3)), Listing, seen=[torch.ones(2)])
    with pytest.raises(ContractError, match=r"Listing\.seen cannot be saved: .*; fields of a state are tensors"):
        require_saveable(listing)
    changed = extend_state(initial_state(toy_problem(3)), Counting, answers={}, last=[0.5, "a"], anchor=torch.zeros(1))
    with pytest.raises(ContractError, match=r"Counting\.last cannot be saved: TypeError: it holds list"):
        require_saveable(changed)
