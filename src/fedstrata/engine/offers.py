"""What a client does with the models that it is offered, whichever engine computes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch


def overlaid(row: torch.Tensor, kept: Mapping[int, torch.Tensor], spans: Sequence[slice]) -> torch.Tensor:
    """A model (p,) with some tensors replaced by a client's own."""
    row = row.clone() if kept else row
    for tensor, values in kept.items():
        row[spans[tensor]] = values
    return row


def wrongness(by: str, correct: int, loss: float, samples: int) -> float:
    """How wrong a model is, as `LocalTask.selection_metric` has it, by its correct samples and its mean loss."""
    return loss if by == "loss" else 1 - correct / samples


def least_wrong(offers: torch.Tensor, losses: torch.Tensor) -> int:
    """The offered model that is least wrong, the first on a tie; one that leads to no number is the last.

    Args:
        offers: indices of models, (c,); -1 for none.
        losses: how wrong each is, (c,); nan where nothing had to be chosen.
    """
    worth = torch.where(offers >= 0, losses.nan_to_num(torch.finfo(losses.dtype).max), torch.inf)
    return int(offers[worth.argmin()])
