"""Who is who: a client's own key, its id in the run, and the node that speaks for it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from fedstrata.errors import InputError, RecordError
from fedstrata.files import parse_json, read_file, replace_file
from fedstrata.flower.text import one_line

NEVER = 2**31
"""A round that does not come."""

NOBODY = 0
"""Instead of a node's id: none speaks for the client."""

LONGEST_KEY = 100
"""Characters that a client's key may have."""


@dataclass(frozen=True)
class Seat:
    """One client of a run.

    Attributes:
        client: its id.
        node: id of the node that speaks for it; `NOBODY` when it has shown another key than the client's.
        public: its public key, in hexadecimal digits.
        registered: whether the server's operator has registered the node under the client's key.
        joined: round of its first cohort.
        train: samples that it says it trains on; nobody can count them.
        test: samples that it says it tests on.
    """

    client: int
    node: int
    public: str
    registered: bool
    joined: int
    train: int
    test: int


@dataclass(frozen=True)
class Claim:
    """What a node says of itself, and what Flower says of the node.

    Attributes:
        key: of the client that it speaks for.
        node: its id.
        public: its public key, in hexadecimal digits; made anew at every start where nodes need not have one.
        name: under which the server's operator has registered it; empty where nodes need not be registered.
        train: samples that the client trains on.
        test: samples that it tests on.
    """

    key: str
    node: int
    public: str
    name: str
    train: int
    test: int


@dataclass(frozen=True)
class Roster:
    """The clients that have been met, by key; nothing here forgets one.

    Attributes:
        known: keys whose place is their id; others get the next free one.
        clients: n, those that join later included.
        seats: key -> client.
        most: samples that a client may say it has, of either kind; 0 for any number. Its weight in the mean is what it
            says.
        public_keys: key of a client -> public key of its node, in hexadecimal digits, as the operator has it. A client
            that is not listed here is bound to the public key with which a registered node has first spoken for it.
    """

    known: tuple[str, ...]
    clients: int
    seats: Mapping[str, Seat] = field(default_factory=dict)
    most: int = 0
    public_keys: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse more keys than clients, and a key twice."""
        if len(set(self.known)) < len(self.known) or len(self.known) > self.clients:
            raise InputError(
                f"clients = {list(self.known)}: expected at most {self.clients} different keys, as data.clients says"
            )

    def claimed(self, claim: Claim, round: int, online: Collection[int]) -> Roster:
        """The roster once a node has said who it is.

        Args:
            claim: what it says.
            round: of the first cohort that the client could be in, if it is new.
            online: ids of the nodes that are there now.

        Raises:
            InputError: when the key is another node's, or the node another client's, or the samples cannot be so many.
        """
        if not claim.key or one_line(claim.key, LONGEST_KEY) != claim.key:
            shown = one_line(claim.key, LONGEST_KEY)
            raise InputError(f"expected a key of 1 to {LONGEST_KEY} visible characters, found one like {shown!r}")
        who, held = f"node {claim.node} claims the client {claim.key}", self.seats.get(claim.key)
        for kind, count in (("training", claim.train), ("test", claim.test)):
            if count < 1 or 0 < self.most < count:
                expected = f"1 to {self.most}" if self.most else "at least 1"
                raise InputError(f"{who} with {count} {kind} samples: expected {expected}")
        if claim.name not in ("", claim.key):
            raise InputError(f"{who}, but is registered as {claim.name}")
        if claim.public != self.public_keys.get(claim.key, claim.public):
            raise InputError(
                f"{who} with another public key than nodes/{claim.key}/key.pub in the federation's folder; "
                "if its machine is new, put its key.pub there and register it"
            )
        for key, seat in self.seats.items():
            if key != claim.key and (claim.node == seat.node or claim.public == seat.public):
                raise InputError(f"{who}, but is the client {key}")
        if held is not None and claim.public != held.public:
            if held.node in online:
                raise InputError(f"{who}, for whom node {held.node} speaks")
            if held.registered and claim.key not in self.public_keys:
                raise InputError(
                    f"{who}, whose node has come with another public key; if its machine is new, put its key.pub into "
                    f"nodes/{claim.key} in the federation's folder and register it"
                )
        client, joined = (self._free(claim.key), round) if held is None else (held.client, held.joined)
        seat = Seat(client, claim.node, claim.public, bool(claim.name), joined, claim.train, claim.test)
        return replace(self, seats={**self.seats, claim.key: seat})

    def checked(self, online: Mapping[int, str]) -> tuple[Roster, list[str]]:
        """The roster in which nobody speaks for a client whose node has another public key than it should have.

        Args:
            online: id of a node that is there -> its public key, in hexadecimal digits.

        Returns:
            The roster, and a reason for each client that has lost its node.
        """
        seats, reasons = dict(self.seats), list[str]()
        for key, seat in self.seats.items():
            expected = self.public_keys.get(key, seat.public)
            if seat.node != NOBODY and {seat.public, online.get(seat.node, expected)} != {expected}:
                seats[key] = replace(seat, node=NOBODY)
                reasons.append(f"node {seat.node} does not speak for {key} any more: its public key has changed")
        return replace(self, seats=seats), reasons

    def of(self, client: int) -> tuple[str, Seat] | None:
        """Key and seat of a client; None of one that has not been met."""
        return next(((key, seat) for key, seat in self.seats.items() if seat.client == client), None)

    def joins(self) -> dict[int, int]:
        """Round of each client's first cohort, `NEVER` for one that has not been met."""
        met = {seat.client: seat.joined for seat in self.seats.values()}
        return {client: met.get(client, NEVER) for client in range(self.clients)}

    def _free(self, key: str) -> int:
        if key in self.known:
            return self.known.index(key)
        taken = {seat.client for seat in self.seats.values()}
        free = [client for client in range(len(self.known), self.clients) if client not in taken]
        if not free:
            raise InputError(f"a node claims the client {key}: expected one of {', '.join(self.known)}; no id is left")
        return free[0]


def save_roster(path: Path, roster: Roster) -> None:
    """Write who has been met."""
    seats = {key: asdict(seat) for key, seat in roster.seats.items()}
    replace_file(path, (json.dumps(seats, indent=1) + "\n").encode(), private=True)


def load_roster(path: Path, roster: Roster) -> Roster:
    """The roster with those that a file says have been met; as it is where there is no file.

    Raises:
        RecordError: when the file is damaged.
    """
    try:
        seats = {key: Seat(**seat) for key, seat in parse_json(read_file(path)).items()}
    except FileNotFoundError:
        return roster
    except (ValueError, TypeError, AttributeError) as error:
        raise RecordError(f"{path}: expected who has been met, found {error}; start a new run") from None
    return replace(roster, seats=seats)
