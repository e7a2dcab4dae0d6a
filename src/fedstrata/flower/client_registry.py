"""The client registry: a client's own key, its id in the run and the node that speaks for it; and how nodes register.

Nodes are asked who they are before the first round, and whenever one comes that is not known.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from fedstrata.base.errors import EngineError, InputError, RecordError
from fedstrata.base.files import read_file, replace_file
from fedstrata.base.limits import MAX_SAMPLES
from fedstrata.base.quoting import one_line, without_paths
from fedstrata.flower.grid import Clock, FlowerNode, Grid, arrived, message_to, payload_of, send
from fedstrata.flower.payload import ExpectedReply, Payload, encode
from fedstrata.flower.replies import ANY_CLIENT, CLIENT_INFO, ClientInfo
from fedstrata.flower.requests import INFO_REQUEST, REGISTER, InfoRequest, RunConfig, write_run_config
from fedstrata.models import layout_of

if TYPE_CHECKING:
    from flwr.app import Message

NEVER = 2**31
"""A round that does not come."""

NO_NODE = 0
"""Instead of a node's id: no node speaks for the client."""

_KEY_CHARACTERS = 100
"""The largest number of characters of a client's key."""

_FIRST_WAIT = 60.0
"""Seconds after which a node that has not registered is asked again; twice as many each further time."""

_LONGEST_WAIT = 3600.0
"""The longest time between two questions to a silent node, in seconds."""

_EXPECTED = ExpectedReply(frozenset({"client", "failed"}), {}, 0)
"""What the reply of a node that registers may hold."""


@dataclass(frozen=True)
class Registration:
    """One registered client of a run.

    Attributes:
        client: Its id.
        node: The id of the node that speaks for it; `NO_NODE` when the node has shown another key than the client's.
        public: The public key of the node, in hexadecimal digits. It is new at every start of a node that needs none.
        registered: Whether the server's operator has registered the node under the client's key.
        joined: The round of its first cohort.
        train: The number of training samples that it claims; nobody can count them.
        test: The number of test samples that it claims.
    """

    client: int
    node: int
    public: str
    registered: bool
    joined: int
    train: int
    test: int


