"""What a device keeps is what the server knows of, whatever came late, was lost, or is done a second time."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message
from in_process import Federation, Loopback, federation, over_the_wire, without

from fedstrata.core import Plan, Report
from fedstrata.flower.client_app import KEPT_RUNS, work
from fedstrata.flower.clients import FlowerClients
from turns import same

KEYS: dict[str, Any] = {
    "data": {"name": "digits", "clients": 4, "samples": 32, "test": 0.2},
    "partition": {"scheme": "rotation", "groups": 2},
    "model": {"name": "mlp", "hidden": [8]},
    "local": {"lr": 0.1, "batch": 8},
}
SLOW = 2
ROUNDS = 5
ALGORITHMS = ["fedper", "ditto"]


@pytest.fixture(scope="module", params=ALGORITHMS)
def here(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Federation:
    return federation({**KEYS, "algorithm": {"name": request.param}}, tmp_path_factory.mktemp("devices"))


@pytest.fixture
def fresh(here: Federation, tmp_path: Path) -> Federation:
    """The federation with devices that keep nothing yet."""
    here.setup.clients.store.restore({})
    devices = {node: replace(device, state=tmp_path / device.key) for node, device in here.devices.items()}
    return replace(here, devices=devices)


def play(here: Federation, ask: Callable[[Plan], Report], rounds: int = ROUNDS) -> Iterator[Report]:
    """Rounds of an algorithm with personal layers, everyone scored in each."""
    setting = here.setup
    algorithm, problem, everyone = setting.server.algorithm, setting.server.problem, setting.everyone
    state = algorithm.init(problem)
    for _ in range(rounds):
        evaluations = algorithm.evaluations(problem, state, everyone)
        report = ask(replace(algorithm.plan(problem, state, everyone), evaluations=evaluations))
        state, _ = algorithm.update(problem, state, replace(report, cohort=everyone))
        yield report


def simulated(here: Federation, absent: dict[int, int]) -> Callable[[Plan], Report]:
    """The simulator, where in some rounds one client does not answer."""

    def ask(plan: Plan) -> Report:
        gone = torch.tensor([absent[plan.round]] if plan.round in absent else [], dtype=torch.int64)
        return here.setup.clients.run(without(plan, gone))

    return ask


def equal(here: Federation, remote: FlowerClients, absent: dict[int, int]) -> None:
    for round, (one, other) in enumerate(zip(play(here, remote.run), play(here, simulated(here, absent)), strict=True)):
        assert same(one, other), f"round {round + 1}"


def of(message: Message) -> tuple[int, int]:
    """Client and round of a message."""
    return message.metadata.dst_node_id - 100, int(message.metadata.group_id)


@pytest.mark.parametrize("rounds", [(2,), (1,), (2, 3, 4)])
def test_an_answer_that_comes_too_late_does_not_move_its_clients_own_layers(
    fresh: Federation, rounds: tuple[int, ...]
) -> None:
    """The device has trained them: those that it goes on with are those of the last answer that was taken."""

    def twist(message: Message, reply: Message) -> list[Message]:
        client, round = of(message)
        return [] if client == SLOW and round in rounds else [reply]

    remote, _ = fresh.remote(twist=twist)
    equal(fresh, remote, dict.fromkeys(rounds, SLOW))


def test_an_order_that_was_held_up_does_no_harm_when_it_is_worked_on_at_last(fresh: Federation) -> None:
    """As after its SuperNode was killed, when the process that trains lives on."""
    held: list[Message] = []

    def twist(message: Message, reply: Message) -> list[Message]:
        client, round = of(message)
        if client == SLOW and round == 4:
            work(held[0], fresh.devices[100 + SLOW])
        return [reply]

    class Held(Loopback):
        def push_messages(self, messages: list[Message]) -> list[str | None]:
            late = [message for message in messages if of(message) == (SLOW, 2)]
            held.extend(map(over_the_wire, late))
            ids = iter(super().push_messages([message for message in messages if message not in late]))
            return ["held up" if message in late else next(ids) for message in messages]

    remote, _ = fresh.remote()
    remote.grid = Held(dict(fresh.devices), twist)
    equal(fresh, remote, {2: SLOW})
    assert held


def test_a_server_that_goes_back_to_its_second_newest_checkpoint_finds_all_layers_as_they_were(
    fresh: Federation,
) -> None:
    """The third round is asked a second time when the devices have trained the fourth: its checkpoint was damaged."""
    remote, _ = fresh.remote()
    marks: list[dict[str, torch.Tensor]] = []
    asked: list[Plan] = []

    def ask(plan: Plan) -> Report:
        marks.append(remote.store.tensors())
        asked.append(plan)
        return remote.run(plan)

    reports = list(play(fresh, ask, 4))
    remote.store.restore(marks[2])
    for plan, before in zip(asked[2:], reports[2:], strict=True):
        assert same(remote.run(plan), before)


def test_a_device_keeps_three_rounds_at_most_and_forgets_old_runs(fresh: Federation, tmp_path: Path) -> None:
    device = fresh.devices[100]
    device.state.mkdir()
    old = [device.state / f"old-{place}.safetensors" for place in range(KEPT_RUNS)]
    for place, path in enumerate(old):
        path.write_bytes(b"")
        os.utime(path, (place, place))
    remote, _ = fresh.remote()
    list(play(fresh, remote.run))
    assert {path.name for path in device.state.iterdir()} == {
        "lock",
        "run.safetensors",
        *(path.name for path in old[1:]),
    }
    shelf = (device.state / "run.safetensors").read_bytes()
    header = json.loads(shelf[8 : 8 + int.from_bytes(shelf[:8], "little")])
    assert {int(name.split("/")[2]) for name in header if name != "__metadata__"} == {3, 4, 5}
