"""A client's side of a secure sum: keys, shares, a masked vector, shares of what the server may take away.

Bonawitz et al., "Practical secure aggregation for privacy-preserving machine learning", CCS 2017, Figure 4, with every
pair of clients and a server that follows the protocol. Each step refuses what would give an update away, and none can
be done twice.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fedstrata.base.errors import InputError
from fedstrata.flower.secure_sum.masking import (
    KeyPair,
    Words,
    agreed_key,
    drawn_seed,
    mask,
    pair_mask,
    public_of,
    sealed,
    shares_of,
    unsealed,
)

Stage = Literal["keys", "shares", "masked"]


class BadSharesError(InputError):
    """Other clients sent shares that this one cannot open.

    Attributes:
        senders: These clients.
    """

    def __init__(self, reasons: Mapping[int, str]) -> None:
        """Take the reason for each of them."""
        super().__init__("; ".join(reasons.values()))
        self.senders = tuple(sorted(reasons))


@dataclass(frozen=True)
class PublicKeys:
    """The public keys of a client.

    Attributes:
        masks: The one that masks are agreed on by.
        shares: The one that shares are encrypted by.
    """

    masks: bytes
    shares: bytes


@dataclass(frozen=True)
class SumClient:
    """What a client knows of one sum. All of it but the public keys stays on its device.

    Attributes:
        name: The name of the sum, which the server draws.
        round: The round.
        client: The client.
        members: The clients of the sum.
        needed: The number of clients that must stay to the end.
        word: The bits of the numbers of the sum, 32 or 64.
        stage: The last step that was done.
        masks: The private key that masks are agreed on by.
        shares: The private key that shares are encrypted by.
        seed: The seed of its own mask.
        public: The public keys of the clients that have some.
        seed_shares: The shares of other clients' seeds, and of its own, by client.
        key_shares: The shares of their private keys.
    """

    name: str
    round: int
    client: int
    members: tuple[int, ...]
    needed: int
    word: int
    stage: Stage
    masks: bytes
    shares: bytes
    seed: bytes
    public: Mapping[int, PublicKeys] = field(default_factory=dict)
    seed_shares: Mapping[int, bytes] = field(default_factory=dict)
    key_shares: Mapping[int, bytes] = field(default_factory=dict)

    @classmethod
    def begun(
        cls, name: str, round: int, client: int, members: Collection[int], needed: int, word: int
    ) -> tuple[SumClient, PublicKeys]:
        """Draw new keys.

        Returns:
            The client, and what it sends: its public keys.

        Raises:
            InputError: When too few clients take part, or a client is there twice.
        """
        if client not in members or len(set(members)) < len(members) or not 2 <= needed <= len(members):
            raise InputError(
                f"expected a sum of at least {needed} different clients, with client {client}, found {sorted(members)}"
            )
        masks = KeyPair.drawn()
        shares = KeyPair.drawn()
        begun = cls(
            name=name,
            round=round,
            client=client,
            members=tuple(sorted(members)),
            needed=needed,
            word=word,
            stage="keys",
            masks=masks.private,
            shares=shares.private,
            seed=drawn_seed(),
        )
        return begun, PublicKeys(masks.public, shares.public)

    def shared(self, public: Mapping[int, PublicKeys]) -> tuple[SumClient, dict[int, bytes]]:
        """Share the seed of its own mask and the private key of the others.

        Args:
            public: The public keys of the clients that sent some, with its own.

        Returns:
            The client, and what it sends: the shares of each other client, which only that one can read.

        Raises:
            InputError: When too few are there, or keys are not what they should be.
        """
        self._expect("keys")
        keys = [key for each in public.values() for key in (each.masks, each.shares)]
        own = PublicKeys(public_of(self.masks), public_of(self.shares))
        if not set(public) <= set(self.members) or public.get(self.client) != own or len(set(keys)) < len(keys):
            raise InputError("expected the public keys of clients of the sum, all different, and its own, found others")
        self._expect_enough(public)
        receivers = sorted(public)
        seeds = dict(zip(receivers, shares_of(self.seed, self.needed, len(receivers)), strict=True))
        parts = dict(zip(receivers, shares_of(self.masks, self.needed, len(receivers)), strict=True))
        sent = {
            other: sealed(agreed_key(self.shares, public[other].shares), self.client, other, seeds[other], parts[other])
            for other in receivers
            if other != self.client
        }
        done = replace(
            self,
            stage="shares",
            public=dict(public),
            seed_shares={self.client: seeds[self.client]},
            key_shares={self.client: parts[self.client]},
        )
        return done, sent

    def masked(self, vector: Words, received: Mapping[int, bytes]) -> tuple[SumClient, Words]:
        """Mask a vector by its own mask, and by one with every other client whose shares have come.

        Args:
            vector: What it adds to the sum, modulo 2^word.
            received: The sealed shares of the other clients.

        Returns:
            The client, and what it sends: the masked vector.

        Raises:
            InputError: When too few are there, or shares of others than the clients of the sum.
            BadSharesError: When shares are not what they should be.
        """
        self._expect("shares")
        if not set(received) <= set(self.public) - {self.client}:
            raise InputError("expected shares of other clients whose public keys are known, found more")
        self._expect_enough({self.client, *received})
        seeds = dict(self.seed_shares)
        keys = dict(self.key_shares)
        refused = dict[int, str]()
        total = vector + mask(self.seed, len(vector), self.word)
        for other, content in sorted(received.items()):
            key = agreed_key(self.shares, self.public[other].shares)
            try:
                seeds[other], keys[other] = unsealed(key, other, self.client, content)
            except InputError as error:
                refused[other] = str(error)
                continue
            between = pair_mask(agreed_key(self.masks, self.public[other].masks), len(vector), self.word)
            # Of two clients one adds the mask and the other takes it away.
            total = total + between if self.client < other else total - between
        if refused:
            raise BadSharesError(refused)
        return replace(self, stage="masked", seed_shares=seeds, key_shares=keys), total

    def revealed(self, stayed: Collection[int], gone: Collection[int]) -> tuple[dict[int, bytes], dict[int, bytes]]:
        """Give the shares by which the server takes the masks off the sum. The client must be forgotten afterwards.

        Args:
            stayed: The clients whose masked vectors have come.
            gone: The others whose shares have come.

        Returns:
            The shares of the seeds of those that stayed, and of the private keys of those that are gone.

        Raises:
            InputError: When this would give away more than the sum of enough clients.
        """
        self._expect("masked")
        # With both shares of one client, the server could take all masks off its vector.
        if set(stayed) & set(gone) or {*stayed, *gone} != set(self.seed_shares) or self.client not in stayed:
            raise InputError("expected each client of the sum to have stayed or to be gone, and not both")
        self._expect_enough(stayed)
        return {other: self.seed_shares[other] for other in stayed}, {other: self.key_shares[other] for other in gone}

    def _expect(self, stage: Stage) -> None:
        if self.stage != stage:
            raise InputError(f"expected a sum after the step {stage!r}, found one after {self.stage!r}")

    def _expect_enough(self, clients: Collection[int]) -> None:
        if len(clients) < self.needed:
            raise InputError(f"expected at least {self.needed} clients in the sum, found {len(clients)}")

    def to_json(self) -> str:
        """The client as text, for a private file of its device."""
        public = {client: [keys.masks.hex(), keys.shares.hex()] for client, keys in self.public.items()}
        values = {
            **{name: getattr(self, name) for name in ("name", "round", "client", "needed", "word", "stage")},
            **{name: getattr(self, name).hex() for name in ("masks", "shares", "seed")},
            "members": list(self.members),
            "public": public,
            "seed_shares": {client: share.hex() for client, share in self.seed_shares.items()},
            "key_shares": {client: share.hex() for client, share in self.key_shares.items()},
        }
        return json.dumps(values)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> SumClient:
        """The client of such a text, as `json.loads` reads it."""
        shares = {
            name: {int(client): bytes.fromhex(share) for client, share in values[name].items()}
            for name in ("seed_shares", "key_shares")
        }
        public = {
            int(client): PublicKeys(*(bytes.fromhex(key) for key in keys)) for client, keys in values["public"].items()
        }
        return cls(
            name=values["name"],
            round=values["round"],
            client=values["client"],
            members=tuple(values["members"]),
            needed=values["needed"],
            word=values["word"],
            stage=values["stage"],
            masks=bytes.fromhex(values["masks"]),
            shares=bytes.fromhex(values["shares"]),
            seed=bytes.fromhex(values["seed"]),
            public=public,
            seed_shares=shares["seed_shares"],
            key_shares=shares["key_shares"],
        )
