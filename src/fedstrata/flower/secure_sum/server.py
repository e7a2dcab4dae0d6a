"""The server's side of a secure sum: it passes on keys and shares, adds up masked vectors, and takes the masks off.

Bonawitz et al., "Practical secure aggregation for privacy-preserving machine learning", CCS 2017, Figure 4. Clients may
be lost at every step. With fewer than are needed there is no sum, and never another one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from fedstrata.base.errors import InputError
from fedstrata.flower.secure_sum.client import PublicKeys
from fedstrata.flower.secure_sum.masking import (
    PRIVATE_BYTES,
    SEED_BYTES,
    Words,
    agreed_key,
    check_public_key,
    mask,
    pair_mask,
    public_of,
    secret_of,
)


@dataclass
class SumServer:
    """What the server knows of one sum.

    Attributes:
        name: The name of the sum.
        members: The clients that are asked.
        needed: The number of clients that must stay to the end.
        word: The bits of the numbers, 32 or 64.
        length: The number of numbers.
        public: The public keys of the clients that sent some.
        sealed: What each client sealed for each other one, by both.
        stayed: The clients whose masked vectors have come.
        shares: The shares of each client that came, by owner and then by who gave them: of its seed for one that
            stayed, of its private key for one that is gone.
        refused: The clients that say that they cannot open the shares of another one, by this one.
    """

    name: str
    members: tuple[int, ...]
    needed: int
    word: int
    length: int
    public: dict[int, PublicKeys] = field(default_factory=dict)
    sealed: dict[int, Mapping[int, bytes]] = field(default_factory=dict)
    stayed: list[int] = field(default_factory=list)
    shares: dict[int, dict[int, bytes]] = field(default_factory=dict)
    refused: dict[int, set[int]] = field(default_factory=dict)
    _total: Words | None = None

    @property
    def has_keys(self) -> bool:
        """Whether enough clients sent keys."""
        return len(self.public) >= self.needed

    @property
    def has_shares(self) -> bool:
        """Whether enough clients sent shares."""
        return self.has_keys and len(self.sealed) >= self.needed

    @property
    def has_vectors(self) -> bool:
        """Whether enough clients sent masked vectors."""
        return self.has_shares and len(self.stayed) >= self.needed

    @property
    def can_open(self) -> bool:
        """Whether enough clients gave shares."""
        return self.has_vectors and self.givers >= self.needed

    @property
    def givers(self) -> int:
        """The number of clients that gave shares."""
        return min((len(given) for given in self.shares.values()), default=0)

    @property
    def gone(self) -> list[int]:
        """The clients whose shares came, and whose masked vectors did not."""
        return [client for client in sorted(self.sealed) if client not in self.stayed]

    def sealed_for(self, client: int) -> dict[int, bytes]:
        """What the other clients sealed for one."""
        return {source: sent[client] for source, sent in sorted(self.sealed.items()) if source != client}

    def take_keys(self, client: int, public: PublicKeys) -> None:
        """Note the public keys of a client.

        Raises:
            InputError: When one is no key, or is known already. The other clients would refuse all keys then.
        """
        check_public_key(public.masks)
        check_public_key(public.shares)
        known = {key for each in self.public.values() for key in (each.masks, each.shares)}
        if public.masks == public.shares or known & {public.masks, public.shares}:
            raise InputError("expected two new public keys, found one that is there already")
        self.public[client] = public

    def take_sealed(self, client: int, sent: Mapping[int, bytes]) -> None:
        """Note what a client sealed for each of the others that sent keys."""
        if set(sent) != set(self.public) - {client}:
            raise InputError("expected shares for each other client that sent keys, found others")
        self.sealed[client] = sent

    def take_vector(self, client: int, vector: Words) -> None:
        """Add the masked vector of a client. It is not kept."""
        if client not in self.sealed or client in self.stayed:
            raise InputError(f"expected one vector of a client that sent shares, found another of client {client}")
        self._total = vector if self._total is None else self._total + vector
        self.stayed.append(client)

    @property
    def spoilers(self) -> set[int]:
        """The clients whose shares were refused by more clients than the sum can lose.

        Fewer might be malicious, and say so of an honest client.
        """
        most = len(self.members) - self.needed
        return {sender for sender, receivers in self.refused.items() if len(receivers) > most}

    def take_refusal(self, client: int, senders: Collection[int]) -> None:
        """Note whose shares a client says that it cannot open. It sends no vector."""
        if client not in self.sealed or client in self.stayed or not set(senders) <= set(self.sealed) - {client}:
            raise InputError("expected a client to refuse shares that it was sent, found others")
        for sender in senders:
            self.refused.setdefault(sender, set()).add(client)

    def take_shares(self, client: int, seeds: Mapping[int, bytes], keys: Mapping[int, bytes]) -> None:
        """Note the shares of a client: of the seeds of those that stayed, of the keys of those that are gone."""
        if client not in self.stayed or set(seeds) != set(self.stayed) or set(keys) != set(self.gone):
            raise InputError("expected a share for each client of the sum, found others")
        for owner, share in {**seeds, **keys}.items():
            self.shares.setdefault(owner, {})[client] = share

    def opened(self) -> Words:
        """Take the masks off the sum of those that stayed.

        Raises:
            InputError: When there are too few shares, or they are of no secret that fits the public keys.
        """
        if not self.can_open or self._total is None:
            raise InputError(f"expected shares of at least {self.needed} clients, found {self.givers}")
        total = self._total
        for client in self.stayed:
            total = total - mask(self._secret(client), self.length, self.word)
        for client in self.gone:
            private = self._secret(client)
            if public_of(private) != self.public[client].masks:
                raise InputError(f"expected shares of the private key of client {client}, found others")
            for other in self.stayed:
                between = pair_mask(agreed_key(private, self.public[other].masks), self.length, self.word)
                # What `other` did with the mask is undone.
                total = total - between if other < client else total + between
        return total

    def _secret(self, client: int) -> bytes:
        """The secret of a client by the first shares that suffice: its seed if it stayed, and else its private key."""
        given = self.shares[client]
        secret = secret_of([given[giver] for giver in sorted(given)[: self.needed]])
        # The padding of a secret says how long it is, and a wrong share changes the padding.
        size = SEED_BYTES if client in self.stayed else PRIVATE_BYTES
        if len(secret) != size:
            raise InputError(f"expected a secret of client {client} of {size} bytes, found {len(secret)}")
        return secret


def word_for(levels: int, clients: int, max_weight: int) -> int:
    """The bits of numbers that hold every sum, 32 or 64.

    Args:
        levels: The largest quantised number.
        clients: The number of clients.
        max_weight: The largest weight of one.

    Raises:
        InputError: When 64 bits are too few.
    """
    for word in (32, 64):
        if levels * clients * max_weight < 2 ** (word - 1):
            return word
    raise InputError(
        f"expected sums below 2^63, found numbers up to {levels} with weights up to {max_weight} of {clients} clients; "
        "lower privacy.sum_bits"
    )


def without_room(levels: int, weights: Mapping[int, int]) -> list[int]:
    """The clients to leave out so that the sum of the others has room in 64 bits, the largest weight first.

    Args:
        levels: The largest quantised number.
        weights: The largest weight of each client.
    """
    ordered = sorted(weights, key=weights.__getitem__, reverse=True)
    for place, client in enumerate(ordered):
        if levels * (len(ordered) - place) * weights[client] < 2**63:
            return ordered[:place]
    return ordered


def signed(total: Words, word: int) -> Words:
    """The numbers modulo 2^word as whole numbers with a sign, int64."""
    return total.view(f"i{word // 8}").astype(np.int64)
