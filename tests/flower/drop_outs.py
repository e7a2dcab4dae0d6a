"""Every way in which clients can be lost on the way through a secure sum, without messages and with short vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import pytest

from fedstrata.base.errors import InputError
from fedstrata.flower.secure_sum.client import SumClient
from fedstrata.flower.secure_sum.masking import Words, mask
from fedstrata.flower.secure_sum.server import SumServer
from fedstrata.flower.secure_sum.sums import SumTerms

WORD = 32
LENGTH = 4


@dataclass(frozen=True)
class Ending:
    """How a sum ended.

    Attributes:
        patterns: The number of patterns of drop-outs that end so. A pattern says of each client in which of the four
            steps it is lost, or in none: 5^n in all.
        kept: The clients that were not lost before the end.
        server: What the server has.
        vectors: What each client sent, by client.
        total: The sum; None where it was not opened.
    """

    patterns: int
    kept: tuple[int, ...]
    server: SumServer
    vectors: dict[int, Words]
    total: Words | None


def subsets(clients: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every choice of some of the clients."""
    for size in range(len(clients) + 1):
        yield from combinations(clients, size)


def plain_vector(client: int) -> Words:
    """What a client adds: some numbers, one of them negative."""
    return np.array([1 + client, -5 * client, 10**client % 1009, 2**client], dtype="i4").view("u4")


def needed(n: int) -> int:
    """The number of clients of n that must stay."""
    return SumTerms(min_clients=2).needed(n)


def endings(n: int) -> Iterator[Ending]:
    """Play every pattern of drop-outs of n clients; patterns that differ only after the sum has ended are one."""
    everyone = tuple(range(n))
    begun = {client: SumClient.begun("sum", 1, client, everyone, needed(n), WORD) for client in everyone}
    for first in subsets(everyone):
        server = SumServer("sum", everyone, needed(n), WORD, LENGTH)
        for client in first:
            server.take_keys(client, begun[client][1])
        if not server.has_keys:
            yield Ending(4 ** len(first), (), server, {}, None)
            continue
        shared = {client: begun[client][0].shared(server.public) for client in first}
        for second in subsets(first):
            yield from _after_shares(second, _copy(server), shared)


def _after_shares(
    second: tuple[int, ...], server: SumServer, shared: dict[int, tuple[SumClient, dict[int, bytes]]]
) -> Iterator[Ending]:
    for client in second:
        server.take_sealed(client, shared[client][1])
    if not server.has_shares:
        yield Ending(3 ** len(second), (), server, {}, None)
        return
    masked = {client: shared[client][0].masked(plain_vector(client), server.sealed_for(client)) for client in second}
    for third in subsets(second):
        at_end = _copy(server)
        for client in third:
            at_end.take_vector(client, masked[client][1])
        sent = {client: masked[client][1] for client in third}
        if not at_end.has_vectors:
            yield Ending(2 ** len(third), (), at_end, sent, None)
            continue
        given = {client: masked[client][0].revealed(at_end.stayed, at_end.gone) for client in third}
        for fourth in subsets(third):
            opened = _copy(at_end)
            for client in fourth:
                opened.take_shares(client, *given[client])
            try:
                total: Words | None = opened.opened()
            except InputError:
                total = None
            yield Ending(1, fourth, opened, sent, total)


def _copy(server: SumServer) -> SumServer:
    shares = {owner: dict(given) for owner, given in server.shares.items()}
    return replace(
        server, public=dict(server.public), sealed=dict(server.sealed), stayed=list(server.stayed), shares=shares
    )


@dataclass
class Count:
    """What came of all patterns of n clients.

    Attributes:
        patterns: The number of patterns.
        sums: Those that ended with the exact sum.
        ended: Those that ended without one, as too few clients were left.
        wrong: Those in which neither holds.
        lost_most: The largest number of clients that were lost in a pattern with a sum.
        shown: The patterns after which the server could take all masks off the vector of a single client.
    """

    patterns: int = 0
    sums: int = 0
    ended: int = 0
    wrong: int = 0
    lost_most: int = 0
    shown: int = 0


def counted(n: int) -> Count:
    """Play every pattern of drop-outs of n clients, and compare each sum with that of the plain vectors."""
    count = Count()
    for end in endings(n):
        count.patterns += end.patterns
        enough = len(end.kept) >= needed(n)
        if end.total is None:
            count.ended += end.patterns * (not enough)
            count.wrong += end.patterns * enough
        else:
            exact = sum(plain_vector(client) for client in end.server.stayed)
            right = enough and bool((end.total == exact).all())
            count.sums += end.patterns * right
            count.wrong += end.patterns * (not right)
            count.lost_most = max(count.lost_most, n - len(end.kept))
        count.shown += end.patterns * _shows_a_vector(end)
    return count


def _shows_a_vector(end: Ending) -> bool:
    """Whether a single vector follows from what the server has: without masks, or without those that it can undo."""
    server = end.server
    for client, sent in end.vectors.items():
        plain = plain_vector(client)
        if (sent == plain).all():
            return True
        given = server.shares.get(client, {})
        # Of one that stayed the server gets shares of the seed alone; the masks with other clients remain.
        if len(given) >= server.needed and (sent - mask(server._secret(client), LENGTH, WORD) == plain).all():
            return True
    return False


def without_curves(monkeypatch: pytest.MonkeyPatch, *, shamir: bool) -> None:
    """Let equal work of many patterns be done once.

    Args:
        monkeypatch: Of the test.
        shamir: Whether secrets are made of their shares. Otherwise it is only looked up whose shares they are, and
            checked that there are enough of them.
    """
    from functools import cache

    from fedstrata.flower.secure_sum import client, masking, server

    agreed = cache(masking.agreed_key)
    public = cache(masking.public_of)
    secrets = dict[bytes, tuple[bytes, int]]()

    def shares_of(secret: bytes, needed: int, count: int) -> list[bytes]:
        shares = masking.shares_of(secret, needed, count)
        secrets.update(dict.fromkeys(shares, (secret, needed)))
        return shares

    together = cache(lambda shares: masking.secret_of(list(shares)))

    def secret_of(shares: list[bytes]) -> bytes:
        if shamir:
            return together(tuple(shares))
        (found,) = {secrets[share] for share in shares}
        assert len(set(shares)) >= found[1]
        return found[0]

    for module in (client, server):
        monkeypatch.setattr(module, "agreed_key", agreed)
        monkeypatch.setattr(module, "public_of", public)
    monkeypatch.setattr(client, "shares_of", shares_of)
    monkeypatch.setattr(server, "secret_of", secret_of)
