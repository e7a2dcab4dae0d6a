"""The batches of many clients: which clients step together, and the samples that they read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from fedstrata.engine.client_data import ClientData

_SAMPLES_AT_ONCE = 4096
"""Samples that are normalised together."""


@dataclass(frozen=True)
class Step:
    """One step of some clients.

    Attributes:
        clients: The rows of the clients, ascending.
        column: The column of `arrange` in which their samples begin.
        size: The number of samples of each client.
    """

    clients: Sequence[int]
    column: int
    size: int

    @property
    def whole(self) -> bool:
        """Whether they are the first clients, without a gap between them."""
        return self.clients[-1] == len(self.clients) - 1


def full_batches_and_rest(samples: int, batch: int) -> tuple[int, int]:
    """The number of full batches, and the samples of the shorter last one. Batch 0 is all samples at once."""
    return divmod(samples, batch) if batch else (0, samples)


def epoch_steps(sizes: Sequence[int], batch: int, least: int = 1) -> Iterator[Step]:
    """The steps of an epoch. Every client takes its own batches in order, and does not wait in steps of others.

    Args:
        sizes: The number of samples of each client, sorted by `full_batches_and_rest`, the largest first.
        batch: The samples of a step; 0 is all at once.
        least: The number of samples that a step needs.
    """
    parts = [full_batches_and_rest(size, batch) for size in sizes]
    if batch >= least:
        for step in range(parts[0][0]):
            yield Step(range(sum(full > step for full, _ in parts)), step * batch, batch)
    for size in sorted({tail for _, tail in parts if tail >= least}, reverse=True):
        yield Step([row for row, (_, tail) in enumerate(parts) if tail == size], parts[0][0] * batch, size)


def arrange(orders: Sequence[Tensor], batch: int) -> Tensor:
    """A table of the samples of some clients: full batches from the left, last batches in columns of their own.

    Args:
        orders: The samples of each client in their order, (..., s) each, sorted as for `epoch_steps`.
        batch: The samples of a step.

    Returns:
        The table (clients, ..., columns), which is 0 beyond a client's samples.
    """
    if len({order.shape[-1] for order in orders}) == 1:
        return torch.stack(list(orders))  # all have their last batch in the same columns
    parts = [full_batches_and_rest(order.shape[-1], batch) for order in orders]
    edge = parts[0][0] * batch
    table = orders[0].new_zeros(len(orders), *orders[0].shape[:-1], edge + max(tail for _, tail in parts))
    for row, order, (full, tail) in zip(table, orders, parts, strict=True):
        row[..., : full * batch] = order[..., : full * batch]
        row[..., edge : edge + tail] = order[..., full * batch :]
    return table


def undo_arrange(row: Tensor, size: int, batch: int, edge: int) -> Tensor:
    """The values of one client's samples, (size,), from a row of a table as `arrange` makes it.

    Args:
        row: The row, (columns,).
        size: The number of samples of the client.
        batch: The samples of a step.
        edge: The column in which the last batches begin.
    """
    full, tail = full_batches_and_rest(size, batch)
    return torch.cat([row[: full * batch], row[edge : edge + tail]])


def chunks(count: int, most: int) -> Iterator[slice]:
    """Cut rows into the fewest chunks of limited length, all about equally long."""
    parts = -(-count // most)
    edges = [part * count // parts for part in range(parts + 1)]
    return (slice(start, stop) for start, stop in pairwise(edges))


class SampleSource(Protocol):
    """The owner of some samples: the clients' data, or a copy of them on a device."""

    def samples(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs (s, ...) float32 and labels (s,) of some samples."""


class Resident:
    """All samples of clients, normalised once and kept on a device.

    Args:
        client_data: The data of all clients.
        device: The device.
    """

    def __init__(self, client_data: ClientData, device: torch.device) -> None:
        """Copy the samples."""
        clients = range(len(client_data))
        splits = ("test", "validation") if client_data.validates else ("test",)
        held = (client_data.held_out(client, split) for split in splits for client in clients)
        index = torch.cat([client_data.train(len(client_data)), *held])
        self._place = torch.full((int(index.max()) + 1,), -1).scatter_(0, index, torch.arange(len(index))).to(device)
        blocks = [client_data.samples(block) for block in index.split(_SAMPLES_AT_ONCE)]
        # The channels are last, so that rows of the table are copied whole.
        inputs = [found.permute(0, 2, 3, 1).contiguous() if found.ndim == 4 else found for found, _ in blocks]
        self._inputs = torch.cat([found.to(device) for found in inputs])
        self._labels = torch.cat([labels.to(device) for _, labels in blocks])

    def samples(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs (s, ...) float32 and labels (s,) of some samples, whose index is on the device."""
        place = self._place[index]
        inputs = self._inputs.index_select(0, place)
        return inputs.permute(0, 3, 1, 2) if inputs.ndim == 4 else inputs, self._labels[place]


def read_samples(source: SampleSource, index: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs (g, b, ...) and labels (g, b) of the samples of some clients, (g, b)."""
    inputs, labels = source.samples(index.flatten())
    return inputs.unflatten(0, index.shape), labels.unflatten(0, index.shape)
