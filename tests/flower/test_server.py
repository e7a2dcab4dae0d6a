"""A whole run over real messages: the records of the simulator, identity, newcomers, resuming."""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import in_process
import numpy as np
import pytest
import torch
from flwr.app import Message
from in_process import Deployed, Loopback, absences, at, lines, models, records
from test_on_devices import ONLY_SIMULATED

import builders
from fedstrata.algorithms.fedavg import FedAvg
from fedstrata.base.errors import EngineError, ExperimentError, InputError
from fedstrata.base.files import folder_lock
from fedstrata.config import load_experiment
from fedstrata.core import Plan, Problem, State
from fedstrata.data.preparation import of_numbers
from fedstrata.flower.client_app import Device
from fedstrata.flower.client_data import read_client_data
from fedstrata.flower.federation import Federation as Members
from fedstrata.flower.federation import RoundRules, Samples
from fedstrata.flower.on_devices import refuse_on_devices
from fedstrata.flower.requests import RunConfig
from fedstrata.flower.server_app import run_config

LAYERCFL = {"name": "layercfl", "layers": "linear", "eps1": 10.0, "eps2": 0.0, "gamma": 0.3, "min_split": 3}
KEYS: dict[str, Any] = {**in_process.KEYS, "algorithm": LAYERCFL}


def tree(folder: Path) -> list[dict[str, Any]]:
    """The tree without the names of the clients, which are others on a network."""
    nodes = json.loads((folder / "tree.json").read_text())
    return [{key: value for key, value in node.items() if key != "names"} for node in nodes]


def come_after_round_2(here: Deployed) -> None:
    """Take the last device away; it connects when the first device's answer of round 2 has come, under another id."""
    late = here.grid.devices.pop(105)

    def come(message: Message, reply: Message) -> list[Message]:
        if message.metadata.group_id == "2":
            here.grid.devices[205], here.grid.names[205] = late, "site-5"
        return [reply]

    here.grid.twist = come


def joined(out: Path) -> dict[str, Any]:
    """The round of each client's first cohort, by the name of its node."""
    found: dict[str, Any] = json.loads((out / "network/nodes.json").read_text())
    return {each["name"]: each["joined"] for each in found["clients"]}


def kept_on_devices(folder: Path) -> list[bool]:
    clients = json.loads((folder / "models" / "clients.json").read_text())["clients"]
    return [client["on_device"] for client in clients]


@pytest.mark.parametrize("algorithm", [KEYS["algorithm"], {"name": "fedper"}])
def test_a_run_over_messages_leaves_what_a_simulated_run_leaves(
    here: Deployed, algorithm: dict[str, Any], tmp_path: Path
) -> None:
    finished, simulated = here.equals_the_simulator(tmp_path, algorithm=algorithm)
    assert (tmp_path / "real/experiment.toml").read_bytes() == (tmp_path / "simulated/experiment.toml").read_bytes()
    assert tree(tmp_path / "real") == tree(tmp_path / "simulated")
    personal = algorithm["name"] == "fedper"
    assert kept_on_devices(tmp_path / "real") == [personal] * 6
    assert kept_on_devices(tmp_path / "simulated") == [False] * 6
    if personal:
        with pytest.raises(InputError, match=r"client site-2 keeps linear2.weight, linear2.bias on its own device"):
            finished.model(2)
        assert finished.cluster_model(0).predict(np.zeros((3, 1, 8, 8), np.uint8)).shape == (3,)
    assert finished.sample_format == simulated.sample_format, "models take samples as the devices hold them"
    assert {key: finished.summary[key] for key in ("ari", "acc_client", "bytes_up")} == {
        key: simulated.summary[key] for key in ("ari", "acc_client", "bytes_up")
    }
    assert (tmp_path / "real" / "report.html").exists()
    clients = json.loads((tmp_path / "real" / "data.json").read_text())["clients"]
    assert [each["name"] for each in clients] == [f"site-{client}" for client in range(6)]
    assert {(each["train"], each["test"]) for each in clients} == {(32, 8)}  # as the clients say


def shares(inputs: torch.Tensor, labels: torch.Tensor, classes: int) -> torch.Tensor:
    return labels.bincount(minlength=classes) / len(labels)


