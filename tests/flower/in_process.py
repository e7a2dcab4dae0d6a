"""A federation on one machine, in one process: a grid that hands real messages, as bytes, to real devices."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from fedstrata.config import load
from fedstrata.flower.cut import cut
from fedstrata.flower.device import Device, answer, whoami
from fedstrata.flower.exchange import Clock, Node, ReplyLimit
from fedstrata.flower.remote import Remote, Rules
from fedstrata.flower.roster import Roster, Seat
from fedstrata.flower.terms import Samples, Terms
from fedstrata.runner.build import Setting, prepare

TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1

Twist = Callable[[Message, Message], list[Message]]
"""What a grid does with a message and its reply: the replies that arrive."""


@dataclass
class Peer:
    """A node that is there: its id, public key and registered name, as Flower describes it."""

    node_id: int
    public_key: bytes
    name: str = ""


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
        self.names: dict[int, str] = {}
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
                does = whoami if message.metadata.message_type == "query.whoami" else answer
                reply = over_the_wire(does(message, self.devices[node]))
                self._replies[id] = self.twist(message, reply)
        return ids

    def pull_messages(self, message_ids: list[str], limit: ReplyLimit) -> list[Message]:
        return [reply for id in message_ids for reply in self._replies.pop(id, [])]

    def arrive(self, replies: dict[str, Message]) -> None:
        """Let replies to earlier messages come, by the messages' ids."""
        for id in list(replies):
            self._replies[id] = [replies.pop(id)]

    def get_nodes(self) -> list[Node]:
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


@dataclass
class Federation:
    """The devices of an experiment's clients, and the simulator that they are compared with."""

    setting: Setting
    terms: Terms
    devices: dict[int, Device]
    roster: Roster

    def remote(
        self, rules: Rules | None = None, twist: Twist | None = None, run: str = "run"
    ) -> "tuple[Remote, Loopback]":
        grid = Loopback(dict(self.devices)) if twist is None else Loopback(dict(self.devices), twist)
        self.lines: list[str] = []
        terms = replace(self.terms, run=run)
        return Remote(grid, terms, self.roster, rules, self.lines.append, Ticks().clock), grid


def federation(keys: dict[str, Any], folder: Path) -> Federation:
    """Devices with what the experiment deals to its clients; the node of client c is 100 + c."""
    experiment = load({**keys, "engine": {"name": "loop"}})
    setting, n = prepare(experiment), experiment.data.clients
    paths = [folder / f"{client}.npz" for client in range(n)]
    samples: Samples = cut(experiment, setting, paths)
    model = experiment.model
    terms = Terms("run", n, experiment.seed, model.name, json.dumps(model.options), "float32", samples)
    devices = {100 + c: Device(f"site-{c}", path, folder / f"state-{c}") for c, path in enumerate(paths)}
    held = setting.holdings
    seats = {f"site-{c}": Seat(c, 100 + c, f"{c}", False, 0, len(held.train(c)), len(held.test(c))) for c in range(n)}
    return Federation(setting, terms, devices, Roster(tuple(seats), n, seats))