@dataclass(frozen=True)
class ClientRegistry:
    """The clients that have registered, by key. No client is ever forgotten.

    Attributes:
        known: The keys whose place is their id; others get the next free one.
        clients: The number of clients n, with those that join later.
        registrations: The registration of each key.
        max_samples: The number of samples that a client may claim, of either kind. 0 stands for `MAX_SAMPLES`, which
            no client may exceed. Its weight in the mean is what it claims.
        public_keys: The public key of each client's node, in hexadecimal digits, as the operator has it. A client that
            is not listed here is bound to the public key with which a registered node has first spoken for it.
    """

    known: tuple[str, ...]
    clients: int
    registrations: Mapping[str, Registration] = field(default_factory=dict)
    max_samples: int = 0
    public_keys: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse more keys than clients, and a key twice."""
        if len(set(self.known)) < len(self.known) or len(self.known) > self.clients:
            raise InputError(f"clients = {list(self.known)}: expected at most {self.clients} different keys")

    def register(self, node: FlowerNode, info: ClientInfo, round: int, online: Collection[int]) -> ClientRegistry:
        """Return the registry once a node has said which client it speaks for.

        Args:
            node: What Flower says of the node.
            info: What the node says of itself.
            round: The round of the first cohort that the client could be in, if it is new.
            online: The ids of the nodes that are there now.

        Raises:
            InputError: When the key is another node's, or the node another client's, or the samples cannot be so many.
        """
        self._check(node, info, online)
        held = self.registrations.get(info.key)
        registration = Registration(
            client=self.id_of(info.key),
            node=node.node_id,
            public=node.public_key.hex(),
            registered=bool(node.name),
            joined=round if held is None else held.joined,
            train=info.train,
            test=info.test,
        )
        return replace(self, registrations={**self.registrations, info.key: registration})

    def _check(self, node: FlowerNode, info: ClientInfo, online: Collection[int]) -> None:
        """Refuse a claim that cannot hold, a key that another node holds, and a node that speaks for another client."""
        key = info.key
        if not key or one_line(key, _KEY_CHARACTERS) != key:
            shown = one_line(key, _KEY_CHARACTERS)
            raise InputError(f"expected a key of 1 to {_KEY_CHARACTERS} visible characters, found one like {shown!r}")
        who = f"node {node.node_id} claims the client {key}"
        most = min(self.max_samples or MAX_SAMPLES, MAX_SAMPLES)
        for kind, count in (("training", info.train), ("test", info.test)):
            if not 1 <= count <= most:
                raise InputError(f"{who} with {count} {kind} samples: expected 1 to {most}")
        if node.name not in ("", key):
            raise InputError(f"{who}, but is registered as {node.name}")
        public = node.public_key.hex()
        if public != self.public_keys.get(key, public):
            raise InputError(f"{who} with another public key than nodes/{key}/key.pub in the federation's folder")
        for other_key, other in self.registrations.items():
            if other_key != key and (node.node_id == other.node or public == other.public):
                raise InputError(f"{who}, but is the client {other_key}")
        held = self.registrations.get(key)
        if held is None or public == held.public:
            return
        if held.node in online:
            raise InputError(f"{who}, for whom node {held.node} speaks")
        if held.registered and key not in self.public_keys:
            raise InputError(f"{who}, whose node has another public key; register the new nodes/{key}/key.pub")

    def without_changed_keys(self, online: Mapping[int, str]) -> tuple[ClientRegistry, list[str]]:
        """Part each client from its node where the node has another public key than it should have.

        Args:
            online: The public key of each node that is there, in hexadecimal digits, by the node's id.

        Returns:
            The registry, and a reason for each client that has lost its node.
        """
        registrations = dict(self.registrations)
        reasons = list[str]()
        for key, held in self.registrations.items():
            expected = self.public_keys.get(key, held.public)
            if held.node != NO_NODE and {held.public, online.get(held.node, expected)} != {expected}:
                registrations[key] = replace(held, node=NO_NODE)
                reasons.append(f"node {held.node} does not speak for {key} any more: its public key has changed")
        return replace(self, registrations=registrations), reasons

    def by_id(self) -> dict[int, tuple[str, Registration]]:
        """Return the key and the registration of each client that has registered, by its id."""
        return {held.client: (key, held) for key, held in self.registrations.items()}

    def joins(self) -> dict[int, int]:
        """Return the round of each client's first cohort, `NEVER` for one that has not registered."""
        held = self.by_id()
        return {client: held[client][1].joined if client in held else NEVER for client in range(self.clients)}

    def id_of(self, key: str) -> int:
        """Return the id of the client of a key: the one that it has, or the one that it would get now.

        Raises:
            InputError: When no id is left.
        """
        if key in self.registrations:
            return self.registrations[key].client
        if key in self.known:
            return self.known.index(key)
        taken = {held.client for held in self.registrations.values()}
        free = [client for client in range(len(self.known), self.clients) if client not in taken]
        if not free:
            raise InputError(f"a node claims the client {key}: expected one of {', '.join(self.known)}; no id is left")
        return free[0]


def save_registry(path: Path, registry: ClientRegistry) -> None:
    """Write the registrations."""
    # The ids of nodes have 64 bits. Readers of JSON round such numbers, or refuse them, so they are texts.
    registrations = {key: {**asdict(held), "node": str(held.node)} for key, held in registry.registrations.items()}
    replace_file(path, (json.dumps(registrations, indent=1) + "\n").encode(), private=True)


def load_registry(path: Path, registry: ClientRegistry) -> ClientRegistry:
    """Read the registrations of a file into a registry, which stays as it is where there is no file.

    Raises:
        RecordError: When the file is damaged.
    """
    try:
        registrations = TypeAdapter(dict[str, Registration]).validate_json(read_file(path))
    except FileNotFoundError:
        return registry
    except ValidationError as error:
        reason = one_line(str(error))
        raise RecordError(f"{path}: expected the registered clients, found {reason}; start a new run") from None
    return replace(registry, registrations=registrations)


@dataclass
class _Node:
    """What is known of a node beside the registry, since the server application was started.

    Attributes:
        due: The time from which it is asked again while it is silent.
        wait: The seconds from the last question to then.
        refused_among: The nodes that were there when its last answer came; None before that.
        told: The last line that was told of it.
        registered: Whether it has registered.
        client: The id of its client, where its numbers of samples depend on it.
    """

    due: float = -inf
    wait: float = _FIRST_WAIT / 2
    refused_among: frozenset[int] | None = None
    told: str = ""
    registered: bool = False
    client: int | None = None

    def ask_at_once(self) -> None:
        """Let it be asked at once, as one that was never asked."""
        self.due, self.wait = -inf, _FIRST_WAIT / 2


