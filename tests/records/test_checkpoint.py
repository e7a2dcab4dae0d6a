from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save as to_bytes

from builders import change_checkpoint, seal_checkpoint
from fedstrata.algorithms.cfl import CFL
from fedstrata.algorithms.layercfl import LayerCFLState
from fedstrata.base.errors import RecordError
from fedstrata.core import State, initial_state
from fedstrata.records.checkpoint import Checkpoint, find_checkpoint, save
from fedstrata.testing import play, toy_problem
from turns import same

TORN = torch.tensor([[3.0, 0, 0, 0, 0, 0], [3.0, 0.1, 0, 0, 0, 0], [-3.0, 0, 0, 0, 0, 0], [-3.0, 0.1, 0, 0, 0, 0]])


def record_of(round: int, n: int = 3, **changes: Any) -> dict[str, Any]:
    """What is known of a round before its models are scored."""
    numbers = {"round": round, "seconds": 1.0, "clusters": 1, "bytes_down": 8, "bytes_up": 8, "metrics": []}
    lists: dict[str, list[int]] = {"pending": [], "absent": [], "rejected": [], "events": []}
    return {**numbers, **lists, "labels": [0] * n, "cohort": list(range(n)), **changes}


def write(folder: Path, round: int) -> None:
    save(folder, Checkpoint(replace(initial_state(toy_problem(3)), round=round), {}, record_of(round)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The checkpoints of rounds 1 to 3."""
    for round in (1, 2, 3):
        write(tmp_path / "checkpoint", round)
    return tmp_path / "checkpoint"


def test_a_state_with_a_tree_comes_back_to_the_last_bit(tmp_path: Path) -> None:
    state, _ = play(CFL(eps1=1.0, eps2=0.5, min_split=2), toy_problem(4), [TORN])
    record, experiment = record_of(1, n=4, labels=[1, 1, 2, 2]), {"seed": 0, "local": {"lr": 0.05}}
    store = {"0/1/2": torch.ones(3)}
    save(tmp_path, Checkpoint(state, store, record, experiment=experiment, versions={"torch": "2"}, lines="x"))
    restored = find_checkpoint(tmp_path, LayerCFLState)
    assert restored is not None and restored.skipped == ()
    assert same(state, restored.state) and type(restored.state) is LayerCFLState and len(restored.state.tree) == 3
    assert restored.store["0/1/2"].tolist() == [1.0, 1.0, 1.0] and restored.record == record
    assert (restored.experiment, restored.versions, restored.lines) == (experiment, {"torch": "2"}, "x")


def test_only_the_user_may_read_what_clients_sent(folder: Path) -> None:
    paths = [folder, *folder.iterdir()]
    assert len(paths) == 7 and all(path.stat().st_mode & 0o077 == 0 for path in paths)


def test_the_last_three_checkpoints_stay(folder: Path) -> None:
    write(folder, 4)
    names = [f"0000{round}" for round in (2, 3, 4)]
    assert sorted(path.stem for path in folder.glob("*.safetensors")) == names
    assert sorted(path.stem for path in folder.glob("*.sha256")) == names


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_by_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def of_checksum(damage: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda path: damage(path.with_suffix(".sha256"))


def sealed(content: bytes) -> Callable[[Path], object]:
    return lambda path: seal_checkpoint(path, content)


def said_to_be(**metadata: Any) -> Callable[[Path], object]:
    return lambda path: change_checkpoint(path, **metadata)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a flipped bit": (flip, "its checksum differs"),
    "an empty file": (lambda path: path.write_bytes(b""), "its size differs"),
    "a folder": (replace_by_folder, "it is damaged"),
    "a link": (replace_by_link, "it is damaged"),
    "a sparse file of 4 TB": (lambda path: path.open("r+b").truncate(4 * 10**12), "its size differs"),
    "no checksum": (of_checksum(Path.unlink), "it has no checksum"),
    "a checksum that is no text": (of_checksum(lambda path: path.write_bytes(b"\xff" * 64)), "its size differs"),
    "a checksum in UTF-16": (of_checksum(lambda path: path.write_text("a 1", "utf-16")), "its size differs"),
    "a folder as the checksum": (of_checksum(replace_by_folder), "it is damaged"),
    "no header": (sealed(b""), "it is damaged"),
    "a header of 2^60 bytes": (sealed((2**60).to_bytes(8, "little")), "it is damaged"),
    "no metadata": (sealed(to_bytes({"a": torch.ones(1)})), "of another version"),
    "another format": (said_to_be(format=1), "expected format 2, found 1"),
    "a state without fields": (said_to_be(state={}), "only one of the two has"),
    "a state that is a list": (said_to_be(state=[]), "it is damaged"),
    "a record that is a list": (said_to_be(record=[]), "not those of a checkpoint"),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_checkpoint_gives_way_to_the_one_before_and_it_is_said(name: str, folder: Path) -> None:
    damage, said = DAMAGES[name]
    damage(folder / "00003.safetensors")
    found = find_checkpoint(folder, State)
    assert found is not None and found.state.round == 2
    (reason,) = found.skipped
    assert reason.startswith("00003.safetensors: ") and said in reason and "\n" not in reason


def test_a_checkpoint_that_is_of_no_use_gives_way_to_the_one_before(folder: Path) -> None:
    found = find_checkpoint(folder, State, lambda found: "its models are not finite" if found.state.round > 1 else "")
    assert found is not None and found.state.round == 1
    assert found.skipped == tuple(f"0000{round}.safetensors: its models are not finite" for round in (3, 2))


def test_a_checksum_without_its_checkpoint_is_what_a_process_leaves_that_died(tmp_path: Path) -> None:
    assert find_checkpoint(tmp_path, State) is None
    write(tmp_path, 1)
    (tmp_path / "00001.safetensors").unlink()
    assert find_checkpoint(tmp_path, State) is None


def test_a_state_of_another_algorithm_is_one_clear_error(tmp_path: Path) -> None:
    write(tmp_path, 1)
    with pytest.raises(RecordError, match="of another version: only one of the two has "):
        find_checkpoint(tmp_path, LayerCFLState)


@dataclass(frozen=True)
class Rich(State):
    """A state with what later algorithms may need."""

    maybe: torch.Tensor | None
    names: tuple[str, ...]
    rows: dict[str, torch.Tensor]


def test_optional_tensors_tuples_and_mappings_come_back(tmp_path: Path) -> None:
    plain = vars(initial_state(toy_problem(3)))
    for maybe in (None, torch.tensor([1.0])):
        state = Rich(**(plain | {"round": 1}), maybe=maybe, names=("a", "b"), rows={"x": torch.tensor([2.0])})
        save(tmp_path, Checkpoint(state, {}, {}))
        found = find_checkpoint(tmp_path, Rich)
        assert found is not None
        restored = found.state
        assert restored.names == ("a", "b") and restored.rows["x"].tolist() == [2.0]
        assert (restored.maybe is None) == (maybe is None)