@dataclass(frozen=True)
class Asking(FedAvg):
    """FedAvg that asks for the shares of the classes."""

    source = "a test"
    sample: int = 1

    def plan(self, problem: Problem, state: State, cohort: torch.Tensor) -> Plan:
        asked = torch.ones(len(cohort), dtype=torch.bool)
        return replace(super().plan(problem, state, cohort), client_stats={f"{__name__}:shares": asked})


def test_an_algorithm_of_ones_own_is_deployed_with_its_statistics(
    here: Deployed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    algorithm = {"name": f"{__name__}:Asking", "sample": 2}
    with pytest.raises(EngineError, match=r"expected at least 1 of 6 clients to answer"):
        here.run(tmp_path / "refusing", algorithm=algorithm, rounds=1)
    assert f"that client-stats of this node's configuration names, found {__name__}:shares" in capsys.readouterr().err

    for node, device in here.grid.devices.items():
        here.grid.devices[node] = replace(device, client_stats=(f"{__name__}:shares",))
    _, simulated = here.equals_the_simulator(tmp_path, algorithm=algorithm, rounds=2)
    # Ten numbers of four bytes, beside the update.
    assert simulated.rounds[0]["bytes_up"] == 6 * 4 * (simulated.state.models.shape[1] + 10)


def test_what_only_a_script_knows_is_not_deployed() -> None:
    experiment = load_experiment(KEYS)
    for table, change, message in (
        (
            "model",
            {"name": "__main__:Net"},
            "model.name = '__main__:Net': expected 'module:Name', which every machine",
        ),
        (
            "engine",
            {"precision": "tf32"},
            "engine.precision: expected 'float32' or 'bfloat16'",
        ),
    ):
        local = experiment.model_copy(update={table: getattr(experiment, table).model_copy(update=change)})
        with pytest.raises(ExperimentError, match=message):
            refuse_on_devices(local)


def test_the_bytes_on_the_wire_are_told_beside_those_that_the_plan_derives(here: Deployed, tmp_path: Path) -> None:
    """Beside the model there are 128 bytes of header for its array, and the settings."""
    here.run(tmp_path / "run", algorithm={"name": "fedavg"}, rounds=1)
    (derived,) = records(tmp_path / "run")
    first, closing = lines(tmp_path / "run/network/rounds.jsonl")
    assert derived["bytes_up"] + 6 * 128 < first["bytes_up"] < derived["bytes_up"] + 6 * (128 + 1000)
    assert derived["bytes_down"] + 6 * 128 < first["bytes_down"] < derived["bytes_down"] + 6 * (128 + 2000)
    assert first["absent"] == {} and closing["bytes_up"] < 6 * 1000 < closing["bytes_down"]


def test_a_server_that_is_lost_goes_on_and_ends_with_the_same_models(here: Deployed, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"algorithm": {"name": "fedper"}}

    class Lost(Exception):
        pass

    def lose(message: Message, reply: Message) -> None:
        raise Lost

    here.grid.twist = at(3, 3, lose)
    with pytest.raises(Lost):
        here.run(tmp_path / "run", **changes)
    here.grid.twist = lambda message, reply: [reply]
    here.run(tmp_path / "run", resume=True, **changes)
    here.simulated(tmp_path / "simulated", **changes)
    assert records(tmp_path / "run") == records(tmp_path / "simulated")
    assert models(tmp_path / "run") == models(tmp_path / "simulated")


def test_a_client_that_comes_later_is_placed_by_the_algorithm(here: Deployed, tmp_path: Path) -> None:
    come_after_round_2(here)
    here.where(min_clients=5).equals_the_simulator(tmp_path, {"join": [{"round": 3, "clients": [5]}]})


def test_a_client_that_nobody_had_announced_has_its_name_in_the_end(here: Deployed, tmp_path: Path) -> None:
    come_after_round_2(here)
    here.where(clients=here.members.clients[:5], names=tuple("ABCDE")).run(tmp_path / "real")
    clients = json.loads((tmp_path / "real" / "data.json").read_text())["clients"]
    assert [each["name"] for each in clients] == ["A", "B", "C", "D", "E", "site-5"]


def test_a_client_that_was_away_while_its_cluster_split_is_placed_when_it_is_back(
    here: Deployed, tmp_path: Path
) -> None:
    away = here.grid.devices[105]

    def wander(message: Message, reply: Message) -> list[Message]:
        if message.metadata.group_id in ("1", "2"):
            here.grid.devices.pop(105, None)
        else:
            here.grid.devices.setdefault(105, away)
        return [reply]

    here.grid.twist = wander
    finished = here.run(tmp_path / "real", rounds=6)
    assert any(record["pending"] == [5] and record["clusters"] > 1 for record in finished.rounds)
    assert finished.rounds[-1]["pending"] == []


def change_layers(here: Deployed, round: int, change: Callable[[Path], object]) -> None:
    """Something happens to the layers that client 2's device keeps, after it has answered a message of a round."""

    def does(message: Message, reply: Message) -> None:
        for path in here.grid.devices[102].state.glob("*.safetensors"):
            change(path)

    here.grid.twist = at(2, round, does)


def test_a_device_that_has_lost_its_layers_is_sent_them_again(here: Deployed, tmp_path: Path) -> None:
    change_layers(here, 2, Path.unlink)
    here.run(tmp_path / "run", algorithm={"name": "fedper"}, rounds=3)
    assert absences(tmp_path / "run") == [{}] * 4


def test_a_device_that_has_lost_its_layers_trains_again_where_rounds_do_not_wait_for_it(
    here: Deployed, tmp_path: Path
) -> None:
    """A round ends with the first five replies. Client 2 says that its layers are gone, and is not one of them."""
    change_layers(here, 1, Path.unlink)
    here.where(rounds=RoundRules(min_reply_fraction=0.8)).run(tmp_path / "run", algorithm={"name": "fedper"}, rounds=3)
    absent = absences(tmp_path / "run")
    assert "its device has lost" in absent[1]["2"]
    assert all("2" not in each for each in absent[2:])


def test_a_damaged_store_is_an_absent_row_with_the_name_of_the_file(here: Deployed, tmp_path: Path) -> None:
    change_layers(here, 1, lambda path: path.write_bytes(b"damaged"))
    here.run(tmp_path / "run", algorithm={"name": "fedper"}, rounds=2)
    absent = absences(tmp_path / "run")
    assert list(absent[1]) == ["2"] and "expected the client's own layers" in absent[1]["2"]


def test_too_few_clients_end_the_run_before_its_first_round(here: Deployed, tmp_path: Path) -> None:
    del here.grid.devices[101]
    with pytest.raises(EngineError, match=r"expected 6 nodes of .* within 5 s, found site-0, site-2, .*, site-5; "):
        here.run(tmp_path / "run")


CENTRAL = {"privacy": {"kind": "central", "epsilon": 8.0}}
SCALED = Samples((2,), 2, (), (), "float64", preparation=of_numbers(("age", "dose"), (50.0, 1.0), (10.0, 1.0)))


@pytest.mark.parametrize(
    ("changes", "members", "message"),
    [
        *((changes, {}, message) for changes, message in ONLY_SIMULATED),
        ({"probe": {"gap": ["dcos"]}}, {"truth": ()}, r"probe\.gap: expected the true group of each client"),
        ({"data": {"clients": 9}}, {}, r"data\.clients: expected as many as there are true groups"),
        ({"data": {"clients": 5}}, {"truth": ()}, "expected at most 5 names"),
        ({"data": {"public": 32}}, {}, r"data\.public: expected a file of public samples .*federation\.toml"),
        ({"data": {"tokens": True}}, {}, r"data\.tokens: expected true with samples\.dtype"),
        ({"data": {"scale": False}}, {}, r"data\.scale: expected true, unless samples\.mean is 0"),
        ({"data": {"scale": False}}, {"samples": SCALED}, r"data\.scale: expected as in samples\.preparation"),
        (CENTRAL, {"rounds": RoundRules(min_reply_fraction=0.5)}, r"rounds\.min_reply_fraction: expected 1"),
        (CENTRAL, {"rounds": RoundRules(min_replies=2)}, r"rounds\.min_replies: expected 1"),
    ],
)
def test_what_a_network_cannot_do_is_said_before_anything_is_sent(
    here: Deployed, changes: dict[str, Any], members: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        here.where(**members).run(tmp_path / "run", **changes)
    assert here.grid.asked == []


def test_the_record_and_the_page_say_why_a_client_is_missing(here: Deployed, tmp_path: Path) -> None:

    def spoil(message: Message, reply: Message) -> list[Message]:
        node = message.metadata.dst_node_id
        if (node, message.metadata.group_id) == (102, "2"):
            in_process.put(reply, "result-train", size=-5)
        return [] if node == 104 else [reply]

    here.grid.twist = spoil
    here.run(tmp_path / "run", algorithm={"name": "fedavg"}, rounds=2)
    first, second = records(tmp_path / "run")
    late: dict[str, Any] = {"kind": "absent", "clients": [4], "why": "no answer in time"}
    bad: dict[str, Any] = {
        "kind": "rejected",
        "clients": [2],
        "why": "expected result train to be of 1 to 1000000000 samples, found -5",
    }
    assert (first["absent"], first["rejected"], first["events"]) == ([4], [], [late])
    assert (second["absent"], second["rejected"], second["events"]) == ([4], [2], [late, bad])
    page = (tmp_path / "run/report.html").read_text()
    assert late["why"] in page and bad["why"] in page


@pytest.mark.parametrize("algorithm", ["fedavg", "fedper"])
def test_training_that_diverges_leaves_what_a_simulation_leaves(here: Deployed, algorithm: str, tmp_path: Path) -> None:
    """Also of a personal layer: one that is not finite is begun anew."""
    changes: dict[str, Any] = {"algorithm": {"name": algorithm}, "local": {"lr": 1e30, "batch": 8}}
    finished, simulated = here.equals_the_simulator(tmp_path, **changes)
    assert finished.summary["diverged"] == simulated.summary["diverged"]
    assert len(finished.summary["diverged"]["rounds"]) == KEYS["rounds"]


def with_units(folder: Path, own_test: bool = False) -> Deployed:
    """Four devices with units of unequal sizes, of which different clients hold out different numbers of samples."""
    sizes = [10, 30, 50, 12, 33, 47]
    labels = np.repeat([0, 0, 0, 1, 1, 1], sizes)
    arrays = {
        "x": np.random.default_rng(0).normal(size=(len(labels), 5)).astype(np.float32) + labels[:, None],
        "y": labels,
        "trial": np.repeat(np.arange(6), sizes),
    }
    if own_test:
        arrays |= {f"{name}_test": values for name, values in arrays.items()}
    np.savez(folder / "data.npz", **arrays)
    devices = {100 + c: Device(f"site-{c}", folder / "data.npz", folder / f"state-{c}") for c in range(4)}
    samples = Samples((5,), 2, (0.0,) * 5, (1.0,) * 5, "float32", unit="trial", test=0.2)
    keys = tuple(device.key for device in devices.values())
    data = {"name": str(folder / "data.npz"), "clients": 4, "unit": "trial"}
    tables = builders.keys(KEYS, data=data, partition={"scheme": "iid"}, algorithm={"name": "fedavg"})
    return Deployed(tables, Loopback(devices), Members(keys, samples, wait_seconds=5.0, max_samples=500))


def config_of(here: Deployed) -> RunConfig:
    return run_config(load_experiment(here.keys), here.members, "run")


@pytest.mark.parametrize("own_test", [False, True])
def test_a_client_trains_and_scores_on_the_samples_that_it_holds_out_under_its_id(
    own_test: bool, tmp_path: Path
) -> None:
    """Which units are held out depends on the id, which its requests tell the device."""
    here = with_units(tmp_path, own_test)
    here.run(tmp_path / "run", rounds=2)
    clients = json.loads((tmp_path / "run" / "data.json").read_text())["clients"]
    for told in clients:
        held = read_client_data(tmp_path / "data.npz", told["id"], config_of(here))
        assert (told["train"], told["test"]) == (len(held.train(told["id"])), len(held.test(told["id"])))
    assert (len({each["test"] for each in clients}) > 1) != own_test


def test_a_federation_that_lets_a_client_claim_any_number_of_samples_says_so(
    here: Deployed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes: dict[str, Any] = {"algorithm": {"name": "fedavg"}, "rounds": 1}
    here.run(tmp_path / "open", **changes)
    assert (
        capsys.readouterr().err.count("WARNING: max_samples = 0 in the federation's file: a client may claim any") == 1
    )
    here.where(max_samples=32).run(tmp_path / "bounded", **changes)
    assert "WARNING" not in capsys.readouterr().err
    with pytest.raises(EngineError, match="expected at least 1 of 6 clients to answer"):
        here.where(max_samples=31).run(tmp_path / "narrow", **changes)
    assert "4, 5 are rejected: expected result train to be of 1 to 31 samples, found 32" in capsys.readouterr().err


def test_a_registration_is_refused_to_a_node_whose_public_key_is_not_the_operators(
    here: Deployed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The takeover: a client's node is unregistered, and another registered under its name."""
    keys = {device.key: (b"key %d" % node).hex() for node, device in here.grid.devices.items() if node != 103}
    thief = here.grid.devices.pop(105)

    def steal(message: Message, reply: Message) -> list[Message]:
        if message.metadata.group_id == "2":
            here.grid.devices[205], here.grid.names[205] = thief, "site-5"
        return [reply]

    here.grid.twist = steal
    replace(here.where(min_clients=5), public_keys=keys).run(tmp_path / "run", algorithm={"name": "fedavg"})
    said = capsys.readouterr().err
    assert "node 205 is refused: it has another public key than nodes/site-5/key.pub" in said
    assert "WARNING: no nodes/<client>/key.pub of site-3: whoever is registered" in said
    assert joined(tmp_path / "run")["site-5"] is None


def test_a_resumed_run_drops_a_node_whose_key_the_operator_has_replaced(
    here: Deployed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = {device.key: (b"key %d" % node).hex() for node, device in here.grid.devices.items()}
    changes: dict[str, Any] = {"algorithm": {"name": "fedavg"}, "rounds": 1}
    replace(here, public_keys=keys).run(tmp_path / "run", **changes)
    keys["site-2"] = b"the new machine's".hex()
    (tmp_path / "run/summary.json").unlink()
    replace(here.where(min_clients=5), public_keys=keys).run(tmp_path / "run", resume=True, **changes)
    said = capsys.readouterr().err
    assert "node 102 is refused: it has another public key than nodes/site-2/key.pub" in said


def test_a_server_application_waits_until_a_lost_one_has_ended(
    here: Deployed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One whose SuperLink was killed still works in the run folder for a while."""
    said: list[str] = []

    def second() -> None:
        here.run(tmp_path / "run", rounds=1)
        said.append("second")

    thread = threading.Thread(target=second)
    with folder_lock(tmp_path / "run/network", wait=lambda: None):
        thread.start()
        while "another server application still works in this run folder" not in capsys.readouterr().err:
            assert thread.is_alive()
            time.sleep(0.01)  # the thread needs the processor too
        assert not (tmp_path / "run/rounds.jsonl").exists()
        said.append("first")
    thread.join()
    assert said == ["first", "second"] and (tmp_path / "run/summary.json").exists()


def test_a_client_whose_data_are_put_right_or_have_grown_takes_part_again(here: Deployed, tmp_path: Path) -> None:
    data, right = tmp_path / "data.npz", here.grid.devices[102].data
    data.write_bytes(b"none")
    here.grid.devices[102] = replace(here.grid.devices[102], data=data)

    def mend(message: Message, reply: Message) -> list[Message]:
        arrays: dict[str, Any] = dict(np.load(right))
        more: dict[str, Any] = {name: np.concatenate([values, values[:4]]) for name, values in arrays.items()}
        np.savez(data, **(arrays if message.metadata.group_id == "1" else more))
        return [reply]

    here.grid.twist = at(5, 1, mend)
    run = here.run(tmp_path / "run", algorithm={"name": "fedavg"}, rounds=2)
    assert [record["absent"] for record in run.rounds] == [[2], []]
    client = json.loads((tmp_path / "run" / "data.json").read_text())["clients"][2]
    assert (client["train"], client["test"]) == (32, 8)


def test_a_resumed_run_knows_its_clients_again(here: Deployed, tmp_path: Path) -> None:
    """Also one that nobody had announced, and one that comes no more."""
    changes: dict[str, Any] = {"algorithm": {"name": "fedavg"}}
    here = here.where(clients=here.members.clients[:4], truth=(), min_clients=4)
    here.run(tmp_path / "run", rounds=1, **changes)
    here.grid.devices = {900 + node: device for node, device in here.grid.devices.items() if node != 101}
    here.grid.names = {node: device.key for node, device in here.grid.devices.items()}
    resumed = here.run(tmp_path / "run", resume=True, rounds=2, **changes)
    assert [record["absent"] for record in resumed.rounds] == [[], [1]]
    assert joined(tmp_path / "run") == {f"site-{client}": 0 for client in range(6)}
