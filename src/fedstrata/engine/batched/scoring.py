"""How models do on samples, many models and clients at a time."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedstrata.engine.batched.network import Network
from fedstrata.engine.batched.replay import upload
from fedstrata.engine.batched.resident import Source, read
from fedstrata.engine.batched.schedule import arrange, chunks, restore, split, steps

SCORED = 1024
"""Samples of a model that are computed together."""


@dataclass(frozen=True, eq=False)
class Question:
    """How one model does on some samples.

    Attributes:
        network: of the model.
        model: what tells its row from those of others; samples for the same one are computed together.
        row: (p,).
        source: who has the samples; the same for all questions about a model.
        index: the samples, (s,), at least one.
    """

    network: Network
    model: Hashable
    row: Tensor
    source: Source
    index: Tensor


@dataclass(frozen=True)
class _Sheet:
    """What came of a chunk of models: whose rows they are, and losses and hits of their samples as arranged."""

    models: Sequence[Sequence[int]]
    edge: int
    losses: Tensor
    hits: Tensor


class Answers:
    """Samples classified correctly and mean cross-entropy for each of some questions; computed, not waited for.

    Args:
        questions: of any networks.
    """

    def __init__(self, questions: Sequence[Question]) -> None:
        """Compute."""
        self._sizes, self._sheets = [len(question.index) for question in questions], list[_Sheet]()
        networks: dict[str, dict[Hashable, list[int]]] = {}
        for number, question in enumerate(questions):
            asked = networks.setdefault(question.network.identity, {})
            asked.setdefault(question.model, []).append(number)
        for asked in networks.values():
            models = sorted(asked.values(), key=lambda numbers: split(self._samples(numbers), SCORED), reverse=True)
            first = questions[models[0][0]]
            shown, _ = first.source.samples(upload(first.index[:1], first.network.device))
            for chunk in chunks(len(models), first.network.models_of(SCORED, shown)):
                self._sheets.append(self._compute(questions, models[chunk]))

    def read(self) -> list[tuple[int, float]]:
        """Samples classified correctly and mean cross-entropy in nats, of every question."""
        told: dict[int, tuple[int, float]] = {}
        for sheet in self._sheets:
            losses, hits = sheet.losses.cpu().double(), sheet.hits.cpu()
            for numbers, *rows in zip(sheet.models, losses, hits, strict=True):
                sizes = [self._sizes[number] for number in numbers]
                loss, hit = (restore(row, sum(sizes), SCORED, sheet.edge).split(sizes) for row in rows)
                means = zip(numbers, hit, loss, strict=True)
                told |= {number: (int(right.sum()), float(lost.mean())) for number, right, lost in means}
        return [told[number] for number in range(len(self._sizes))]

    def _samples(self, numbers: Sequence[int]) -> int:
        return sum(self._sizes[number] for number in numbers)

    def _compute(self, questions: Sequence[Question], models: Sequence[Sequence[int]]) -> _Sheet:
        """Losses and hits of some models, sorted as `steps` wants them."""
        firsts, network = [questions[numbers[0]] for numbers in models], questions[models[0][0]].network
        rows = torch.stack([first.row for first in firsts])
        orders = [torch.cat([questions[number].index for number in numbers]) for numbers in models]
        table = upload(arrange(orders, SCORED), network.device)
        losses, hits = torch.empty(table.shape, device=rows.device), torch.empty_like(table, dtype=torch.bool)
        for step in steps([len(order) for order in orders], SCORED):
            which = slice(len(step.clients)) if step.whole else upload(torch.tensor(step.clients), network.device)
            columns = slice(step.column, step.column + step.size)
            inputs, labels = read([firsts[row].source for row in step.clients], table[which, columns])
            logits = predict(network, rows[which], inputs)
            losses[which, columns] = cross_entropy(logits.movedim(2, 1), labels, reduction="none")
            hits[which, columns] = logits.argmax(dim=2) == labels
        return _Sheet(models, max(len(order) // SCORED for order in orders) * SCORED, losses, hits)


def predict(network: Network, rows: Tensor, inputs: Tensor) -> Tensor:
    """Logits (g, b, classes) of models (g, p) for inputs (g, b, ...), in evaluation mode."""
    slots = network.layout.tensors
    parts = rows.split([prod(slot.shape) for slot in slots], dim=1)
    tensors = [part.reshape(len(rows), *slot.shape) for part, slot in zip(parts, slots, strict=True)]
    with torch.no_grad():
        return network.logits(network.names[: len(slots)], tensors, inputs, train=False)
