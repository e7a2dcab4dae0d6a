"""Secure aggregation on devices: the bits of the simulator, whoever is lost, and no update that the server can see."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ConfigRecord, Message
from in_process import Federation, Loopback, Ticks, federation, message_of

from fedstrata.base.errors import EngineError, InputError
from fedstrata.config import load_experiment
from fedstrata.core import TRAIN, LocalTask, Plan, Report
from fedstrata.engine import Loop
from fedstrata.flower.client_work import Device, work
from fedstrata.flower.clients import RoundRules
from fedstrata.flower.federation import Federation as Members
from fedstrata.flower.payload import Payload, encode
from fedstrata.flower.requests import request_for, write_request
from fedstrata.flower.run_config import RunConfig, write_run_config
from fedstrata.flower.secure_sum.messages import SumRequest, write_sum_request
from fedstrata.flower.secure_sum.sums import NOT_FINITE, SumTerms, summed_report
from fedstrata.flower.server import drive
from fedstrata.play.run import run_experiment
from fedstrata.results.run import Run
from fedstrata.uploads.noise import SIMULATED_RUN
from turns import first_plan_of

KEYS: dict[str, Any] = {
    "seed": 7,
    "rounds": 1,
    "data": {"name": "digits", "clients": 6, "samples": 32, "test": 0.2},
    "partition": {"scheme": "rotation", "groups": 2},
    "model": {"name": "mlp", "hidden": [4]},
    "local": {"lr": 0.1, "batch": 8},
    "algorithm": {"name": "fedavg"},
    "engine": {"name": "loop", "device": "cpu"},
    "privacy": {"secure_aggregation": True},
}
TERMS = SumTerms(secure=True)
N, NEEDED = 6, 4


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    return federation(KEYS, tmp_path_factory.mktemp("devices"))


@pytest.fixture
def here(made: Federation, tmp_path: Path) -> Iterator[Federation]:
    """The devices with states of their own, in a run with secure aggregation."""
    devices = {node: replace(device, state=tmp_path / device.key) for node, device in made.devices.items()}
    yield replace(made, devices=devices, config=replace(made.config, sums=TERMS))


def driven(
    here: Federation, out: Path, grid: Loopback | None = None, rules: RoundRules | None = None, **changes: Any
) -> Run:
    truth = here.setup.server.problem.truth
    assert truth is not None
    keys = tuple(device.key for device in here.devices.values())
    members = Members(keys, here.config.samples, truth=tuple(truth.tolist()), wait_seconds=5.0, max_samples=100)
    members = replace(members, rounds=rules or members.rounds)
    experiment = load_experiment({**KEYS, **changes})
    return drive(grid or Loopback(dict(here.devices)), experiment, members, out, clock=Ticks().clock)


def told(run: Run) -> list[tuple[Any, ...]]:
    """What the records of a run say of each round that does not depend on where its clients are."""
    return [(record["loss"], record["absent"], record["events"]) for record in run.rounds]


def test_a_round_does_not_end_before_its_sum_can_be_opened(here: Federation, tmp_path: Path) -> None:
    """Half of the clients are enough for the round, and two thirds are needed for the sum."""
    finished = driven(here, tmp_path / "run", rules=RoundRules(min_reply_fraction=0.5))
    assert [event["kind"] for event in finished.rounds[0]["events"]] == ["absent"]
    assert not torch.equal(finished.state.models[0], here.setup.server.problem.fresh(0))


SUMMED: dict[str, dict[str, Any]] = {
    "fedavg": {"rounds": 2},
    "fedprox, all alike": {"algorithm": {"name": "fedprox"}, "server": {"aggregation": "plain_mean"}},
    "ditto, 24 bits": {"algorithm": {"name": "ditto"}, "privacy": {"secure_aggregation": True, "sum_bits": 24}},
    "fedper": {"algorithm": {"name": "fedper"}},
    "two sums": {"algorithm": {"name": "oracle"}},
    "cut": {"privacy": {"secure_aggregation": True, "sum_limit": 0.01}},
    "personal": {"personal": {"method": "finetune"}},
}


@pytest.mark.parametrize("case", SUMMED)
def test_a_federation_has_the_bits_of_the_simulator(case: str, here: Federation, tmp_path: Path) -> None:
    changes = SUMMED[case]
    real = driven(here, tmp_path / "real", **changes)
    simulated = run_experiment(load_experiment({**KEYS, **changes}), tmp_path / "simulated", quiet=True)
    assert torch.equal(real.state.models, simulated.state.models)
    assert [record["events"] for record in real.rounds] == [record["events"] for record in simulated.rounds]
    assert not torch.equal(real.state.models, here.setup.server.problem.fresh(0)[None].expand_as(real.state.models))
    if case == "fedavg":
        plain = run_experiment(load_experiment({**KEYS, **changes, "privacy": {}}), tmp_path / "plain", quiet=True)
        # Rounding moves the first mean by half a step, and training from there on moves the second a little more.
        assert (real.state.models - plain.state.models).abs().max() < 4 * TERMS.step


def test_a_client_whose_update_is_not_finite_is_as_in_the_simulator(
    here: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in no sum. Its scores count, and the layers that it keeps are those that the server knows of."""
    train = Loop._train

    def spoilt(self: Loop, plan: Plan, task: LocalTask, client: int, *given: Any) -> torch.Tensor:
        end = train(self, plan, task, client, *given)
        return end * torch.inf if (plan.round, client) == (2, 2) else end

    monkeypatch.setattr(Loop, "_train", spoilt)
    changes: dict[str, Any] = {"rounds": 4, "algorithm": {"name": "fedper"}}
    real = driven(here, tmp_path / "real", **changes)
    simulated = run_experiment(load_experiment({**KEYS, **changes}), tmp_path / "simulated", quiet=True)
    assert torch.equal(real.state.models, simulated.state.models)
    assert told(real) == told(simulated)
    assert real.rounds[1]["absent"] == [2]


