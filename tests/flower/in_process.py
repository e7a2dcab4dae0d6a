"""A federation on one machine, in one process: a grid that hands real messages, as bytes, to real devices."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

import builders
from fedstrata.base.errors import InputError
from fedstrata.build.build import build_run
from fedstrata.build.problem import objective_of
from fedstrata.build.run_setup import RunSetup
from fedstrata.config import load_experiment
from fedstrata.core import Plan
from fedstrata.engine import ClientData
from fedstrata.engine.device import one_thread
from fedstrata.flower import client_app
from fedstrata.flower.client_app import Device
from fedstrata.flower.client_data import export_client_data, read_client_data
from fedstrata.flower.clients import FlowerClients
from fedstrata.flower.federation import Federation as Members
from fedstrata.flower.federation import RoundRules, Samples
from fedstrata.flower.grid import Clock, FlowerNode, failure_reason
from fedstrata.flower.members import Members as Known
from fedstrata.flower.node import ROUND
from fedstrata.flower.payload import ExpectedReply, Payload, decode
from fedstrata.flower.requests import RunConfig
from fedstrata.flower.server_app import drive
from fedstrata.play.rounds import PlanReply, answer_plans
from fedstrata.play.run import run_experiment
from fedstrata.play.steps import run_steps
from fedstrata.results.run import Run

KEYS: dict[str, Any] = {
    "rounds": 4,
    "data": {"name": "digits", "clients": 6, "samples": 32, "test": 0.2},
    "partition": {"scheme": "rotation", "groups": 3},
    "model": {"name": "mlp", "hidden": [8]},
    "local": {"lr": 0.1, "batch": 8},
    "engine": {"name": "loop", "device": "cpu"},
}
"""An experiment of six clients, to which an algorithm belongs."""

# Flower notes in every message who sent it, and lets nobody make one without.
TaskIdentity.task_id = 1
TaskIdentity.run_id = 1
TaskIdentity.node_id = 1

_READ: dict[tuple[Path, int, int, int, str], ClientData] = {}


def read_once(path: Path, client: int, config: RunConfig) -> ClientData:
    """The data of a client as `read_client_data` reads them, for each message anew only if the file has changed."""
    if not path.is_file():
        return read_client_data(path, client, config)
    file = path.stat()
    key = (path, file.st_mtime_ns, file.st_size, client, repr(replace(config, run="")))
    if key not in _READ:
        _READ[key] = read_client_data(path, client, config)
    return _READ[key]


# A device that has a process for each message reads its file in each, which takes half of the time of its work.
client_app.read_client_data = read_once  # type: ignore[attr-defined]  # which it imports


def context_of(device: Device) -> Context:
    """The context of a node that was started with what a device has."""
    config: dict[str, Any] = {"client-key": device.key, "data": str(device.data), "state-dir": str(device.state)}
    config |= {"client-stats": ",".join(device.client_stats), "least-noise": device.least_noise}
    return Context(1, 1, config, RecordDict(), {})


Twist = Callable[[Message, Message], list[Message]]
"""What a grid does with a message and its reply: the replies that arrive."""


@dataclass
class Peer:
    """A node that is there: its id, public key and registered name, as Flower describes it."""

    node_id: int
    public_key: bytes
    name: str = ""


def at(client: int, round: int, does: Callable[[Message, Message], list[Message] | None]) -> Twist:
    """Something happens to the reply of one client to its work in a round: it is changed, or others arrive."""

    def twist(message: Message, reply: Message) -> list[Message]:
        sent = message.metadata
        there = (sent.dst_node_id, sent.group_id) == (100 + client, str(round))
        arriving = does(message, reply) if there else None
        return [reply] if arriving is None else arriving

    return twist


def put(message: Message, record: str, **values: Any) -> None:
    """Change values of a record in a message."""
    records = message.content.config_records["records"]
    records[record] = json.dumps({**json.loads(str(records[record])), **values})


def payload_of(message: Message, expected: ExpectedReply | None = None) -> Payload:
    """The payload of a reply that is an answer."""
    if reason := failure_reason(message):
        raise InputError(reason)
    return decode(message.content, expected)


def lost(client: int, *rounds: int) -> Twist:
    """The replies of one client to its work in some rounds are lost."""

    def twist(message: Message, reply: Message) -> list[Message]:
        sent = message.metadata
        gone = sent.dst_node_id == 100 + client and int(sent.group_id) in rounds
        return [] if gone else [reply]

    return twist


def message_of(content: RecordDict) -> Message:
    """A message to some node."""
    return Message(content, 1, ROUND)


def over_the_wire(message: Message) -> Message:
    """The message as it is after it has been bytes."""
    with no_object_id_recompute():  # as Flower does where it sends and receives
        parts = {id: part.deflate() for id, part in get_all_nested_objects(message).items()}
        arrived: Any = inflate_object_from_contents(message.object_id, parts)
    arrived.metadata.__dict__["_message_id"] = message.object_id
    assert isinstance(arrived, Message)
    return arrived


class Loopback:
    """A grid whose nodes answer at once.

    Args:
        devices: node id -> what it has.
        twist: what becomes of a reply.
    """

    def __init__(self, devices: dict[int, Device], twist: Twist = lambda message, reply: [reply]) -> None:
        self.devices, self.twist = devices, twist
        self.names = {node: device.key for node, device in devices.items()}
        self.public_keys = {node: b"key %d" % node for node in devices}
        self.asked: list[Message] = []
        self._replies: dict[str, list[Message]] = {}

    def push_messages(self, messages: list[Message]) -> list[str | None]:
        ids: list[str | None] = []
        for message in map(over_the_wire, messages):
            node, id = message.metadata.dst_node_id, message.metadata.message_id
            self.asked.append(message)
            ids.append(id)
            if node in self.devices:
                reply = over_the_wire(client_app.client_app(message, context_of(self.devices[node])))
                self._replies[id] = self.twist(message, reply)
        return ids

    def pull_messages(self, message_ids: list[str]) -> list[Message]:
        return [reply for id in message_ids for reply in self._replies.pop(id, [])]

    def arrive(self, replies: dict[str, Message]) -> None:
        """Let replies to earlier messages come, by the messages' ids."""
        for id in list(replies):
            self._replies[id] = [replies.pop(id)]

    def get_nodes(self) -> list[FlowerNode]:
        keys, names = self.public_keys, self.names
        return [Peer(node, keys.get(node, b"key %d" % node), names.get(node, "")) for node in self.devices]


