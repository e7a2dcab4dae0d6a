"""A whole run over real messages: the records of the simulator, identity, newcomers, resuming."""

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message
from in_process import Loopback, Ticks, federation

from fedstrata.config import load
from fedstrata.errors import EngineError, InputError
from fedstrata.flower.alone import alone
from fedstrata.flower.device import Device
from fedstrata.flower.federation import Federation
from fedstrata.flower.remote import Rules
from fedstrata.flower.server import drive
from fedstrata.train import Run, run

KEYS: dict[str, Any] = {
    "rounds": 4,
    "data": {"name": "digits", "clients": 6, "samples": 32, "test": 0.2},
    "partition": {"scheme": "rotation", "groups": 3},
    "model": {"name": "mlp", "hidden": [8]},
    "local": {"lr": 0.1, "batch": 8},
    "algorithm": {"name": "layercfl", "layers": "linear", "eps1": 10.0, "eps2": 0.0, "gamma": 0.3},
    "engine": {"name": "loop", "device": "cpu"},
}


@pytest.fixture(scope="module")
def devices(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[int, Device], Federation]:
    made = federation(KEYS, tmp_path_factory.mktemp("devices"))
    truth = made.setting.problem.truth
    assert truth is not None
    keys = tuple(device.key for device in made.devices.values())
    return made.devices, Federation(keys, made.terms.samples, truth=tuple(truth.tolist()), patience=5.0)


Here = tuple[Loopback, Federation]


@pytest.fixture
def here(devices: tuple[dict[int, Device], Federation], tmp_path: Path) -> Here:
    """The devices with states of their own."""
    fresh = {node: replace(device, state=tmp_path / device.key) for node, device in devices[0].items()}
    return Loopback(fresh), devices[1]


def driven(grid: Loopback, federation: Federation, out: Path, resume: bool = False, **changes: Any) -> Run:
    return drive(grid, load({**KEYS, **changes}), federation, out, resume=resume, clock=Ticks().clock)


def records(folder: Path) -> list[dict[str, Any]]:
    read = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if not key.startswith("seconds")} for line in read]


def models(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "models").iterdir())}


@pytest.mark.parametrize("algorithm", [KEYS["algorithm"], {"name": "fedper"}])
def test_a_run_over_messages_leaves_what_a_simulated_run_leaves(
    here: Here, algorithm: dict[str, Any], tmp_path: Path
) -> None:
    grid, members = here
    finished = driven(grid, members, tmp_path / "real", algorithm=algorithm)
    simulated = run(load({**KEYS, "algorithm": algorithm}), tmp_path / "simulated", quiet=True)
    assert records(tmp_path / "real") == records(tmp_path / "simulated")
    assert models(tmp_path / "real") == models(tmp_path / "simulated")
    for name in ("experiment.toml", "tree.json"):
        assert (tmp_path / "real" / name).read_bytes() == (tmp_path / "simulated" / name).read_bytes()
    assert {key: finished.summary[key] for key in ("ari", "acc_client", "bytes_up")} == {
        key: simulated.summary[key] for key in ("ari", "acc_client", "bytes_up")
    }
    assert (tmp_path / "real" / "report.html").exists()


def test_the_bytes_on_the_wire_are_told_beside_those_that_the_plan_derives(here: Here, tmp_path: Path) -> None:
    """Beside the tensors there are 128 bytes of header for each, and the settings."""
    driven(*here, tmp_path / "run", algorithm={"name": "fedavg"}, rounds=1)
    (derived,) = records(tmp_path / "run")
    first, closing = map(json.loads, (tmp_path / "run/network/rounds.jsonl").read_text().splitlines())
    assert derived["bytes_up"] + 6 * 4 * 128 < first["bytes_up"] < derived["bytes_up"] + 6 * (4 * 128 + 1000)
    assert derived["bytes_down"] + 6 * 4 * 128 < first["bytes_down"] < derived["bytes_down"] + 6 * (4 * 128 + 2000)
    assert first["absent"] == {} and closing["bytes_up"] < 6 * 1000 < closing["bytes_down"]