def test_clients_of_a_group_that_is_too_small_for_a_sum_train_for_themselves(here: Federation, tmp_path: Path) -> None:
    """Four clients have a sum, and two have none: their own models move all the same, as in the simulator."""
    changes: dict[str, Any] = {
        "rounds": 2,
        "partition": {"scheme": "rotation", "sizes": [4, 2]},
        "algorithm": {"name": "oracle"},
        "personal": {"method": "ditto"},
    }
    two = federation({**KEYS, **changes}, tmp_path / "devices")
    real = driven(two, tmp_path / "real", **changes)
    simulated = run_experiment(load_experiment({**KEYS, **changes}), tmp_path / "simulated", quiet=True)
    assert torch.equal(real.state.models, simulated.state.models)
    assert told(real) == told(simulated)
    for record in real.rounds:
        assert [event["kind"] for event in record["events"]] == ["no_sum"]


def test_noise_of_the_clients_is_added_before_the_sum(here: Federation, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"privacy": {"secure_aggregation": True, "kind": "local", "noise_multiplier": 0.01}}
    for device in here.devices.values():
        device.state.mkdir(parents=True)
        (device.state / "noise_seed").write_text(f"{KEYS['seed']:x}")
    (tmp_path / "real" / "network").mkdir(parents=True)
    (tmp_path / "real" / "network" / "run").write_text(SIMULATED_RUN)
    real = driven(here, tmp_path / "real", **changes)
    simulated = run_experiment(load_experiment({**KEYS, **changes}), tmp_path / "simulated", quiet=True)
    assert torch.equal(real.state.models, simulated.state.models)


def plan_of(here: Federation, round: int = 1) -> Plan:
    setup = here.setup
    plan = first_plan_of(setup)
    evaluations = setup.server.algorithm.evaluations(
        setup.server.problem, setup.server.algorithm.init(setup.server.problem), setup.everyone
    )
    return replace(plan, round=round, evaluations=evaluations)


