"""What a device keeps is what the server knows of, whatever came late, was lost, or is done a second time."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import in_process
import pytest
from flwr.app import Message
from in_process import Deployed, Loopback, absences, at, context_of, lost, models, over_the_wire, records

from builders import keys
from fedstrata.flower.client_app import client_app
from fedstrata.flower.node import KEPT_RUNS

KEYS = keys(in_process.KEYS, rounds=5, data={"clients": 4}, partition={"groups": 2}, algorithm={"name": "fedper"})
SLOW = 2


@pytest.fixture(params=["fedper", "ditto"])
def algorithm(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"name": request.param}


def assert_same(real: Path, simulated: Path) -> None:
    """The same models, and the same accuracies, which are those of the clients' own layers."""
    assert models(real) == models(simulated) != {}
    assert [line["acc_client"] for line in records(real)] == [line["acc_client"] for line in records(simulated)]


@pytest.mark.parametrize("rounds", [(2,), (1,), (2, 3, 4)])
def test_an_answer_that_comes_too_late_does_not_move_its_clients_own_layers(
    here: Deployed, algorithm: dict[str, Any], rounds: tuple[int, ...], tmp_path: Path
) -> None:
    """The device has trained them: those that it goes on with are those of the last answer that was taken."""
    here.grid.twist = lost(SLOW, *rounds)
    here.run(tmp_path / "real", algorithm=algorithm)
    here.simulated(tmp_path / "simulated", {round: [SLOW] for round in rounds}, algorithm=algorithm)
    assert_same(tmp_path / "real", tmp_path / "simulated")


def test_an_order_that_was_held_up_does_no_harm_when_it_is_worked_on_at_last(
    here: Deployed, algorithm: dict[str, Any], tmp_path: Path
) -> None:
    """As after its SuperNode was killed, when the process that trains lives on."""
    held: list[Message] = []

    def work_on_it(message: Message, reply: Message) -> None:
        client_app(held[0], context_of(here.grid.devices[100 + SLOW]))

    class Held(Loopback):
        def push_messages(self, messages: list[Message]) -> list[str | None]:
            (sent,) = (message.metadata for message in messages[:1])
            if (sent.dst_node_id, sent.group_id) != (100 + SLOW, "2"):
                return super().push_messages(messages)
            held.extend(map(over_the_wire, messages))
            return ["held up"]

    here = replace(here, grid=Held(here.grid.devices, at(SLOW, 4, work_on_it)))
    here.run(tmp_path / "real", algorithm=algorithm)
    here.simulated(tmp_path / "simulated", {2: [SLOW]}, algorithm=algorithm)
    assert_same(tmp_path / "real", tmp_path / "simulated")
    assert held and list(absences(tmp_path / "real")[1]) == [str(SLOW)]


def test_a_server_that_goes_back_to_its_second_newest_checkpoint_finds_all_layers_as_they_were(
    here: Deployed, algorithm: dict[str, Any], tmp_path: Path
) -> None:
    """The third round is asked a second time when the devices have trained the fourth: its checkpoint was damaged."""
    here.run(tmp_path / "real", algorithm=algorithm, rounds=4)
    max((tmp_path / "real" / "checkpoint").glob("*.safetensors")).write_bytes(b"damaged")
    here.run(tmp_path / "real", algorithm=algorithm, resume=True)
    here.simulated(tmp_path / "simulated", {}, algorithm=algorithm)
    assert_same(tmp_path / "real", tmp_path / "simulated")


def test_a_device_keeps_three_rounds_at_most_and_forgets_old_runs(
    here: Deployed, algorithm: dict[str, Any], tmp_path: Path
) -> None:
    state = here.grid.devices[100].state
    state.mkdir()
    old = [state / f"old{place}-0.safetensors" for place in range(KEPT_RUNS)]
    for place, path in enumerate(old):
        path.write_bytes(b"")
        os.utime(path, (place, place))
    here.run(tmp_path / "run", algorithm=algorithm)
    (new,) = set(state.glob("*.safetensors")) - set(old)
    assert set(state.iterdir()) == {state / "lock", new, *old[1:]}
    kept = new.read_bytes()
    header = json.loads(kept[8 : 8 + int.from_bytes(kept[:8], "little")])
    assert {int(name.split("/")[2]) for name in header if name != "__metadata__"} == {3, 4, 5}
