"""Which clients step together, on which of their samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor


@dataclass(frozen=True)
class Step:
    """One step of some clients.

    Attributes:
        clients: their rows, ascending.
        column: where their samples begin in what `arrange` returns.
        size: samples of each.
    """

    clients: Sequence[int]
    column: int
    size: int

    @property
    def whole(self) -> bool:
        """Whether they are the first ones, nobody left out between them."""
        return self.clients[-1] == len(self.clients) - 1


def split(samples: int, batch: int) -> tuple[int, int]:
    """Number of full batches, and samples of the shorter last one; batch 0 is all the samples at once."""
    return divmod(samples, batch) if batch else (0, samples)


def epoch_steps(sizes: Sequence[int], batch: int, least: int = 1) -> Iterator[Step]:
    """The steps of an epoch; every client takes its own batches in order, and nobody waits in a step of others.

    Args:
        sizes: samples of each client, sorted by `split`, the largest first.
        batch: samples of a step; 0 is all at once.
        least: samples without which there is no step.
    """
    parts = [split(size, batch) for size in sizes]
    if batch >= least:
        for step in range(parts[0][0]):
            yield Step(range(sum(full > step for full, _ in parts)), step * batch, batch)
    for size in sorted({tail for _, tail in parts if tail >= least}, reverse=True):
        yield Step([row for row, (_, tail) in enumerate(parts) if tail == size], parts[0][0] * batch, size)


def arrange(orders: Sequence[Tensor], batch: int) -> Tensor:
    """The samples of some clients side by side: full batches from the left, the last ones in columns of their own.

    Args:
        orders: the samples of each client in their order, (..., s) each; sorted as `epoch_steps` wants them.
        batch: samples of a step.

    Returns:
        (clients, ..., columns); what is beyond a client's samples is 0.
    """
    parts = [split(order.shape[-1], batch) for order in orders]
    edge = parts[0][0] * batch
    table = orders[0].new_zeros(len(orders), *orders[0].shape[:-1], edge + max(tail for _, tail in parts))
    for row, order, (full, tail) in zip(table, orders, parts, strict=True):
        row[..., : full * batch] = order[..., : full * batch]
        row[..., edge : edge + tail] = order[..., full * batch :]
    return table


def restore(row: Tensor, size: int, batch: int, edge: int) -> Tensor:
    """What `arrange` made of one client's samples, in their order again, (size,).

    Args:
        row: (columns,).
        size: samples of this client.
        batch: samples of a step.
        edge: column where the last batches begin.
    """
    full, tail = split(size, batch)
    return torch.cat([row[: full * batch], row[edge : edge + tail]])


def chunks(count: int, most: int) -> Iterator[slice]:
    """Cut so many rows into as few chunks as may be, about equally long."""
    parts = -(-count // most)
    edges = [part * count // parts for part in range(parts + 1)]
    return (slice(start, stop) for start, stop in pairwise(edges))
