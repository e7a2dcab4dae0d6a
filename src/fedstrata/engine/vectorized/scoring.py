"""The scores of models on samples, of many models and clients at a time."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedstrata.engine.device import to_device
from fedstrata.engine.loop import EVALUATION_BATCH
from fedstrata.engine.vectorized.batches import (
    SampleSource,
    arrange,
    chunks,
    epoch_steps,
    full_batches_and_rest,
    read_samples,
    undo_arrange,
)
from fedstrata.engine.vectorized.network import Network


@dataclass(frozen=True, eq=False)
class EvalRequest:
    """The request to score one model on some samples.

    Attributes:
        network: The network of the model.
        model: The identity of the model. The samples of all requests for one model are computed together.
        row: The model, (p,).
        source: The source of the samples, the same for all requests for a model.
        index: The samples, (s,), at least one.
    """

    network: Network
    model: Hashable
    row: Tensor
    source: SampleSource
    index: Tensor


@dataclass(frozen=True)
class _Chunk:
    """The losses, weights and hits of some models on their samples, in tables as `arrange` makes them.

    Attributes:
        models: The numbers of the requests for each model.
        edge: The column in which the last batches begin.
        losses: The cross-entropy of each sample times its weight, (models, columns).
        weights: The weight of each sample, that of its class, (models, columns).
        hits: Whether each sample is classified correctly, (models, columns).
    """

    models: Sequence[Sequence[int]]
    edge: int
    losses: Tensor
    weights: Tensor
    hits: Tensor


class EvalResults:
    """The samples classified correctly and the mean cross-entropy for each request. `read` waits for the device.

    Args:
        requests: The requests, of any networks.
    """

    def __init__(self, requests: Sequence[EvalRequest]) -> None:
        """Compute."""
        self._sizes = [len(request.index) for request in requests]
        self._chunks = list[_Chunk]()
        networks: dict[str, dict[Hashable, list[int]]] = {}
        for number, request in enumerate(requests):
            networks.setdefault(request.network.identity, {}).setdefault(request.model, []).append(number)
        for models in networks.values():
            ordered = sorted(models.values(), key=self._batches, reverse=True)
            first = requests[ordered[0][0]]
            shown, _ = first.source.samples(to_device(first.index[:1], first.network.device))
            for chunk in chunks(len(ordered), first.network.models_at_once(EVALUATION_BATCH, shown)):
                self._chunks.append(_compute(requests, ordered[chunk]))

    def read(self) -> list[tuple[int, float]]:
        """The samples classified correctly and the mean cross-entropy in nats, of every request."""
        found: dict[int, tuple[int, float]] = {}
        for chunk in self._chunks:
            tables = chunk.losses.cpu().double(), chunk.weights.cpu().double(), chunk.hits.cpu()
            for numbers, *rows in zip(chunk.models, *tables, strict=True):
                sizes = [self._sizes[number] for number in numbers]
                parts = (undo_arrange(row, sum(sizes), EVALUATION_BATCH, chunk.edge).split(sizes) for row in rows)
                for number, loss, weight, hit in zip(numbers, *parts, strict=True):
                    found[number] = int(hit.sum()), float(loss.mean() / weight.mean())
        return [found[number] for number in range(len(self._sizes))]

    def _batches(self, numbers: Sequence[int]) -> tuple[int, int]:
        return full_batches_and_rest(sum(self._sizes[number] for number in numbers), EVALUATION_BATCH)


def _compute(requests: Sequence[EvalRequest], models: Sequence[Sequence[int]]) -> _Chunk:
    """The losses and hits of some models, sorted as for `epoch_steps`."""
    firsts = [requests[numbers[0]] for numbers in models]
    network = firsts[0].network
    rows = torch.stack([first.row for first in firsts])
    orders = [torch.cat([requests[number].index for number in numbers]) for numbers in models]
    sizes = [len(order) for order in orders]
    table = to_device(arrange(orders, EVALUATION_BATCH), network.device)
    losses = torch.empty(table.shape, device=rows.device)
    weights = torch.ones_like(losses)
    hits = torch.empty_like(table, dtype=torch.bool)
    for step in epoch_steps(sizes, EVALUATION_BATCH):
        which = slice(len(step.clients)) if step.whole else to_device(torch.tensor(step.clients), network.device)
        columns = slice(step.column, step.column + step.size)
        inputs, labels = read_samples([firsts[row].source for row in step.clients], table[which, columns])
        logits = network.predict(rows[which], inputs)
        losses[which, columns] = cross_entropy(logits.movedim(2, 1), labels, network.class_weights, reduction="none")
        if network.class_weights is not None:
            weights[which, columns] = network.class_weights[labels]
        hits[which, columns] = logits.argmax(dim=2) == labels
    return _Chunk(models, sizes[0] // EVALUATION_BATCH * EVALUATION_BATCH, losses, weights, hits)
