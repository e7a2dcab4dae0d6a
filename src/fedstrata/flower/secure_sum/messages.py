"""The messages of a secure sum: what each step asks a client, and what an honest reply keeps to.

Keys, shares and masked vectors travel as arrays. The step in which clients train is a request as any other, with the
shares of the other clients along with it; its reply has a masked vector in place of the update.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedstrata.base.errors import InputError
from fedstrata.flower.payload import ArrayForm, ExpectedReply, Payload, Schema
from fedstrata.flower.secure_sum.client import PublicKeys
from fedstrata.flower.secure_sum.masking import KEY_SHARE_BYTES, PUBLIC_BYTES, SEALED_BYTES, SEED_SHARE_BYTES, Words

SUM = "query.sum"
"""The type of the messages of a sum beside the one in which clients train. `client_app` has a function for it."""

_PART = "sum"
"""The name of the record and of the arrays of a sum in a payload."""

_BAD_SHARES = "bad_shares"
"""The name of the record of a client that cannot open the shares of others."""

_NOT_FINITE = "not_finite"
"""The name of the record of a client whose update is not finite."""


@dataclass(frozen=True)
class SumRequest:
    """What a step of a sum asks a client, beside arrays.

    Attributes:
        step: "keys", "shares", "masked" or "revealed": what the client is to send.
        name: The name of the sum.
        round: The round.
        client: The id of the client.
        clients: The clients that the step is about: the members of the sum, those that sent keys, those that sent
            shares, or those whose vectors came.
        gone: In the last step, those that sent shares and no vector.
        word: The bits of the numbers of the sum.
        max_weight: The largest weight of a client.
    """

    step: str
    name: str
    round: int
    client: int
    clients: tuple[int, ...]
    gone: tuple[int, ...] = ()
    word: int = 32
    max_weight: int = 0


_REQUEST = Schema(SumRequest)


def write_sum_request(request: SumRequest, arrays: Mapping[str, Tensor] | None = None) -> Payload:
    """Write what a step asks."""
    return Payload({_PART: _REQUEST.write(request)}, {_PART: arrays} if arrays else {})


def read_sum_request(payload: Payload) -> SumRequest:
    """Read what a step asks.

    Raises:
        InputError: When it is not there.
    """
    request = _REQUEST.read(payload.record(_PART))
    if request.word not in (32, 64):
        raise InputError(f"expected numbers of 32 or 64 bits, found {request.word}")
    return request


def asks_for_sum(payload: Payload) -> bool:
    """Whether a request for work is a step of a sum."""
    return _PART in payload.records


def arrays_of(payload: Payload) -> Mapping[str, Tensor]:
    """The arrays of a sum in a payload."""
    return payload.arrays.get(_PART, {})


def expected_arrays(arrays: Mapping[str, tuple[int, ...]], dtype: str = "uint8") -> ExpectedReply:
    """What the reply to a step may hold that asks for nothing else."""
    forms = {name: ArrayForm(shape, dtype) for name, shape in arrays.items()}
    return ExpectedReply(frozenset({"failed"}), {_PART: forms}, 1)


def with_vector(expected: ExpectedReply, length: int, word: int, senders: int) -> ExpectedReply:
    """What the reply to a request for work may hold with a masked vector, or with the reason why there is none."""
    vector = {"vector": ArrayForm((length,), f"int{word}")}
    return ExpectedReply(
        records=expected.records | {_BAD_SHARES, _NOT_FINITE},
        arrays={**expected.arrays, _PART: vector},
        longest=max(expected.longest, senders),
    )


@dataclass(frozen=True)
class _BadShares:
    """Whose shares a client cannot open."""

    senders: tuple[int, ...]


_BAD_SHARES_SCHEMA = Schema(_BadShares)


def write_bad_shares(senders: Sequence[int]) -> Payload:
    """Write whose shares a client cannot open, in place of its masked vector."""
    return Payload({_BAD_SHARES: _BAD_SHARES_SCHEMA.write(_BadShares(tuple(senders)))})


def read_bad_shares(payload: Payload) -> tuple[int, ...]:
    """Read whose shares a client cannot open; nobody's where it says nothing.

    Raises:
        InputError: When they are no list of clients.
    """
    if _BAD_SHARES not in payload.records:
        return ()
    return _BAD_SHARES_SCHEMA.read(payload.record(_BAD_SHARES)).senders


def write_not_finite() -> Payload:
    """Write that a client's update is not finite, in place of its masked vector."""
    return Payload({_NOT_FINITE: {"update": True}})