class Ticks:
    """A clock that goes on only when somebody pauses."""

    def __init__(self) -> None:
        self.time = 0.0

    @property
    def clock(self) -> Clock:
        return Clock(lambda: self.time, self.pause)

    def pause(self, seconds: float) -> None:
        self.time += max(seconds, 0.01)


class Slow(Loopback):
    """A grid whose nodes take their time, by a clock that goes on only when the server waits.

    Args:
        devices: node id -> what it has.
        ticks: The clock.
        seconds: How long the reply to a message takes.

    Attributes:
        fetched: The round of each reply that was fetched, and the newest round that clients were asked to work in.
        began: When clients were asked to work in each round, by the clock.
    """

    def __init__(self, devices: dict[int, Device], ticks: Ticks, seconds: Callable[[Message], float]) -> None:
        super().__init__(devices)
        self.ticks, self.seconds = ticks, seconds
        self.fetched: list[tuple[str, str]] = []
        self.began: list[float] = []
        self._round = ""
        self._due: dict[str, float] = {}

    def push_messages(self, messages: list[Message]) -> list[str | None]:
        ids = super().push_messages(messages)
        for id, message in zip(ids, messages, strict=True):
            assert id is not None
            self._due[id] = self.ticks.time + self.seconds(message)
            if message.metadata.group_id != self._round:
                self._round = message.metadata.group_id
                self.began.append(self.ticks.time)
        return ids

    def pull_messages(self, message_ids: list[str]) -> list[Message]:
        due = [id for id in message_ids if self._due[id] <= self.ticks.time]
        found = super().pull_messages(sorted(due, key=self._due.__getitem__))
        self.fetched += [(reply.metadata.group_id or "", self._round) for reply in found]
        return found


def without(plan: Plan, absent: torch.Tensor) -> Plan:
    """The plan for all but some clients, whom nobody asks for a score either."""
    there = {
        name: evaluation.only(~torch.isin(evaluation.clients, absent)) for name, evaluation in plan.evaluations.items()
    }
    return replace(plan.only(~torch.isin(plan.cohort, absent)), evaluations=there)


