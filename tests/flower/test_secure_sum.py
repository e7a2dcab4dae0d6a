"""A secure sum: exact or not opened, whoever is lost and when; and no step gives an update away."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from drop_outs import Count, counted, needed, without_curves
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from fedstrata.base.errors import InputError
from fedstrata.flower.secure_sum.client import PublicKeys, SumClient
from fedstrata.flower.secure_sum.masking import PUBLIC_BYTES, Words, mask, secret_of, shares_of, unsealed
from fedstrata.flower.secure_sum.server import SumServer, signed, without_room, word_for


@pytest.mark.parametrize("n", [2, 3, 4])
def test_every_pattern_of_drop_outs_gives_the_exact_sum_or_none(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    without_curves(monkeypatch, shamir=True)
    assert_exact_or_none(n, counted(n))


@pytest.mark.parametrize("n", [5, 6, pytest.param(7, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)])
def test_every_pattern_of_drop_outs_of_more_clients_likewise(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of these, secrets are not put together: `experiments/trust/secure_sums.py` does that as well."""
    without_curves(monkeypatch, shamir=False)
    assert_exact_or_none(n, counted(n))


def assert_exact_or_none(n: int, count: Count) -> None:
    lost = n - needed(n)
    assert lost == n // 3
    assert count.patterns == 5**n and count.wrong == count.shown == 0
    # So many patterns keep enough clients to the end; the others are lost in one of four steps.
    assert count.sums == sum(_choose(n, k) * 4**k for k in range(lost + 1))
    assert count.ended == 5**n - count.sums and count.lost_most == lost


def _choose(n: int, k: int) -> int:
    return 1 if k == 0 else _choose(n, k - 1) * (n - k + 1) // k


N, NEEDED = 4, 3


def begun(n: int = N) -> tuple[dict[int, SumClient], dict[int, PublicKeys]]:
    made = {client: SumClient.begun("sum", 1, client, range(n), NEEDED, 32) for client in range(n)}
    return {client: each for client, (each, _) in made.items()}, {client: keys for client, (_, keys) in made.items()}


def shared() -> tuple[dict[int, SumClient], dict[int, dict[int, bytes]]]:
    clients, public = begun()
    made = {client: each.shared(public) for client, each in clients.items()}
    return {client: each for client, (each, _) in made.items()}, {client: sent for client, (_, sent) in made.items()}


def received(sent: dict[int, dict[int, bytes]], client: int) -> dict[int, bytes]:
    return {source: sealed[client] for source, sealed in sent.items() if source != client}


VECTOR = np.arange(6, dtype=np.uint32)


def masked() -> tuple[dict[int, SumClient], dict[int, Words]]:
    clients, sent = shared()
    made = {client: each.masked(VECTOR, received(sent, client)) for client, each in clients.items()}
    return {client: each for client, (each, _) in made.items()}, {client: words for client, (_, words) in made.items()}


def test_a_client_gives_no_two_shares_of_one_client() -> None:
    clients, _ = masked()
    for stayed, gone in (([0, 1, 2, 3], [3]), ([0, 1, 2], []), ([1, 2, 3], [0]), ([0, 1], [2, 3])):
        with pytest.raises(InputError):
            clients[0].revealed(stayed, gone)
    seeds, keys = clients[0].revealed([0, 1, 2], [3])
    assert set(seeds) == {0, 1, 2} and set(keys) == {3}


def test_no_step_is_done_twice_or_too_early() -> None:
    clients, public = begun()
    with pytest.raises(InputError, match="after the step 'shares', found one after 'keys'"):
        clients[0].masked(VECTOR, {})
    after, sent = shared()
    with pytest.raises(InputError, match="after the step 'keys'"):
        after[0].shared(public)
    with pytest.raises(InputError, match="after the step 'masked'"):
        after[0].revealed([0, 1, 2, 3], [])
    done, _ = after[0].masked(VECTOR, received(sent, 0))
    with pytest.raises(InputError, match="after the step 'shares', found one after 'masked'"):
        done.masked(VECTOR + np.uint32(1), received(sent, 0))


def test_keys_that_are_not_what_they_should_be_are_refused() -> None:
    clients, public = begun()
    other = begun()[1]
    for wrong in (
        {**public, 0: other[0]},  # not its own
        {**public, 1: public[2]},  # of two clients
        {**public, 7: other[1]},  # of somebody else
        {client: public[client] for client in (0, 1)},  # too few
    ):
        with pytest.raises(InputError):
            clients[0].shared(wrong)
    with pytest.raises(InputError, match="expected a public key"):
        clients[0].shared({**public, 1: PublicKeys(b"x", b"y")})


def test_shares_that_were_exchanged_or_changed_are_refused() -> None:
    clients, sent = shared()
    mine = received(sent, 0)
    for wrong in ({**mine, 1: mine[2]}, {**mine, 1: sent[1][2]}, {**mine, 1: mine[1][:-4] + b"AAA="}):
        with pytest.raises(InputError, match="expected shares of client 1"):
            clients[0].masked(VECTOR, wrong)
    with pytest.raises(InputError, match="at least 3"):
        clients[0].masked(VECTOR, {1: mine[1]})