def says_not_finite(payload: Payload) -> bool:
    """Whether a client says that its update is not finite."""
    return _NOT_FINITE in payload.records


def write_arrays(**arrays: Tensor) -> Payload:
    """Write the arrays that answer a step."""
    return Payload({}, {_PART: arrays})


def read_array(payload: Payload, name: str) -> Tensor:
    """Read an array of a sum.

    Raises:
        InputError: When it is not there.
    """
    found = arrays_of(payload)
    if name not in found:
        raise InputError(f"expected the array {name} of a sum, found {', '.join(sorted(found)) or 'none'}")
    return found[name]


def public_array(keys: Sequence[PublicKeys]) -> Tensor:
    """Public keys as an array, (m, 2, bytes) uint8."""
    return torch.stack([bytes_array([each.masks, each.shares], PUBLIC_BYTES) for each in keys])


def public_of_array(array: Tensor) -> list[PublicKeys]:
    """The public keys of such an array.

    Raises:
        InputError: When it has another shape or type.
    """
    if array.ndim != 3 or array.shape[1] != 2:
        raise InputError(f"expected public keys (m, 2, {PUBLIC_BYTES}), found {tuple(array.shape)}")
    return [PublicKeys(*texts_of_array(pair, PUBLIC_BYTES)) for pair in array]


def bytes_array(texts: Sequence[bytes], size: int) -> Tensor:
    """Texts of one size as an array, (m, size) uint8.

    Raises:
        InputError: When one has another size.
    """
    if any(len(text) != size for text in texts):
        raise InputError(f"expected {size} bytes each, found {sorted({len(text) for text in texts})}")
    return torch.tensor(list(b"".join(texts)), dtype=torch.uint8).reshape(len(texts), size)


def texts_of_array(array: Tensor, size: int) -> list[bytes]:
    """The texts of such an array.

    Raises:
        InputError: When it has another shape or type.
    """
    if array.dtype != torch.uint8 or array.ndim != 2 or array.shape[1] != size:
        raise InputError(f"expected bytes (m, {size}), found {array.dtype} {tuple(array.shape)}")
    return [row.numpy().tobytes() for row in array]


def words_tensor(words: Words) -> Tensor:
    """Numbers modulo 2^32 or 2^64 as a tensor of the same bits, int32 or int64."""
    return torch.from_numpy(words.view(f"i{words.itemsize}").copy())


def words_of_tensor(values: Tensor, word: int) -> Words:
    """The numbers of such a tensor modulo 2^word, or whole numbers modulo 2^word."""
    return values.numpy().astype(f"i{word // 8}").view(f"u{word // 8}")


def by_client(array: Tensor, clients: Sequence[int], size: int) -> dict[int, bytes]:
    """The texts of an array by client.

    Raises:
        InputError: When there is not one for each.
    """
    texts = texts_of_array(array, size)
    if len(texts) != len(clients):
        raise InputError(f"expected bytes for each of {len(clients)} clients, found {len(texts)}")
    return dict(zip(clients, texts, strict=True))


def sealed_array(sealed: Mapping[int, bytes]) -> Tensor:
    """Sealed shares in the order of the clients, (m, bytes) uint8."""
    return bytes_array([sealed[client] for client in sorted(sealed)], SEALED_BYTES)


def shares_arrays(seeds: Mapping[int, bytes], keys: Mapping[int, bytes]) -> dict[str, Tensor]:
    """Shares in the order of the clients; those of keys are left out where there are none."""
    arrays = {"seeds": bytes_array([seeds[client] for client in sorted(seeds)], SEED_SHARE_BYTES)}
    if keys:
        arrays["keys"] = bytes_array([keys[client] for client in sorted(keys)], KEY_SHARE_BYTES)
    return arrays
