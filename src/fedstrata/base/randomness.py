"""Random numbers that depend on their purpose, and never on the order of calls."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from threading import RLock
from typing import Any
from zlib import crc32

import numpy as np

from fedstrata.base.lazy_torch import torch

_GLOBAL_GENERATORS = RLock()


@contextmanager
def global_generators(**devices: Any) -> Iterator[None]:
    """Keep the global generators of torch, numpy and Python: after the block they are as they were before.

    Dropout and a user's own functions draw from them. So runs in several threads take turns here.

    Args:
        devices: The devices besides the CPU, as `torch.random.fork_rng` takes them.
    """
    with _GLOBAL_GENERATORS, torch.random.fork_rng(**{"devices": [], **devices}):
        of_python, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  # a user's code draws from it
        try:
            yield
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)  # noqa: NPY002


def seed_global_generators(seed: int) -> None:
    """Seed the global generators of torch on the CPU, of numpy and of Python with a number of 63 bits."""
    torch.default_generator.manual_seed(seed)
    seed_numpy_and_python(seed)


def seed_numpy_and_python(seed: int) -> None:
    """Seed the global generators of numpy and of Python, from which only a user's own code draws."""
    np.random.seed(seed % 2**32)  # noqa: NPY002
    random.seed(seed)


def draws_of_numpy_and_python() -> tuple[float, float]:
    """The next numbers of the global generators of numpy and of Python."""
    return float(np.random.random()), random.random()  # noqa: NPY002


def seed_of(seed: int, stream: str, round: int = 0, client: int = 0) -> int:
    """A 63-bit seed from all four values. So a client draws the same numbers whichever clients take part."""
    first, second = random_words(2, seed, stream, round, client)
    return first << 31 ^ second


def random_words(count: int, seed: int, stream: str, round: int = 0, client: int = 0) -> list[int]:
    """So many numbers of 32 bits from the four values of `seed_of`."""
    found = np.random.SeedSequence([seed, crc32(stream.encode()), round, client]).generate_state(count, np.uint32)
    words: list[int] = found.tolist()
    return words


def model_seed(seed: int, start: int = 0) -> int:
    """The seed of the values of a network that are not sent: wherever it is made, its fixed tensors are the same.

    Args:
        seed: The seed of the experiment.
        start: The number of the first model, where an algorithm begins with several.
    """
    return seed_of(seed, "model", client=start)


def secret_generator(secret: int, purpose: tuple[object, ...], hidden: bytes | memoryview = b"") -> np.random.Generator:
    """A new generator for one purpose, from all bits of a secret. A seed of torch's has 32, which can be tried out.

    Args:
        secret: The secret.
        purpose: Texts and numbers that name the purpose.
        hidden: Bytes with whose every change all random numbers change.
    """
    digest = blake2b(key=f"{secret:x}".encode(), digest_size=32)
    digest.update(repr(purpose).encode())
    digest.update(hidden)
    words = np.frombuffer(digest.digest(), dtype="<u4").tolist()
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(words, pool_size=8)))


def generator(seed: int, stream: str, round: int = 0, client: int = 0) -> torch.Generator:
    """A new torch generator for one purpose."""
    return torch.Generator().manual_seed(seed_of(seed, stream, round, client))
