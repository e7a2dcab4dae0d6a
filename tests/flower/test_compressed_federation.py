"""Compressed updates on real devices: the bits of the simulation, and nothing else in their place."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message
from in_process import Loopback, Ticks, Twist, federation, without

from fedstrata.build.build import build_run
from fedstrata.config import Experiment, load_experiment
from fedstrata.core import Plan
from fedstrata.engine.device import one_thread
from fedstrata.flower.client_app import Device
from fedstrata.flower.federation import Federation, RoundRules
from fedstrata.flower.server_app import drive
from fedstrata.play.rounds import PlanReply, answer_plans
from fedstrata.play.steps import run_steps
from fedstrata.results.run import Run

KEYS: dict[str, Any] = {
    "seed": 7,
    "rounds": 4,
    "data": {"name": "digits", "clients": 6, "samples": 32, "test": 0.2},
    "partition": {"scheme": "rotation", "groups": 3},
    "model": {"name": "mlp", "hidden": [8]},
    "local": {"lr": 0.1, "batch": 8},
    "algorithm": {"name": "strata"},
    "engine": {"name": "loop", "device": "cpu"},
}
NETWORKS: dict[str, dict[str, Any]] = {
    "bfloat16": {"compression": "bfloat16"},
    "int8": {"compression": "int8"},
    "top_k": {"compression": "top_k", "share": 0.1},
}
SLOW = 2
"""The client whose reply is lost in some rounds."""

Here = tuple[dict[int, Device], Federation]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Here:
    found = federation(KEYS, tmp_path_factory.mktemp("devices"))
    truth = found.setup.server.problem.truth
    assert truth is not None
    keys = tuple(device.key for device in found.devices.values())
    members = Federation(keys, found.config.samples, truth=tuple(truth.tolist()), wait_seconds=5.0)
    return found.devices, replace(members, rounds=RoundRules(deadline=5.0))


@pytest.fixture
def here(made: Here, tmp_path: Path) -> Here:
    """The devices with states of their own."""
    return {node: replace(device, state=tmp_path / device.key) for node, device in made[0].items()}, made[1]


def experiment_with(kind: str, **tables: Any) -> Experiment:
    return load_experiment({**KEYS, "network": NETWORKS[kind], **tables})


def driven(here: Here, experiment: Experiment, out: Path, twist: Twist, resume: bool = False) -> Run:
    return drive(Loopback(dict(here[0]), twist), experiment, here[1], out, resume=resume, clock=Ticks().clock)


def simulated(experiment: Experiment, out: Path, lost: set[int]) -> Run:
    """The run in which a client does not answer in some rounds."""
    setup = build_run(experiment)

    def reply(plan: Plan) -> PlanReply:
        gone = torch.tensor([SLOW] if plan.round in lost else [], dtype=torch.int64)
        return PlanReply(setup.clients.run(without(plan, gone)), 0.0)

    with one_thread():
        return answer_plans(run_steps(experiment, setup, out), reply)


def losing(rounds: set[int]) -> Twist:
    """A network that loses the replies of one client, who has done its work then."""

    def twist(message: Message, reply: Message) -> list[Message]:
        lost = message.metadata.dst_node_id == 100 + SLOW and message.metadata.group_id in map(str, rounds)
        return [] if lost and message.metadata.message_type == "train" else [reply]

    return twist


def bytes_up(run: Run) -> list[int]:
    return [record["bytes_up"] for record in run.rounds]


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_federation_has_the_bits_and_bytes_of_the_simulation(kind: str, here: Here, tmp_path: Path) -> None:
    experiment = experiment_with(kind)
    real = driven(here, experiment, tmp_path / "real", losing(set()))
    wanted = simulated(experiment, tmp_path / "simulated", set())
    assert torch.equal(real.state.models, wanted.state.models)
    assert torch.equal(real.state.labels, wanted.state.labels)
    assert bytes_up(real) == bytes_up(wanted)


def test_what_a_client_has_left_out_of_a_lost_reply_does_not_count(here: Here, tmp_path: Path) -> None:
    """The device has saved it, but the server took no such reply: the client goes on from the one before."""
    experiment = experiment_with("top_k")
    real = driven(here, experiment, tmp_path / "real", losing({2, 3}))
    wanted = simulated(experiment, tmp_path / "simulated", {2, 3})
    assert [record["absent"] for record in real.rounds] == [[], [SLOW], [SLOW], []]
    assert torch.equal(real.state.models, wanted.state.models)


def test_a_resumed_federation_goes_on_with_what_was_left_out(here: Here, tmp_path: Path) -> None:
    driven(here, experiment_with("top_k", rounds=2), tmp_path / "real", losing(set()))
    resumed = driven(here, experiment_with("top_k"), tmp_path / "real", losing(set()), resume=True)
    wanted = simulated(experiment_with("top_k"), tmp_path / "simulated", set())
    assert torch.equal(resumed.state.models, wanted.state.models)


def test_the_messages_are_as_small_as_the_records_say(here: Here, tmp_path: Path) -> None:
    """What comes beside the numbers is the same with and without compression."""
    sizes = dict[str, list[int]]()
    networks: dict[str, dict[str, Any]] = {"none": {}, **NETWORKS}
    for name, network in networks.items():
        experiment = load_experiment({**KEYS, "rounds": 1, "network": network, "algorithm": {"name": "fedavg"}})
        run = driven(here, experiment, tmp_path / name, losing(set()))
        lines = (tmp_path / name / "network/rounds.jsonl").read_text().splitlines()
        sizes[name] = [json.loads(lines[0])["bytes_up"], bytes_up(run)[0]]
    # An mlp of 64 x 8 + 8 + 8 x 10 + 10 numbers; six clients.
    assert [size for _, size in sizes.values()] == [6 * 4 * 610, 6 * 2 * 610, 6 * (610 + 4 * 4), 6 * 8 * 61]
    beside = [wire - counted for wire, counted in sizes.values()]
    assert max(beside) < 6 * 1500


Spoil = Callable[[ArrayRecord], Any]


def put(name: str, values: Any, dtype: str) -> Spoil:
    return lambda arrays: arrays.__setitem__(name, Array(np.array(values, dtype)))


SPOILT: dict[str, tuple[str, Spoil, str]] = {
    "an index beyond the update": (
        "top_k",
        put("indices", [*range(60), 610], "int32"),
        "expected ascending indices of 0 to 609, found others",
    ),
    "an index twice": ("top_k", put("indices", [0, *range(60)], "int32"), "expected ascending indices"),
    "more numbers": (
        "top_k",
        put("values", [0.0] * 62, "float32"),
        r"expected compressed-train\.values to be torch\.float32 \(61,\)",
    ),
    "another type": (
        "top_k",
        put("indices", range(61), "int64"),
        r"expected compressed-train\.indices to be torch\.int32 \(61,\)",
    ),
    "no indices": ("top_k", lambda arrays: arrays.pop("indices"), "expected the array indices, found none"),
    "a negative scale": ("int8", put("scales", [-1.0] * 4, "float32"), "expected scales of at least 0"),
    "an array of its own": (
        "int8",
        put("more", [0], "int8"),
        r"expected no array compressed-train\.more: it was not asked for",
    ),
}


def spoiling(spoil: Spoil, message: Message, reply: Message) -> list[Message]:
    """The replies of one client in round 1 with something else in the place of its compressed update."""
    if message.metadata.dst_node_id == 100 + SLOW and message.metadata.group_id == "1":
        arrays = reply.content.array_records["compressed-train.arrays"]
        assert arrays
        spoil(arrays)
    return [reply]


@pytest.mark.parametrize(
    "kind, spoil",
    [
        ("top_k", put("values", [np.nan] * 61, "float32")),
        ("int8", put("scales", [np.inf] * 4, "float32")),
        ("bfloat16", put("halves", [0x7F80] * 610, "int16")),
    ],
)
def test_a_compressed_update_that_is_not_finite_is_rejected(
    kind: str, spoil: Spoil, here: Here, tmp_path: Path
) -> None:
    run = driven(here, experiment_with(kind, rounds=1), tmp_path / "real", partial(spoiling, spoil))
    (event,) = [event for event in run.rounds[0]["events"] if event["kind"] == "rejected"]
    assert (event["clients"], event["reason"]) == ([SLOW], "not finite")


@pytest.mark.parametrize("kind, spoil, reason", SPOILT.values(), ids=SPOILT)
def test_what_is_not_a_compressed_update_is_rejected(
    kind: str, spoil: Spoil, reason: str, here: Here, tmp_path: Path
) -> None:
    experiment = experiment_with(kind, rounds=1)
    run = driven(here, experiment, tmp_path / "real", partial(spoiling, spoil))
    assert run.rounds[0]["rejected"] == [SLOW]
    (event,) = [event for event in run.rounds[0]["events"] if event["kind"] == "rejected"]
    assert event["clients"] == [SLOW]
    assert re.search(reason, event["why"])
