"""Splitting around the steadiest row, from how each row's updates turn from round to round.

HiCFL, Eq. 14 (stability), 17 and 18 (reference split).
"""

from __future__ import annotations

from fedstrata.clustering.arrays import Array, require_finite, tensor
from fedstrata.clustering.similarity import cosine_of
from fedstrata.lazy_torch import torch


def stability(updates: Array) -> torch.Tensor:
    """How unsteadily one client's updates turn; the smaller, the more stable.

    S_t = |(T_t + T_(t-1)) / 2 - T_(t-2~t)|, where T_t is the cosine of updates t - 1 and t, and T_(t-2~t) that of
    updates t - 2 and t. (Eq. 16, the same written out, lacks the 1/2.) An update of norm at most 1e-12 has
    cosine 0.

    Args:
        updates: one client's updates in the order of rounds, (t, p).

    Returns:
        S of the third round and later, (t - 2,) float64 in [0, 2]; empty for fewer than three rounds.

    Raises:
        ValueError: when the updates are no matrix, or the norm of one is not finite.
    """
    rounds = torch.arange(len(updates))
    turns = cosine_of(updates, rounds[:-1], rounds[1:])
    across = cosine_of(updates, rounds[:-2], rounds[2:])
    return ((turns[1:] + turns[:-1]) / 2 - across).abs()  # Eq. 14


def reference_split(updates: Array, stability: Array) -> tuple[int, torch.Tensor]:
    """Split clients by the sign of their cosine to the steadiest of them.

    A client that did not move (norm at most 1e-12) has no direction: it is the reference only if nobody moved, and
    otherwise it goes with the rest, as does a client at a right angle.

    Args:
        updates: this round's updates, (m, p).
        stability: of each client, (m,), the smaller the steadier; the mean over its window.

    Returns:
        The reference's row (the lowest of equals), and whether each client goes with it, (m,) bool; the reference
        does.

    Raises:
        ValueError: when there is no client, the lengths differ, or a number is not finite.
    """
    steadiness = require_finite(tensor(stability).double(), "stability").reshape(-1)
    if not len(steadiness) or len(steadiness) != len(updates):
        raise ValueError(
            f"expected a stability for each of at least one update, found {len(steadiness)} for {len(updates)}"
        )
    rows = torch.arange(len(updates))
    moved = cosine_of(updates, rows, rows) > 0
    reference = int(steadiness.where(moved.to(steadiness.device), torch.inf).argmin())  # Eq. 17
    together = cosine_of(updates, torch.full_like(rows, reference), rows) > 0  # Eq. 18
    together[reference] = True
    return reference, together
