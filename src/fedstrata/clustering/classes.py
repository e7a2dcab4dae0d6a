"""Groups of clients by how many classes they hold, and how evenly (AdaCFL, Section 5.3, pre-clustering)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from fedstrata.base.lazy_torch import torch
from fedstrata.clustering.arrays import Array, Numbers, renumbered, require_finite, tensor


def entropy(counts: Numbers) -> float:
    """Entropy of one client's labels: 0 for one class (or no sample), log2(c) for c equal ones (AdaCFL Eq. 4).

    Args:
        counts: The number of samples of each class, (c,), at least 0.

    Returns:
        The entropy in bits.

    Raises:
        ValueError: When a count is negative or not finite.
    """
    samples = tensor(counts).double()
    if samples.ndim != 1 or (samples < 0).any():
        raise ValueError(f"expected counts (c,) of at least 0, found {samples.tolist()}")
    held = require_finite(samples[samples > 0], "counts")
    shares = held / held.sum()
    return max(0.0, -float((shares * shares.log2()).sum()))


def entropy_groups(
    classes: Array | Sequence[int] | Sequence[Collection[int]],
    entropies: Array | Sequence[float],
    width: float = 0.1,
) -> torch.Tensor:
    """Group clients that hold equally many classes with nearly the same entropy.

    The paper compares the number of classes, not which they are: two clients with two other classes each may be
    grouped, and their weights tell them apart later. It says "a gap of 10 %" and not of what. Here clients are
    sorted by entropy, and one opens a new group when its entropy exceeds (1 + width) times that of the group's
    first client, which bounds how far the members of a group differ.

    Args:
        classes: The number of classes that each client holds, m integers; or the classes themselves, m collections.
        entropies: The label entropy of each client, (m,) bits.
        width: The relative gap, at least 0.

    Returns:
        (m,) int64 labels, numbered by the smallest member of each group.

    Raises:
        ValueError: When the lengths differ, or width or an entropy is negative or not finite.
    """
    numbers = _numbers(classes)
    bits = require_finite(tensor(entropies).double(), "entropies").tolist()
    if len(bits) != len(numbers) or min(bits, default=0.0) < 0 or not width >= 0:
        raise ValueError(
            f"expected an entropy of at least 0 for each of {len(numbers)} clients and a width of at least 0, "
            f"found {len(bits)} of at least {min(bits, default=0.0)} and {width}"
        )
    labels = [0] * len(bits)
    last: dict[int, tuple[float, int]] = {}  # number of classes -> entropy and id of the group's first client
    for client in sorted(range(len(bits)), key=lambda row: (bits[row], row)):
        level, opener = last.get(numbers[client], (bits[client], client))
        if bits[client] > (1 + width) * level:
            level = bits[client]
            opener = client
        labels[client] = opener
        last[numbers[client]] = (level, opener)
    return torch.from_numpy(renumbered(labels))


def _numbers(classes: Array | Sequence[int] | Sequence[Collection[int]]) -> list[int]:
    if isinstance(classes, Sequence):
        return [np.unique(list(held)).size if isinstance(held, Collection) else int(held) for held in classes]
    if classes.ndim != 1:
        raise ValueError(f"expected numbers of classes (m,) or m collections, found shape {tuple(classes.shape)}")
    return [int(held) for held in classes]
