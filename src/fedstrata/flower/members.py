"""The members of a run on Flower: which node speaks for which client, by the name under which Flower knows the node."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from fedstrata.base.errors import EngineError, InputError, RecordError
from fedstrata.base.files import json_text, read_file, replace_file
from fedstrata.base.quoting import one_line
from fedstrata.flower.grid import Clock, FlowerNode

NEVER = 2**31
"""A round that does not come."""

FREE = "free place"
"""Begins the name of a client that no node has spoken for yet."""

_NAME_CHARACTERS = 100
"""The largest number of characters of a node's name."""


@dataclass(eq=False)
class Members:
    """The clients of a run, and the nodes that speak for them. No client is ever forgotten.

    The name of a node is the one with which the operator has registered it, and Flower lets nobody speak under it
    without the node's private key. A node that is not registered is called by its id, which is new at every start.

    Attributes:
        names: The names of the clients' nodes, by the clients' ids. Others get the next free id.
        places: The number of clients n, with those that join later; None as long as all that come are taken.
        keys: The public key of the nodes by name, in hexadecimal digits, as the operator has it. Nobody with another
            key speaks for these clients.
        planned: The round in which a client may join, if that is not the first.
        tell: It takes a line for people.
        nodes: The id of each client's node, of those that are connected now.
        joins: The round of each client's first cohort; `NEVER` as long as nobody has spoken for it.
    """

    names: list[str]
    places: int | None = None
    keys: Mapping[str, str] = field(default_factory=dict)
    planned: Mapping[int, int] = field(default_factory=dict)
    tell: Callable[[str], None] = print
    nodes: dict[int, int] = field(init=False, default_factory=dict)
    joins: dict[int, int] = field(init=False, default_factory=dict)
    _told: set[str] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        """Refuse more names than clients, and a name twice."""
        if len(set(self.names)) < len(self.names):
            raise InputError(f"clients = {self.names}: expected different names")
        if self.places is not None:
            self.limit(self.places)

    def limit(self, places: int) -> None:
        """Fix the number of clients.

        Raises:
            InputError: When there are more already.
        """
        if len(self.names) > places:
            raise InputError(f"clients = {self.names}: expected at most {places} names")
        self.places = places
        self.joins = {client: self.joins.get(client, NEVER) for client in range(places)}

    @property
    def all_names(self) -> tuple[str, ...]:
        """The name of every client, (n,), also of those that have not come."""
        return (*self.names, *(f"{FREE} {client}" for client in range(len(self.names), self.places or 0)))

    def update(self, nodes: Iterable[FlowerNode], round: int) -> None:
        """Note which nodes are connected. Why one of them speaks for nobody is told once.

        Args:
            nodes: What Flower says of the nodes that are there now.
            round: The round of the first cohort that a client could be in, if it is new.
        """
        here = {node.node_id: node for node in nodes}
        speaking = {client: here[id] for client, id in self.nodes.items() if id in here}
        others = [here[id] for id in sorted(here) if id not in self.nodes.values()]
        self.nodes = {}
        # One that speaks for a client already comes before another of its name.
        for node in (*speaking.values(), *others):
            try:
                client = self._client_of(node)
            except InputError as error:
                if (line := str(error)) not in self._told:
                    self._told.add(line)
                    self.tell(line)
                continue
            self.nodes[client] = node.node_id
            if self.joins.get(client, NEVER) == NEVER:
                self.joins[client] = max(round, self.planned.get(client, 0))

    def _client_of(self, node: FlowerNode) -> int:
        """The client that a node speaks for.

        Raises:
            InputError: When there is none.
        """
        name = node.name or str(node.node_id)
        if one_line(name, _NAME_CHARACTERS) != name or name.startswith(FREE):
            raise InputError(
                f"node {node.node_id} is refused: expected a name of 1 to {_NAME_CHARACTERS} visible characters that "
                f"does not begin with {FREE!r}"
            )
        if node.public_key.hex() != self.keys.get(name, node.public_key.hex()):
            raise InputError(
                f"node {node.node_id} is refused: it has another public key than nodes/{name}/key.pub in the "
                "federation's folder"
            )
        if name not in self.names:
            if len(self.names) == self.places:
                known = ", ".join(self.names)
                raise InputError(f"node {node.node_id} is refused: no place is left for {name} beside {known}")
            self.names.append(name)
        client = self.names.index(name)
        if client in self.nodes:
            raise InputError(
                f"node {node.node_id} is refused: node {self.nodes[client]} is connected under the same name, {name}"
            )
        return client

    def wait(
        self,
        here: Callable[[], Iterable[FlowerNode]],
        wanted: int | Collection[str],
        seconds: float,
        clock: Clock,
        *,
        round: int = 0,
        key: str,
    ) -> None:
        """Wait until so many clients are there, whose first cohort is that of a round.

        Args:
            here: Says which nodes are connected.
            wanted: How many clients, or the names of those that must be there.
            seconds: How long at most.
            clock: Tells the time.
            round: The round.
            key: The name of what says how many are waited for.

        Raises:
            EngineError: When they do not come.
        """
        end = clock.now() + seconds
        while True:
            self.update(here(), round)
            there = {self.names[client] for client in self.nodes}
            if len(there) >= wanted if isinstance(wanted, int) else there >= {*wanted}:
                return
            if clock.now() >= end:
                found = ", ".join(name for name in self.names if name in there) or "none"
                count = wanted if isinstance(wanted, int) else len(wanted)
                listed = f" of {', '.join(self.names)}" if self.names else ""
                raise EngineError(
                    f"expected {count} nodes{listed} within {seconds:g} s, found {found}; start the other nodes, or "
                    f"lower {key}"
                )
            clock.pause(min(1.0, max(end - clock.now(), 0.0)))

    def save(self, path: Path) -> None:
        """Write who the clients are, in the order of their ids."""
        joined = [None if (round := self.joins[id]) == NEVER else round for id in range(len(self.names))]
        clients = [{"name": name, "joined": round} for name, round in zip(self.names, joined, strict=True)]
        saved = {"places": self.places, "clients": clients}
        replace_file(path, (json_text(saved, indent=1) + "\n").encode(), private=True)

    def load(self, path: Path) -> bool:
        """Read what `save` has written; return whether there is such a file.

        Raises:
            InputError: When the names that are listed are not those of the run, in their order.
            RecordError: When the file is damaged.
        """
        try:
            found = TypeAdapter(_Saved).validate_json(read_file(path))
        except FileNotFoundError:
            return False
        except ValidationError as error:
            reason = one_line(str(error))
            raise RecordError(f"{path}: expected the nodes of the run, found {reason}; start a new run") from None
        listed = self.names
        self.names = [each.name for each in found.clients]
        self.names += [name for name in listed if name not in self.names]
        if listed != self.names[: len(listed)]:
            raise InputError(
                f"clients = {listed}: expected those of the run first, {', '.join(self.names)}; one that has left for "
                "good keeps its place"
            )
        self.limit(max(self.places or 0, found.places))
        self.joins |= {id: each.joined for id, each in enumerate(found.clients) if each.joined is not None}
        return True


@dataclass(frozen=True)
class _SavedClient:
    """A client in the file of the members."""

    name: str
    joined: int | None


@dataclass(frozen=True)
class _Saved:
    """The file of the members."""

    places: int
    clients: tuple[_SavedClient, ...]