@dataclass(frozen=True)
class Deployed:
    """The server of a federation, and a simulator that it is compared with.

    Attributes:
        keys: The experiment. Runs may have other tables.
        grid: Its grid, with devices.
        members: The file of the federation.
        ticks: Its clock.
        public_keys: The public keys that the operator has; None for none.
    """

    keys: dict[str, Any]
    grid: Loopback
    members: Members
    ticks: Ticks = field(default_factory=Ticks)
    public_keys: Mapping[str, str] | None = None

    def where(self, **changes: Any) -> "Deployed":
        """The same, with something else in the file of the federation."""
        return replace(self, members=replace(self.members, **changes))

    def run(self, out: Path, resume: bool = False, **tables: Any) -> Run:
        """Run the experiment on the devices."""
        experiment = load_experiment(builders.keys(self.keys, **tables))
        clock = self.ticks.clock
        return drive(self.grid, experiment, self.members, out, resume=resume, clock=clock, public_keys=self.public_keys)

    def simulated(self, out: Path, absent: Mapping[int, list[int]] | None = None, **tables: Any) -> Run:
        """Run the experiment in the simulator, where some clients do not answer the plans of some rounds."""
        experiment = load_experiment(builders.keys(self.keys, **tables))
        if absent is None:
            return run_experiment(experiment, out, quiet=True)
        setup = build_run(experiment)

        def reply(plan: Plan) -> PlanReply:
            gone = torch.tensor(absent.get(plan.round, []), dtype=torch.int64)
            return PlanReply(setup.clients.run(without(plan, gone)), 0.0)

        with one_thread():
            return answer_plans(run_steps(experiment, setup, out), reply)

    def equals_the_simulator(self, folder: Path, events: Any = None, **tables: Any) -> tuple[Run, Run]:
        """Run the experiment here and in the simulator, which is told what happens here: the same records and models.

        Returns:
            Both runs, which are in the folders "real" and "simulated".
        """
        real = self.run(folder / "real", **tables)
        simulated = self.simulated(folder / "simulated", **tables, **({} if events is None else {"events": events}))
        assert records(folder / "real") == records(folder / "simulated")
        assert models(folder / "real") == models(folder / "simulated")
        return real, simulated


def lines(path: Path) -> list[Any]:
    """The records in a file, one a line."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def records(out: Path) -> list[dict[str, Any]]:
    """What a run records of each round but times."""
    return [
        {key: value for key, value in line.items() if not key.startswith("seconds")}
        for line in lines(out / "rounds.jsonl")
    ]


def absences(out: Path) -> list[dict[str, str]]:
    """Why clients were absent, by client, for each plan of a run."""
    return [line["absent"] for line in lines(out / "network/rounds.jsonl")]


def models(out: Path) -> dict[str, bytes]:
    """The models of the clusters. What is known of clients' own differs: on real devices it stays there."""
    files = sorted((out / "models").iterdir())
    return {path.name: path.read_bytes() for path in files if path.name.startswith(("cluster", "layout"))}


@dataclass
class Federation:
    """The devices of an experiment's clients, and the simulator that they are compared with."""

    keys: dict[str, Any]
    setup: RunSetup
    config: RunConfig
    devices: dict[int, Device]

    def deployed(self, folder: Path, twist: Twist = lambda message, reply: [reply]) -> Deployed:
        """The federation with devices that keep nothing yet, in a folder."""
        devices = {node: replace(device, state=folder / device.key) for node, device in self.devices.items()}
        truth = self.setup.server.problem.truth
        members = Members(
            tuple(device.key for device in devices.values()),
            self.config.samples,
            truth=() if truth is None else tuple(truth.tolist()),
            wait_seconds=5.0,
        )
        return Deployed(self.keys, Loopback(devices, twist), members)

    def remote(
        self, rules: RoundRules | None = None, twist: Twist | None = None, run: str = "run"
    ) -> "tuple[FlowerClients, Loopback]":
        grid = Loopback(dict(self.devices)) if twist is None else Loopback(dict(self.devices), twist)
        self.lines: list[str] = []
        config = replace(self.config, run=run)
        clock = Ticks().clock
        members = Known([device.key for device in self.devices.values()], len(self.devices))
        members.update(grid.get_nodes(), 0)
        clients = FlowerClients(
            grid, members, rules or RoundRules(), self.lines.append, clock, config=config, max_samples=32
        )
        return clients, grid


def federation(keys: dict[str, Any], folder: Path) -> Federation:
    """Devices with what the experiment deals to its clients; the node of client c is 100 + c."""
    experiment = load_experiment({**keys, "engine": {"name": "loop"}})
    setup, n = build_run(experiment), experiment.data.clients
    paths = [folder / f"{client}.npz" for client in range(n)]
    samples: Samples = export_client_data(setup, experiment.data.held_out_share, paths)
    model = experiment.model
    options = json.dumps(model.options)
    objective = objective_of(experiment)
    config = RunConfig("run", n, experiment.seed, model.name, options, "float32", samples, objective)
    devices = {100 + c: Device(f"site-{c}", path, folder / f"state-{c}") for c, path in enumerate(paths)}
    return Federation(keys, setup, config, devices)