def test_a_sum_needs_its_client_and_enough_different_others() -> None:
    for members, least in (((1, 2, 3), 2), ((0, 0, 1), 2), ((0, 1), 3), ((0, 1), 1)):
        with pytest.raises(InputError):
            SumClient.begun("sum", 1, 0, members, least, 32)


def test_the_server_takes_only_what_belongs_to_the_sum() -> None:
    _, words = masked()
    _, public = begun()
    server = SumServer("sum", tuple(range(N)), NEEDED, 32, len(VECTOR), public=dict(public))
    with pytest.raises(InputError):
        server.take_sealed(0, {1: b""})
    for client in range(N):
        server.take_sealed(client, {other: b"" for other in range(N) if other != client})
    server.take_vector(0, words[0])
    with pytest.raises(InputError):
        server.take_vector(0, words[0])
    for client in (1, 2):
        server.take_vector(client, words[client])
    with pytest.raises(InputError):
        server.take_shares(3, {0: b""}, {})
    with pytest.raises(InputError, match="found 0"):
        server.opened()
    server.shares = {client: {giver: b"1234" + bytes(48) for giver in (0, 1, 2)} for client in range(N)}
    with pytest.raises(InputError, match="shares of one secret"):
        server.opened()


def test_the_server_takes_only_keys_that_every_client_accepts() -> None:
    """All clients refuse a list of keys in which one is none, or is there twice."""
    _, public = begun()
    own = public[1]
    server = SumServer("sum", tuple(range(N)), NEEDED, 32, len(VECTOR))
    server.take_keys(0, public[0])
    for wrong in (
        PublicKeys(own.masks, own.masks),
        PublicKeys(public[0].shares, own.shares),  # of another client
        PublicKeys(bytes(PUBLIC_BYTES), own.shares),
        PublicKeys(own.masks, other_curve().ljust(PUBLIC_BYTES)),
        PublicKeys(own.masks, own.shares.replace(b"\n", b" ", 1)),
    ):
        with pytest.raises(InputError):
            server.take_keys(1, wrong)
    server.take_keys(1, own)
    assert set(server.public) == {0, 1}


def other_curve() -> bytes:
    """A public key of P-256."""
    return public_key_to_bytes(ec.generate_private_key(ec.SECP256R1()).public_key())


@pytest.mark.parametrize("size", [16, 47])
def test_a_secret_of_another_length_opens_no_sum(size: int) -> None:
    """A client that changes the padding in its share changes the length of the secret."""
    clients, words = masked()
    server = SumServer("sum", tuple(range(N)), NEEDED, 32, len(VECTOR), public=dict(clients[0].public))
    for client in range(N):
        server.sealed[client] = {}
        server.take_vector(client, words[client])
    server.shares = {client: dict(enumerate(shares_of(clients[client].seed, NEEDED, N))) for client in range(N)}
    assert (server.opened() == N * VECTOR).all()
    server.shares[3] = dict(enumerate(shares_of(bytes(size), NEEDED, N)))
    with pytest.raises(InputError, match=f"expected a secret of client 3 of 32 bytes, found {size}"):
        server.opened()


def test_a_vector_is_masked_evenly_and_by_secrets_that_nobody_else_has() -> None:
    clients, words = masked()
    assert len({words[client].tobytes() for client in range(N)}) == N
    for client in range(N):
        assert not (words[client] - mask(clients[client].seed, 6, 32) == VECTOR).any()
    stream = mask(bytes(32), 4096, 32)
    bits = np.unpackbits(stream.view(np.uint8)).mean()
    assert abs(bits - 0.5) < 0.005  # 131,072 bits: 3.6 standard deviations
    # The first block of AES-256 with this key and counter, FIPS 197 and SP 800-38A.
    assert stream[:4].tobytes().hex() == "dc95c078a2408989ad48a21492842087"


def test_fewer_shares_than_needed_give_no_secret() -> None:
    secret = bytes(range(32))
    shares = shares_of(secret, 3, 4)
    assert secret_of(shares[1:]) == secret
    with suppress(InputError):  # What comes out seldom has the form of a secret.
        assert secret_of(shares[:2]) != secret


def test_shares_are_sealed_for_one_client() -> None:
    _, sent = shared()
    with pytest.raises(InputError, match="expected shares of client 1"):
        unsealed(b"A" * 43 + b"=", 1, 2, sent[1][2])


def test_what_a_device_knows_survives_as_text() -> None:
    clients, _ = masked()
    for client in clients.values():
        assert SumClient.from_json(json.loads(client.to_json())) == replace(client)


def test_numbers_have_room_for_every_sum() -> None:
    assert word_for(2**15 - 1, 20, 500) == 32 and 20 * 500 * (2**15 - 1) < 2**31
    assert word_for(2**15 - 1, 200, 500) == 64
    with pytest.raises(InputError, match=r"lower privacy\.sum_bits"):
        word_for(2**23, 2**20, 2**20)
    # Clients whose weights have no room are named, the largest weights first.
    assert without_room(2**15 - 1, {0: 32, 1: 2**62, 2: 2**50, 3: 32}) == [1, 2]
    assert without_room(2**15 - 1, {0: 32, 1: 2**40}) == without_room(2**15 - 1, {}) == []
    assert signed(np.array([2**32 - 1, 3], dtype=np.uint32), 32).tolist() == [-1, 3]