def step_of(message: Message) -> str:
    record = message.content.config_records.get("sum.settings")
    return "" if record is None else str(record["step"])


def losing(lost: Callable[[str, int], bool]) -> Callable[[Message, Message], list[Message]]:
    """A grid that loses replies, by the step of the sum and the client."""
    return lambda message, reply: [] if lost(step_of(message), message.metadata.dst_node_id - 100) else [reply]


def simulated(here: Federation, plan: Plan, stayed: list[int]) -> Report:
    """What the server should see when only these clients stay to the end."""
    only = plan.only(torch.isin(plan.cohort, torch.tensor(stayed)))
    return summed_report(TERMS, here.setup.server.problem.layout, plan, here.setup.clients.run(only)).report


@pytest.mark.parametrize("lost", [2, 3])
@pytest.mark.parametrize("step", ["keys", "shares", "masked", "revealed"])
def test_whoever_is_lost_in_any_step_the_sum_is_that_of_the_others_or_there_is_none(
    step: str, lost: int, here: Federation
) -> None:
    plan = plan_of(here)
    clients, _ = here.remote(twist=losing(lambda asked, client: asked == step and client < lost))
    report = clients.run(plan)
    if N - lost < NEEDED:
        assert not len(report.results[TRAIN].updates.clients)
        (event,) = clients.events
        assert event["kind"] == "no_sum" and event["needed"] == NEEDED and event["answered"] < NEEDED
        assert set(clients.traffic.absent) == set(range(N))
    else:
        stayed = list(range(0 if step == "revealed" else lost, N))
        expected = simulated(here, plan, stayed).results[TRAIN].updates
        found = report.results[TRAIN].updates
        assert torch.equal(found.clients, expected.clients) and torch.equal(found.values, expected.values)
        assert set(clients.traffic.absent) == set(range(N)) - set(stayed) and not clients.events
    # Who is out of the sum before it trains, or after, has scored all the same.
    scored = N - lost if step == "masked" else N
    assert len(report.scores["client"].clients) == scored


def test_a_round_without_a_sum_leaves_the_model_as_it_is(here: Federation, tmp_path: Path) -> None:
    grid = Loopback(dict(here.devices), losing(lambda step, client: step == "shares" and client < 3))
    run = driven(here, tmp_path / "real", grid)
    assert torch.equal(run.state.models, here.setup.server.problem.fresh(0)[None])
    assert [event["kind"] for event in run.rounds[0]["events"]].count("no_sum") == 1
    assert run.rounds[0]["absent"] == list(range(N))


def test_the_server_gets_no_update_in_clear(here: Federation) -> None:
    """Every byte that leaves a device: no update, no quantised update, no weight; of no client both shares."""
    replies: dict[tuple[str, int], Message] = {}

    def note(message: Message, reply: Message) -> list[Message]:
        replies[step_of(message), message.metadata.dst_node_id - 100] = reply
        return [] if (step_of(message), message.metadata.dst_node_id) == ("masked", 105) else [reply]

    plan = plan_of(here)
    clients, _ = here.remote(twist=note)
    counted = clients.run(plan).results[TRAIN].updates.clients.tolist()
    assert counted == [0, 1, 2, 3, 4]
    columns = here.setup.server.problem.layout.columns(plan.tasks[TRAIN].upload)
    result = here.setup.clients.run(plan).results[TRAIN]
    for (step, client), reply in replies.items():
        arrays = {name: dict(group) for name, group in reply.content.array_records.items()}
        assert set(arrays) == {"sum.arrays"}, step
        sent = [bytes(array.data) for array in arrays["sum.arrays"].values()]
        update = result.updates.values[client, columns]
        encoded = TERMS.encoded(update, int(result.sizes[client]))
        for secret in (update.numpy(), encoded.int().numpy(), encoded.numpy()):
            # Not even a few neighbouring numbers of it.
            assert not any(secret[at : at + 4].tobytes() in text for text in sent for at in range(0, len(secret), 4))
        if step == "masked":
            assert reply.content.config_records["result-train.settings"]["size"] == 1
    given = {
        client: set(group["sum.arrays"])
        for (step, client), reply in replies.items()
        if step == "revealed"
        for group in [reply.content.array_records]
    }
    assert set(given) == set(counted) and all(names == {"seeds", "keys"} for names in given.values())
    shapes = {name: array.shape for name, array in replies["revealed", 0].content.array_records["sum.arrays"].items()}
    assert shapes == {"seeds": (5, 52), "keys": (1, 68)}


