"""How far apart groups stand in a matrix, when a split into two is provably right, and the split around one client.

LayerCFL Eq. 9, 10, 21 and 22 (gaps), Theorem 1 (Sattler, Mueller and Samek, "Clustered federated learning", 2020), and
the reference split of HiCFL (Eq. 17 and 18).
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from fedstrata.base.lazy_torch import torch
from fedstrata.clustering.arrays import Array, Numbers, renumbered, require_finite, square, tensor
from fedstrata.clustering.similarity import cosine_of


def gap(matrix: Array, truth: Numbers, kind: Literal["similarity", "distance"]) -> float:
    """How far pairs within a group stand above all pairs across groups; positive when the groups separate.

    Gap1 of similarities is the least within minus the largest across; Gap2 of distances is the least across minus
    the largest within. A group of one client has no pair within; where no group has one, the least similarity
    within is 1 and the largest distance within 0.

    Args:
        matrix: The similarities or distances, (m, m), symmetric. The diagonal is not read.
        truth: The group of each client, (m,) integers. Each negative one is a group of its own.
        kind: What the matrix holds: ``"similarity"`` or ``"distance"``.

    Returns:
        The gap, in the matrix's unit; nan when no pair is of two groups.

    Raises:
        ValueError: When the shapes differ, an entry is not finite, or the kind is another.
    """
    if kind not in ("similarity", "distance"):
        raise ValueError(f"expected kind 'similarity' or 'distance', found {kind!r}")
    values = square(matrix)
    groups = renumbered(truth)
    if len(values) != len(groups):
        raise ValueError(f"expected one label for each of {len(values)} rows, found {len(groups)}")
    pairs = np.triu(np.ones(values.shape, dtype=np.bool_), 1)
    same = groups[:, None] == groups
    within = values[pairs & same]
    across = values[pairs & ~same]
    if not across.size:
        return math.nan
    if kind == "similarity":
        return float((within.min() if within.size else 1.0) - across.max())
    return float(across.min() - (within.max() if within.size else 0.0))


def theorem_1_bound(cross_max: float) -> float:
    """The relative noise below which a bipartition is provably right: sqrt((1 - cross_max) / 2) (LayerCFL Eq. 20).

    Args:
        cross_max: The largest cosine across the two groups; one above 1, by rounding, counts as 1.
    """
    return math.sqrt(max(0.0, 1 - float(cross_max)) / 2)


def reference_split(updates: Array, stability: Array) -> tuple[int, torch.Tensor]:
    """Split clients by the sign of their cosine to the steadiest of them.

    A client that did not move (norm at most 1e-12) has no direction: it is the reference only if nobody moved, and
    otherwise it goes with the rest, as does a client at a right angle.

    Args:
        updates: The updates of one round, (m, p).
        stability: The mean stability of each client over its window, (m,). Small values mean stable.

    Returns:
        The reference's row (the lowest of equals), and whether each client goes with it, (m,) bool; the reference
        does.

    Raises:
        ValueError: When there is no client, the lengths differ, or a number is not finite.
    """
    values = require_finite(tensor(stability).double(), "stability").reshape(-1)
    if not len(values) or len(values) != len(updates):
        raise ValueError(
            f"expected a stability for each of at least one update, found {len(values)} for {len(updates)}"
        )
    rows = torch.arange(len(updates))
    moved = cosine_of(updates, rows, rows) > 0
    reference = int(values.where(moved.to(values.device), torch.inf).argmin())  # Eq. 17
    together = cosine_of(updates, torch.full_like(rows, reference), rows) > 0  # Eq. 18
    together[reference] = True
    return reference, together
