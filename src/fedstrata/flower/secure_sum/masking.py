"""The cryptography of secure aggregation, all of it from libraries: Flower's own, and `cryptography`, which it needs.

Flower agrees on keys (ECDH on the curve P-384, HKDF), encrypts (Fernet) and shares secrets (Shamir). Masks are the key
stream of AES-256 in counter mode, as in Bonawitz et al., CCS 2017, Section 3. Flower's own `pseudo_rand_gen` is not
used: it begins from 32 bits of the secret, and whoever tries all of them takes a mask away.
"""

from __future__ import annotations

import os
from base64 import urlsafe_b64decode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedstrata.base.errors import InputError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

Words = NDArray[Any]
"""Numbers modulo 2^32 or 2^64, which numpy adds up without a carry, uint32 or uint64."""

SEED_BYTES = 32
"""The bytes of the seed of a mask: a key of AES-256."""

PRIVATE_BYTES = 48
"""The bytes of a private key of P-384."""

PUBLIC_BYTES = 215
"""The bytes of a public key of P-384, as text."""

SEED_SHARE_BYTES = 52
KEY_SHARE_BYTES = 68
"""The bytes of a share of a seed and of a private key: 4 for its number, then blocks of 16, with padding."""

SEALED_BYTES = 268
"""The bytes of two shares and their addresses, encrypted."""


@dataclass(frozen=True)
class KeyPair:
    """A private key, as a number in 48 bytes, and its public key."""

    private: bytes
    public: bytes

    @classmethod
    def drawn(cls) -> KeyPair:
        """A new pair."""
        from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes

        private, public = generate_key_pairs()
        number = private.private_numbers().private_value
        return cls(number.to_bytes(PRIVATE_BYTES, "big"), public_key_to_bytes(public))


def drawn_seed() -> bytes:
    """The seed of a mask, from the system's own random numbers."""
    return os.urandom(SEED_BYTES)


def check_public_key(public: bytes) -> None:
    """Refuse what is no public key of P-384, as `KeyPair.drawn` writes one.

    Raises:
        InputError: When it is none.
    """
    from cryptography.hazmat.primitives.asymmetric import ec
    from flwr.supercore.primitives.asymmetric import bytes_to_public_key, public_key_to_bytes

    try:
        key = bytes_to_public_key(public)
        sound = isinstance(key.curve, ec.SECP384R1) and public_key_to_bytes(key) == public
    except Exception as error:
        # Bytes from another machine: no key, or one of another kind.
        raise InputError(f"expected a public key of P-384, found {type(error).__name__}") from None
    if not sound:
        raise InputError("expected a public key of P-384, found another one, or one that is written otherwise")


def agreed_key(private: bytes, public: bytes) -> bytes:
    """The key that two clients agree on, of the private key of one and the public key of the other.

    Raises:
        InputError: When the public key is none.
    """
    from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
    from flwr.supercore.primitives.asymmetric import bytes_to_public_key

    try:
        return generate_shared_key(_private_key(private), bytes_to_public_key(public))
    except Exception as error:
        # Bytes from another machine: no key, or one of another curve.
        raise InputError(f"expected a public key of P-384, found {type(error).__name__}") from None


def _private_key(private: bytes) -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.derive_private_key(int.from_bytes(private, "big"), ec.SECP384R1())


def public_of(private: bytes) -> bytes:
    """The public key of a private key.

    Raises:
        InputError: When the bytes are no private key.
    """
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    try:
        return public_key_to_bytes(_private_key(private).public_key())
    except ValueError as error:
        raise InputError(f"expected a private key of P-384, found none: {error}") from None


def mask(seed: bytes, length: int, word: int) -> Words:
    """So many numbers modulo 2^word of a seed, uniform."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import AES
    from cryptography.hazmat.primitives.ciphers.modes import CTR

    # A seed serves for one mask alone, so that the counter may begin at 0.
    stream = Cipher(AES(seed), CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(length * word // 8)), dtype=f"<u{word // 8}").astype(f"u{word // 8}")


def pair_mask(key: bytes, length: int, word: int) -> Words:
    """The mask of two clients that agreed on a key."""
    return mask(urlsafe_b64decode(key), length, word)


def shares_of(secret: bytes, needed: int, count: int) -> list[bytes]:
    """Shares of a secret, so many of which give it back; fewer say nothing about it."""
    from flwr.common.secure_aggregation.crypto.shamir import create_shares

    return create_shares(secret, needed, count)


def secret_of(shares: list[bytes]) -> bytes:
    """The secret of as many shares as are needed.

    Raises:
        InputError: When they are no shares of one secret.
    """
    from flwr.common.secure_aggregation.crypto.shamir import combine_shares

    try:
        return combine_shares(shares)
    except Exception as error:
        raise InputError(f"expected shares of one secret, found others: {error}") from None


def sealed(key: bytes, source: int, target: int, seed_share: bytes, key_share: bytes) -> bytes:
    """Two shares of a client, which only another one can read."""
    from flwr.common.secure_aggregation.crypto.symmetric_encryption import encrypt
    from flwr.common.secure_aggregation.secaggplus_utils import share_keys_plaintext_concat

    return encrypt(key, share_keys_plaintext_concat(source, target, seed_share, key_share))


def unsealed(key: bytes, source: int, target: int, content: bytes) -> tuple[bytes, bytes]:
    """The shares of a seed and of a key that another client sealed.

    Raises:
        InputError: When they are not from this client, or for another one.
    """
    from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt
    from flwr.common.secure_aggregation.secaggplus_utils import share_keys_plaintext_separate

    try:
        found = share_keys_plaintext_separate(decrypt(key, content))
    except Exception as error:
        raise InputError(f"expected shares of client {source}, found {type(error).__name__}") from None
    if found[:2] != (source, target):
        raise InputError(f"expected shares from client {source} for client {target}, found {found[0]} for {found[1]}")
    return found[2], found[3]