def test_a_server_that_is_lost_goes_on_and_ends_with_the_same_models(here: Here, tmp_path: Path) -> None:
    grid, members = here
    changes: dict[str, Any] = {"algorithm": {"name": "fedper"}}

    class Lost(Exception):
        pass

    def lose(message: Message, reply: Message) -> list[Message]:
        if message.metadata.group_id == "3" and message.metadata.dst_node_id == 103:
            raise Lost
        return [reply]

    grid.twist = lose
    with pytest.raises(Lost):
        driven(grid, members, tmp_path / "run", **changes)
    grid.twist = lambda message, reply: [reply]
    driven(grid, members, tmp_path / "run", resume=True, **changes)
    run(load({**KEYS, **changes}), tmp_path / "simulated", quiet=True)
    assert records(tmp_path / "run") == records(tmp_path / "simulated")
    assert models(tmp_path / "run") == models(tmp_path / "simulated")


def test_a_client_that_comes_later_is_placed_by_the_algorithm(here: Here, tmp_path: Path) -> None:
    grid, members = here
    late = grid.devices.pop(105)

    def come(message: Message, reply: Message) -> list[Message]:
        if message.metadata.group_id == "2":
            grid.devices[205] = late
        return [reply]

    grid.twist = come
    driven(grid, replace(members, start=5), tmp_path / "real")
    events = {"join": [{"round": 3, "clients": [5]}]}
    run(load({**KEYS, "events": events}), tmp_path / "simulated", quiet=True)
    assert records(tmp_path / "real") == records(tmp_path / "simulated")
    assert models(tmp_path / "real") == models(tmp_path / "simulated")


def test_a_client_that_was_away_while_its_cluster_split_is_placed_when_it_is_back(here: Here, tmp_path: Path) -> None:
    grid, members = here
    away = grid.devices[105]

    def wander(message: Message, reply: Message) -> list[Message]:
        if message.metadata.message_type == "train" and message.metadata.group_id in ("1", "2"):
            grid.devices.pop(105, None)
        else:
            grid.devices.setdefault(105, away)
        return [reply]

    grid.twist = wander
    finished = driven(grid, members, tmp_path / "real", rounds=6)
    assert any(record["pending"] == [5] and record["clusters"] > 1 for record in finished.rounds)
    assert finished.rounds[-1]["pending"] == []


def test_a_device_that_has_lost_its_layers_is_sent_them_again(here: Here, tmp_path: Path) -> None:
    grid, members = here

    def lose(message: Message, reply: Message) -> list[Message]:
        if message.metadata.group_id == "2" and message.metadata.dst_node_id == 102:
            for path in grid.devices[102].state.glob("*.safetensors"):
                path.unlink()
        return [reply]

    grid.twist = lose
    finished = driven(grid, members, tmp_path / "run", algorithm={"name": "fedper"}, rounds=3)
    lines = [json.loads(line) for line in (tmp_path / "run/network/rounds.jsonl").read_text().splitlines()]
    assert [line["absent"] for line in lines] == [{}] * 4
    assert len(finished.rounds) == 3


def test_a_damaged_store_is_an_absent_row_with_the_name_of_the_file(here: Here, tmp_path: Path) -> None:
    grid, members = here

    def damage(message: Message, reply: Message) -> list[Message]:
        if message.metadata.group_id == "1" and message.metadata.dst_node_id == 102:
            for path in grid.devices[102].state.glob("*.safetensors"):
                path.write_bytes(b"damaged")
        return [reply]

    grid.twist = damage
    driven(grid, members, tmp_path / "run", algorithm={"name": "fedper"}, rounds=2)
    lines = [json.loads(line) for line in (tmp_path / "run/network/rounds.jsonl").read_text().splitlines()]
    assert list(lines[1]["absent"]) == ["2"] and "expected the client's own layers" in lines[1]["absent"]["2"]