@dataclass(eq=False)
class Registrar:
    """Keeps the registry up to date. Nobody waits for a node that is silent.

    Attributes:
        grid: Flower's grid.
        config: The config of the run.
        wait_seconds: The seconds that it waits for enough clients before the first round.
        tell: It takes a line for people.
        clock: It tells the time.
        between: The seconds that may pass between two calls of `update`, as long as a round may last. Flower keeps an
            answer that long.
    """

    grid: Grid
    config: RunConfig
    wait_seconds: float
    tell: Callable[[str], None]
    clock: Clock
    between: float = 0.0

    def __post_init__(self) -> None:
        """Ask no node yet."""
        self._request = write_run_config(self.config, layout_of(self.config.network()))
        self._open: dict[str, int] = {}  # node by the id of a question
        self._nodes = defaultdict[int, _Node](_Node)

    def wait_for(self, registry: ClientRegistry, wanted: int, round: int) -> ClientRegistry:
        """Wait until so many clients are there, whose first cohort is that of a round.

        Those that the registry knows are asked as well: their data may have grown since the run was stopped.

        Raises:
            EngineError: When they do not come.
        """
        end = self.clock.now() + self.wait_seconds
        while True:
            registry = self.update(registry, round)
            there = {id for id in self._here() if self._nodes[id].registered}
            found = sorted(key for key, held in registry.registrations.items() if held.node in there)
            if len(found) >= wanted:
                return registry
            if self.clock.now() >= end:
                raise EngineError(
                    f"expected {wanted} clients within {self.wait_seconds:g} s, found {', '.join(found) or 'none'}; "
                    "start the other nodes, or lower min_clients in the federation's file"
                )
            self.clock.pause(1.0)

    def update(self, registry: ClientRegistry, round: int) -> ClientRegistry:
        """Ask the nodes that the registry does not know, and register those that have answered an earlier question.

        A claim that does not hold is told and left out. A node that was refused is asked again as a silent one is, for
        its data may be put right, and once other nodes are there: the one that held its key may be gone. One whose
        numbers of samples depend on its id, which it cannot know, is asked once more with the id.
        """
        here = self._here()
        registry, reasons = registry.without_changed_keys({id: node.public_key.hex() for id, node in here.items()})
        for reason in reasons:
            self.tell(reason)
        self._ask(registry, here, round)
        asked_again = False
        for id, message in arrived(self.grid, self._open, _EXPECTED.limit):
            if id not in here:
                continue
            node = self._nodes[id]
            if not message.has_error():
                # What Flower reports in the place of an answer is none.
                node.refused_among = frozenset(here)
            try:
                info = CLIENT_INFO.read(payload_of(message, _EXPECTED).record("client"))
                client = registry.id_of(info.key) if info.client != ANY_CLIENT else ANY_CLIENT
                if info.client == client:
                    registry = registry.register(here[id], info, round, frozenset(here))
                    node.registered = True
                else:
                    node.client = client
                    node.ask_at_once()
                    asked_again = True
            except InputError as error:
                line = f"node {id} is refused: {one_line(without_paths(str(error)))}"
                if line != node.told:
                    node.told = line
                    self.tell(line)
        if asked_again:
            self._ask(registry, here, round)
        return registry

    def _ask(self, registry: ClientRegistry, here: Mapping[int, FlowerNode], round: int) -> None:
        """Send the question to the nodes that are due."""
        now = self.clock.now()
        online = frozenset(here)
        known = {held.node for held in registry.registrations.values() if self._nodes[held.node].registered}
        for id in self._nodes.keys() - online:
            # One that was away is asked at once when it is back.
            self._nodes[id].ask_at_once()
        messages: dict[int, Message] = {}
        seconds = _FIRST_WAIT + self.between
        for id in sorted(online - known):
            node = self._nodes[id]
            if now >= node.due or node.refused_among not in (None, online):
                request = Payload({"client": INFO_REQUEST.write(InfoRequest(node.client))})
                messages[id] = message_to(id, REGISTER, encode(self._request | request), round, seconds)
                node.wait = min(2 * node.wait, _LONGEST_WAIT)
                node.due = now + node.wait
        self._open |= send(self.grid, messages)

    def _here(self) -> dict[int, FlowerNode]:
        return {node.node_id: node for node in self.grid.get_nodes()}
