"""Who takes part in a round: a pure function of (seed, round), the same for every algorithm."""

from __future__ import annotations

import torch

from fedstrata.randomness import generator


def draw(
    seed: int, round: int, clients: torch.Tensor, fraction: float, dropout: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw a cohort, and those of it that never answer.

    Args:
        seed: of the run.
        round: counted from 1.
        clients: ids of those that could take part, ascending (a,) int64.
        fraction: of the clients that is asked, in (0, 1]; at least one client.
        dropout: share of the cohort that never answers, in [0, 1).

    Returns:
        Cohort and absent clients, ascending ids, the second a part of the first.
    """
    size = min(len(clients), max(1, round_half_up(fraction * len(clients))))
    cohort = clients[torch.randperm(len(clients), generator=generator(seed, "cohort", round))[:size].sort().values]
    lost = torch.randperm(size, generator=generator(seed, "dropout", round))[: round_half_up(dropout * size)]
    return cohort, cohort[lost].sort().values


def round_half_up(value: float) -> int:
    """The nearest integer; Python's own rounding would take 2.5 to 2."""
    return int(value + 0.5)