def test_a_second_node_that_claims_a_taken_key_is_refused(
    here: Here, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid, members = here
    grid.names = {node: device.key for node, device in grid.devices.items()} | {300: "site-7"}

    def intrude(message: Message, reply: Message) -> list[Message]:
        grid.devices[300] = replace(grid.devices[100], state=tmp_path / "intruder")
        return [reply]

    grid.twist = intrude
    driven(grid, members, tmp_path / "run", algorithm={"name": "fedavg"})
    said = capsys.readouterr().err
    assert said.count("node 300 is refused: node 300 claims the client site-0, but is registered as site-7") == 1
    assert not (tmp_path / "intruder").exists()


def test_too_few_clients_end_the_run_before_its_first_round(here: Here, tmp_path: Path) -> None:
    grid, members = here
    del grid.devices[101]
    with pytest.raises(EngineError, match=r"expected 6 clients within 5 s, found site-0, site-2, .*, site-5; start"):
        driven(grid, members, tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm": {"name": "centralized"}}, "no device holds all data"),
        ({"events": {"change": [{"round": 2, "client": 0, "holds": 1}]}}, r"events\.change: expected none"),
        ({"data": {**KEYS["data"], "clients": 9}}, "expected a group for each of data.clients = 9"),
        ({"data": {**KEYS["data"], "public": 32}}, r"data\.public = 32: expected the federation's file"),
        ({"data": {**KEYS["data"], "clients": 5}}, "expected at most 5 different keys"),
    ],
)
def test_what_a_network_cannot_do_is_said_before_anything_is_sent(
    here: Here, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    grid, members = here
    if "clients" in changes.get("data", {}) and changes["data"]["clients"] == 5:
        members = replace(members, truth=())
    with pytest.raises(InputError, match=message):
        driven(grid, members, tmp_path / "run", **changes)
    assert grid.asked == []


def test_the_record_and_the_page_say_why_a_client_is_missing(here: Here, tmp_path: Path) -> None:
    grid, members = here

    def spoil(message: Message, reply: Message) -> list[Message]:
        node, kind = message.metadata.dst_node_id, message.metadata.message_type
        if (node, kind, message.metadata.group_id) == (102, "train", "2"):
            reply.content.config_records["result-0.settings"]["size"] = -5
        return [] if (node, kind) == (104, "train") else [reply]

    grid.twist = spoil
    driven(grid, members, tmp_path / "run", algorithm={"name": "fedavg"}, rounds=2)
    first, second = records(tmp_path / "run")
    late: dict[str, Any] = {"kind": "absent", "clients": [4], "why": "no answer in time"}
    bad: dict[str, Any] = {
        "kind": "rejected",
        "clients": [2],
        "why": "expected result 0 to be of 1 to 32 samples, found -5",
    }
    assert (first["absent"], first["rejected"], first["events"]) == ([4], [], [late])
    assert (second["absent"], second["rejected"], second["events"]) == ([4], [2], [late, bad])
    page = (tmp_path / "run/report.html").read_text()
    assert late["why"] in page and bad["why"] in page


def test_rounds_go_on_when_enough_have_answered(here: Here, tmp_path: Path) -> None:
    grid, members = here
    finished = driven(grid, replace(members, rounds=Rules(enough=0.5)), tmp_path / "run", algorithm={"name": "fedavg"})
    lines = [json.loads(line) for line in (tmp_path / "run/network/rounds.jsonl").read_text().splitlines()]
    assert [sorted(line["absent"]) for line in lines] == [["3", "4", "5"]] * 5
    assert isinstance(finished.state.models, torch.Tensor)


def test_a_node_that_does_not_say_who_it_is_is_asked_again(here: Here, tmp_path: Path) -> None:
    grid, members = here
    deaf: list[int] = []

    def hear(message: Message, reply: Message) -> list[Message]:
        node = message.metadata.dst_node_id
        if message.metadata.message_type == "query.whoami" and node == 102 and not deaf:
            deaf.append(node)
            return []
        return [reply]

    grid.twist = hear
    driven(grid, replace(members, patience=100.0), tmp_path / "run", algorithm={"name": "fedavg"}, rounds=1)
    asked = [each.metadata.dst_node_id for each in grid.asked if each.metadata.message_type == "query.whoami"]
    assert asked == [100, 101, 102, 103, 104, 105, 102]


def test_a_server_application_waits_until_a_lost_one_has_ended(
    here: Here, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One whose SuperLink was killed still works in the run folder for a while."""
    said: list[str] = []

    def second() -> None:
        driven(*here, tmp_path / "run", rounds=1)
        said.append("second")

    thread = threading.Thread(target=second)
    with alone(tmp_path / "run/network"):
        thread.start()
        while "another server application still works in this run folder" not in capsys.readouterr().err:
            assert thread.is_alive()
        assert not (tmp_path / "run/rounds.jsonl").exists()
        said.append("first")
    thread.join()
    assert said == ["first", "second"] and (tmp_path / "run/summary.json").exists()