def test_a_repeated_attempt_has_new_keys_and_opens_one_sum(here: Federation) -> None:
    lost = iter([True])
    public = list[bytes]()

    def twist(message: Message, reply: Message) -> list[Message]:
        step, client = step_of(message), message.metadata.dst_node_id - 100
        if step == "keys" and client == 0:
            public.append(bytes(reply.content.array_records["sum.arrays"]["public"].data))
        return [] if step == "masked" and client == 0 and next(lost, False) else [reply]

    clients, grid = here.remote(RoundRules(min_replies=N), twist)
    plan = plan_of(here)
    report = clients.run(plan)
    assert torch.equal(
        report.results[TRAIN].updates.values, simulated(here, plan, list(range(N))).results[TRAIN].updates.values
    )
    assert len(set(public)) == len(public) == 2
    assert [step_of(message) for message in grid.asked].count("revealed") == N


def test_no_second_sum_of_a_round_is_opened(here: Federation) -> None:
    """One client fewer, and the difference of two sums would be its update."""
    clients, _ = here.remote()
    assert len(clients.run(plan_of(here)).results[TRAIN].updates.clients) == N
    again, _ = here.remote()
    assert not len(again.run(plan_of(here)).results[TRAIN].updates.clients)
    assert again.events[0]["answered"] == 0
    assert any("expected a round after 1, whose sum this device has helped to open" in line for line in here.lines)
    later, _ = here.remote()
    assert len(later.run(plan_of(here, round=2)).results[TRAIN].updates.clients) == N


def test_what_a_device_knows_of_a_sum_is_private_and_forgotten_afterwards(here: Federation) -> None:
    files = [device.state / "run.sum.json" for device in here.devices.values()]
    seen = list[int]()

    def look(message: Message, reply: Message) -> list[Message]:
        if step_of(message) == "masked":
            seen.extend(file.stat().st_mode & 0o077 for file in files)
        return [reply]

    clients, _ = here.remote(twist=look)
    clients.run(plan_of(here))
    assert seen and not any(seen)
    assert all(json.loads(file.read_text()) == {"closed": 1} for file in files)


def asked(here: Federation, config: RunConfig, extra: Payload | None = None, **changes: Any) -> str:
    """What a device says to a request for work."""
    plan = plan_of(here)
    request = request_for(plan, 0, here.setup.server.problem.layout, ())
    device: Device = replace(here.devices[100], **changes)
    payload = write_run_config(config, here.setup.server.problem.layout) | Payload({"client": {"key": device.key}})
    payload = payload | write_request(request, here.setup.server.problem.layout) | (extra or Payload())
    found = work(message_of(encode(payload)), device).content.config_records
    return str(found["failed.settings"]["reason"]) if "failed.settings" in found else ""


def test_a_device_sends_no_update_in_clear_in_such_a_run(here: Federation) -> None:
    assert "expected updates to be asked for in a sum" in asked(here, here.config)
    masked = write_sum_request(SumRequest("masked", "other", 1, 0, (1, 2, 3), max_weight=100))
    assert "expected a step of a sum that this device has begun" in asked(here, here.config, masked)
    assert "expected updates to be asked for in a sum" in asked(here, replace(here.config, sums=SumTerms()), masked)


