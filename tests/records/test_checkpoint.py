from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fedstrata.algorithms.cfl import CFL
from fedstrata.algorithms.parts.recursive.recursion import Watched
from fedstrata.core import State, begin
from fedstrata.errors import RecordError
from fedstrata.records import load, save
from fedstrata.testing import play, toy_problem

TORN = torch.tensor([[3.0, 0, 0, 0, 0, 0], [3.0, 0.1, 0, 0, 0, 0], [-3.0, 0, 0, 0, 0, 0], [-3.0, 0.1, 0, 0, 0, 0]])


def same(one: State, other: State) -> bool:
    pairs = zip(vars(one).values(), vars(other).values(), strict=True)
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


def test_a_state_with_a_tree_comes_back_to_the_last_bit(tmp_path: Path) -> None:
    state, _ = play(CFL(eps1=1.0, eps2=0.5), toy_problem(4), [TORN])
    save(tmp_path, state, {"0/1/2": torch.ones(3)}, {"round": 1, "labels": [1, 2]})
    found = load(tmp_path, Watched)
    assert found is not None
    restored, store, record = found
    assert same(state, restored) and type(restored) is Watched and len(restored.tree) == 3
    assert store["0/1/2"].tolist() == [1.0, 1.0, 1.0] and record == {"round": 1, "labels": [1, 2]}


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path) -> None:
    state = begin(toy_problem(3))
    for round in (1, 2, 3):
        save(tmp_path, replace(state, round=round), {}, {})
    assert sorted(path.name for path in tmp_path.glob("*.safetensors")) == [
        "00002.safetensors",
        "00003.safetensors",
    ]
    newest = tmp_path / "00003.safetensors"
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    newest.write_bytes(bytes(content))
    found = load(tmp_path, State)
    assert found is not None and found[0].round == 2


def test_a_checkpoint_whose_checksum_was_never_written_does_not_count(tmp_path: Path) -> None:
    save(tmp_path, replace(begin(toy_problem(3)), round=1), {}, {})
    (tmp_path / "00001.sha256").unlink()
    assert load(tmp_path, State) is None
    assert load(tmp_path / "nothing here", State) is None


def test_a_checkpoint_of_another_version_is_one_clear_error(tmp_path: Path) -> None:
    save(tmp_path, replace(begin(toy_problem(3)), round=1), {}, {})
    with pytest.raises(RecordError, match="expected a checkpoint of this version"):
        load(tmp_path, Watched)
    save_file({"a": torch.zeros(1)}, tmp_path / "00002.safetensors")
    import hashlib

    digest = hashlib.sha256((tmp_path / "00002.safetensors").read_bytes()).hexdigest()
    (tmp_path / "00002.sha256").write_text(digest)
    with pytest.raises(RecordError, match="expected a checkpoint of this version"):
        load(tmp_path, State)


@dataclass(frozen=True)
class Rich(State):
    """A state with what later algorithms may need."""

    maybe: torch.Tensor | None
    names: tuple[str, ...]
    rows: dict[str, torch.Tensor]


def test_optional_tensors_tuples_and_mappings_come_back(tmp_path: Path) -> None:
    plain = vars(begin(toy_problem(3)))
    for maybe in (None, torch.tensor([1.0])):
        state = Rich(**(plain | {"round": 1}), maybe=maybe, names=("a", "b"), rows={"x": torch.tensor([2.0])})
        save(tmp_path, state, {}, {})
        found = load(tmp_path, Rich)
        assert found is not None
        assert found[0].names == ("a", "b") and found[0].rows["x"].tolist() == [2.0]
        assert (found[0].maybe is None) == (maybe is None)
