"""Random numbers as a function of what they are for, never of the order of calls."""

from __future__ import annotations

from zlib import crc32

import numpy as np

from fedstrata.lazy_torch import torch


def seed_of(seed: int, stream: str, round: int = 0, client: int = 0) -> int:
    """A 63-bit seed that depends on all four; the same clients draw the same whoever else takes part."""
    words = np.random.SeedSequence([seed, crc32(stream.encode()), round, client]).generate_state(2, np.uint32)
    return int(words[0]) << 31 ^ int(words[1])


def generator(seed: int, stream: str, round: int = 0, client: int = 0) -> torch.Generator:
    """A torch generator of its own for one purpose."""
    return torch.Generator().manual_seed(seed_of(seed, stream, round, client))