def test_a_device_can_require_secure_aggregation(here: Federation) -> None:
    clear = replace(here.config, sums=SumTerms())
    assert asked(here, clear) == ""
    assert "which this device requires" in asked(here, clear, only_sums=True)
    keys = {"client-key": "a", "data": "b", "state-dir": "c"}
    assert Device.of({**keys, "secure-aggregation": "required"}).only_sums and not Device.of(keys).only_sums
    with pytest.raises(InputError, match='"offered" or "required", found \'yes\''):
        Device.of({**keys, "secure-aggregation": "yes"})


def test_a_weight_above_what_the_client_registered_is_in_no_sum(here: Federation) -> None:
    registered = here.registry.registrations["site-0"]
    small = {**here.registry.registrations, "site-0": replace(registered, train=1)}
    clients, _ = replace(here, registry=replace(here.registry, registrations=small)).remote()
    report = clients.run(plan_of(here))
    assert report.results[TRAIN].updates.clients.tolist() == [1, 2, 3, 4, 5]
    assert "expected a weight of at most 1 in the sum" in clients.traffic.absent[0]


def test_a_client_whose_weight_has_no_room_is_out_of_the_sum_alone(here: Federation) -> None:
    registered = here.registry.registrations["site-5"]
    large = {**here.registry.registrations, "site-5": replace(registered, train=2**62)}
    plan = plan_of(here)
    claiming = replace(here, registry=replace(here.registry, registrations=large))
    clients, _ = claiming.remote()
    report = clients.run(plan)
    found = report.results[TRAIN].updates
    expected = simulated(here, plan, [0, 1, 2, 3, 4]).results[TRAIN].updates
    assert torch.equal(found.clients, expected.clients) and torch.equal(found.values, expected.values)
    assert report.scores["client"].clients.tolist() == list(range(N))
    assert any(
        "client 5 is out of the sum: its 4611686018427387904 samples have no room" in line for line in claiming.lines
    )


@pytest.mark.parametrize("step", ["keys", "shares", "masked", "revealed"])
def test_a_client_that_sends_nonsense_is_out_of_the_sum(step: str, here: Federation) -> None:
    def spoil(message: Message, reply: Message) -> list[Message]:
        if step_of(message) == step and message.metadata.dst_node_id == 100:
            del reply.content.array_records["sum.arrays"]
        return [reply]

    plan = plan_of(here)
    clients, _ = here.remote(twist=spoil)
    report = clients.run(plan)
    expected = simulated(here, plan, list(range(0 if step == "revealed" else 1, N))).results[TRAIN].updates
    assert torch.equal(report.results[TRAIN].updates.values, expected.values)


def rewriting(step: str, change: Callable[[np.ndarray], None]) -> Callable[[Message, Message], list[Message]]:
    """A grid on which client 5 sends other bytes in a step of the sum."""

    def rewrite(message: Message, reply: Message) -> list[Message]:
        if step_of(message) == step and message.metadata.dst_node_id == 105 and reply.has_content():
            arrays = reply.content.array_records["sum.arrays"]
            for name in list(arrays):
                values = arrays[name].numpy().copy()
                change(values)
                arrays[name] = Array(values)
        return [reply]

    return rewrite


def same_key_twice(keys: np.ndarray) -> None:
    keys[1] = keys[0]


def letters(keys: np.ndarray) -> None:
    keys[:] = ord("A")


@pytest.mark.parametrize("change", [same_key_twice, letters])
def test_a_client_that_sends_no_keys_is_out_of_the_sum_alone(
    change: Callable[[np.ndarray], None], here: Federation
) -> None:
    plan = plan_of(here)
    clients, _ = here.remote(twist=rewriting("keys", change))
    found = clients.run(plan).results[TRAIN].updates
    expected = simulated(here, plan, [0, 1, 2, 3, 4]).results[TRAIN].updates
    assert torch.equal(found.clients, expected.clients) and torch.equal(found.values, expected.values)
    assert any("client 5 is out of the sum" in line for line in here.lines)


