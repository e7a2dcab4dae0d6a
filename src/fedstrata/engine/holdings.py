"""Which samples each client holds, as batches that a network can read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from fedstrata.core import FOLDS
from fedstrata.data import Dataset
from fedstrata.errors import ContractError
from fedstrata.randomness import seed_of

AHEAD = 4
"""Batches that are normalised together."""


class Portions(Protocol):
    """Which samples are whose, and how each client sees them: what is read of a `Deal`, or known on a device."""

    @property
    def train(self) -> Sequence[np.ndarray[Any, Any]]:
        """Indices of each client's training samples, n arrays."""

    @property
    def test(self) -> Sequence[np.ndarray[Any, Any]]:
        """Indices of its test samples, n arrays."""

    @property
    def turns(self) -> np.ndarray[Any, Any]:
        """Quarter turns of its images, (n,)."""

    @property
    def relabel(self) -> np.ndarray[Any, Any]:
        """What each class is to it, (n, classes)."""


class Holdings:
    """The clients' data: index arrays into one decoded data set.

    Args:
        dataset: in memory, once.
        deal: which samples are whose, and how each client sees them.
        seed: of the run; it fixes the halves A and B.
        handovers: client -> (round, other): from that round on it holds what the other one was dealt.

    Attributes:
        on_read: Called whenever samples are read. A worker shows by it that its work goes on.
    """

    on_read: Callable[[], None] | None = None

    def __init__(
        self, dataset: Dataset, deal: Portions, seed: int, handovers: Mapping[int, tuple[int, int]] | None = None
    ) -> None:
        """Turn the index arrays into tensors."""
        self._dataset, self._seed, self._handovers = dataset.channels_last(), seed, dict(handovers or {})
        self._train = [torch.from_numpy(index) for index in deal.train]
        self._test = [torch.from_numpy(index) for index in deal.test]
        self._turns, self._relabel = torch.from_numpy(deal.turns), torch.from_numpy(deal.relabel)
        # No sample is dealt twice, so a sample tells who sees it, and how.
        self._owner = torch.full((len(dataset),), -1)
        for client, (train, test) in enumerate(zip(self._train, self._test, strict=True)):
            self._owner[train] = self._owner[test] = client

    def __len__(self) -> int:
        """Number of clients, n; the id n stands for all their data together."""
        return len(self._train)

    def train(self, client: int, part: str = "all", round: int = 0) -> torch.Tensor:
        """Indices of the client's training samples, or of a fixed random part of them.

        Args:
            client: its id.
            part: of ``FOLDS``; halves are cut between independent units, never through one.
            round: when; data may change hands.

        Raises:
            ContractError: for another part.
        """
        if client == len(self):
            return torch.cat(self._train)
        holder = self._holder(client, round)
        index = self._train[holder]
        if part not in FOLDS:
            raise ContractError(f"expected a part of {', '.join(FOLDS)}, found {part!r}")
        for half in part.removeprefix("all"):
            index = self._half(holder, index, half)
        return index

    def _half(self, holder: int, index: torch.Tensor, half: str) -> torch.Tensor:
        """One of two random halves of some samples; ``A1`` is the first half of ``A``."""
        units = self._units(index)
        distinct = np.unique(units)
        purpose = "halves" if half in "AB" else "quarters"
        shuffled = np.random.default_rng(seed_of(self._seed, purpose, client=holder)).permutation(distinct)
        first = torch.from_numpy(np.isin(units, shuffled[: len(distinct) // 2]))
        return index[first if half in "A1" else ~first]

    def units(self, index: torch.Tensor) -> torch.Tensor:
        """Samples of each independent unit among some samples, (u,) float32."""
        return torch.from_numpy(np.unique(self._units(index), return_counts=True)[1]).float()

    def some(self, client: int, index: torch.Tensor, most: int) -> torch.Tensor:
        """At most so many of some samples, drawn once and for all."""
        order = np.random.default_rng(seed_of(self._seed, "some", client=client)).permutation(len(index))
        return index[torch.from_numpy(np.sort(order[:most]))]

    def weight(self, client: int) -> int:
        """Bytes of the client's training samples with their labels, as they lie in memory."""
        inputs, labels = self._dataset.inputs, self._dataset.labels
        return len(self.train(client)) * (inputs[0].numel() * inputs.element_size() + labels.element_size())

    def test(self, client: int, round: int = 0) -> torch.Tensor:
        """Indices of the client's test samples."""
        return self._test[self._holder(client, round)]

    def batches(
        self, index: torch.Tensor, size: int, order: torch.Generator | None = None
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Inputs (b, ...) float32 and labels (b,) of some samples, as the clients that were dealt them see them.

        Args:
            index: the samples.
            size: of a batch; 0 is all at once. The last one may be shorter.
            order: shuffles; without it samples come as they are.
        """
        if order is not None:
            index = index[torch.randperm(len(index), generator=order)]
        # A few batches at a time: what was just normalised is still in the processor's cache when it is read.
        for part in index.split(AHEAD * size or len(index)):
            inputs, labels = self.samples(part)
            yield from zip(inputs.split(size or len(index)), labels.split(size or len(index)), strict=True)

    def samples(self, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs (s, ...) float32 and labels (s,) of some samples, as the clients that were dealt them see them."""
        if self.on_read is not None:
            self.on_read()
        inputs, owner = self._dataset.gather(index), self._owner[index]
        if inputs.ndim == 4:
            # Mostly the samples of one client, all turned alike: then nothing is picked apart.
            turns = self._turns[owner]
            first = int(turns[0])
            if bool((turns == first).all()):
                inputs = torch.rot90(inputs, first, dims=(2, 3)) if first else inputs
            else:
                for turn in (1, 2, 3):
                    inputs[turns == turn] = torch.rot90(inputs[turns == turn], turn, dims=(2, 3))
        return self._dataset.normalise(inputs), self._relabel[owner, self._dataset.labels[index]]

    @property
    def unit(self) -> str | None:
        """Column whose equal values mark samples that depend on each other; None where all are independent."""
        return self._dataset.unit

    @property
    def floats(self) -> int:
        """Numbers in all samples, (s * features)."""
        return self._dataset.inputs.numel()

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self._dataset.classes

    def _units(self, index: torch.Tensor) -> np.ndarray[Any, Any]:
        unit = self._dataset.unit
        return np.arange(len(index)) if unit is None else self._dataset.columns[unit][index.numpy()]

    def _holder(self, client: int, round: int) -> int:
        since, other = self._handovers.get(client, (0, client))
        return other if round >= since else client