def silent_in_training(
    twist: Callable[[Message, Message], list[Message]],
) -> Callable[[Message, Message], list[Message]]:
    """The same grid, on which client 5 does not answer when it is asked to score and train."""

    def lose(message: Message, reply: Message) -> list[Message]:
        work = message.metadata.message_type == "train" and message.metadata.dst_node_id == 105
        return [] if work else twist(message, reply)

    return lose


@pytest.mark.parametrize("silent", [False, True])
def test_who_sends_bad_shares_is_named_and_in_no_later_sum(silent: bool, here: Federation) -> None:
    """The others are scored all the same: no honest client is to blame."""
    twist = rewriting("shares", letters)
    clients, _ = here.remote(twist=silent_in_training(twist) if silent else twist)
    report = clients.run(plan_of(here))
    assert not len(report.results[TRAIN].updates.clients) and clients.events[0]["kind"] == "no_sum"
    assert report.scores["client"].clients.tolist() == list(range(5 if silent else 6))
    assert any("clients 0, 1, 2, 3, 4 could not open the shares of client 5" in line for line in here.lines)
    plan = plan_of(here, round=2)
    found = clients.run(plan).results[TRAIN].updates
    expected = simulated(here, plan, [0, 1, 2, 3, 4]).results[TRAIN].updates
    assert torch.equal(found.clients, expected.clients) and torch.equal(found.values, expected.values)
    assert any("round 2: client 5 is out of the sum" in line for line in here.lines)


def naming(sender: int, liars: set[int]) -> Callable[[Message, Message], list[Message]]:
    """A grid on which some clients say that the shares of another one are bad."""

    def lie(message: Message, reply: Message) -> list[Message]:
        if step_of(message) == "masked" and message.metadata.dst_node_id - 100 in liars:
            del reply.content.array_records["sum.arrays"]
            reply.content["bad_shares.settings"] = ConfigRecord({"senders": [sender]})
        return [reply]

    return lie


def test_as_many_liars_as_a_sum_can_lose_have_nobody_left_out(here: Federation) -> None:
    for round in (1, 2):
        clients, _ = here.remote(twist=naming(0, {4, 5}))
        assert clients.run(plan_of(here, round)).results[TRAIN].updates.clients.tolist() == [0, 1, 2, 3]
    clients, _ = here.remote(twist=naming(99, {4, 5}))
    clients.run(plan_of(here, round=3))
    assert set(clients.traffic.rejected) == {4, 5}


def test_wrong_shares_give_no_sum_and_never_a_wrong_one(here: Federation) -> None:
    """A client that gives other shares spoils the sum; it does not change it."""

    def spoil(message: Message, reply: Message) -> list[Message]:
        if step_of(message) == "revealed" and message.metadata.dst_node_id == 100:
            array = reply.content.array_records["sum.arrays"]["seeds"]
            data = bytearray(array.data)
            data[-1] ^= 1
            array.data = bytes(data)
        return [reply]

    clients, _ = here.remote(twist=spoil)
    assert not len(clients.run(plan_of(here)).results[TRAIN].updates.clients)
    assert clients.events[0]["kind"] == "no_sum"


def test_updates_that_are_not_finite_are_in_no_sum(here: Federation) -> None:
    plan = plan_of(here)
    spoilt = replace(plan, models=torch.full_like(plan.models, 3e38))
    clients, _ = here.remote(RoundRules(max_attempts=1))
    with pytest.raises(EngineError, match="6 sent numbers that are not finite: training diverged; lower"):
        clients.run(spoilt)
    assert NOT_FINITE in clients.traffic.absent[0]
