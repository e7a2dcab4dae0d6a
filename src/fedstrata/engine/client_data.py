"""The samples of each client, as batches that a network can read, and statistics of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedstrata.base.errors import ContractError, DataError
from fedstrata.base.randomness import seed_of
from fedstrata.base.registry import users_function
from fedstrata.clustering import entropy
from fedstrata.core import CLIENT_STATS, FOLDS, SINGULAR_VECTORS, Plan, Rows
from fedstrata.data import Dataset
from fedstrata.engine.input_features import input_features
from fedstrata.objective import Objective
from fedstrata.objective.objective import in_user_code
from fedstrata.objective.training import counted_share
from fedstrata.partition import Partition
from fedstrata.partition.partitioning import unit_counts

_BATCHES_AT_ONCE = 4
"""Batches that are normalised together, if they have no more numbers than `_NUMBERS_AT_ONCE`."""

_SMALL_BATCHES_AT_ONCE = 16
"""Batches that are normalised together, if so many have no more numbers than `_NUMBERS_IN_CACHE`."""

_NUMBERS_IN_CACHE = 2**18
"""Numbers that stay in a processor's cache until they are read: 1 MB of float32."""

_NUMBERS_IN_LINE = 16
"""Numbers in a line of the cache: 64 bytes of float32, where the memory of a tensor begins."""

_ROWS_AT_ONCE = 1024
"""Samples whose features are computed together."""

_NUMBERS_AT_ONCE = 2**24
"""Numbers that are normalised together: 64 MB of float32. A batch is never divided."""


class ClientData:
    """The clients' data: index arrays into one decoded data set.

    Args:
        dataset: The data of all clients.
        partition: The samples of each client, and how it sees them. No sample belongs to two clients.
        seed: The seed of the run, which fixes the folds.
        handovers: For a client a round and another client, whose data it has from that round on.

    Attributes:
        dataset: The data of all clients, channels last.
        owner: The client that holds each sample before any change of data, (samples,); -1 for none.
        seed: The seed of the run.
        on_read: The function that is called whenever samples are read. A worker shows by it that its work goes on.

    Raises:
        DataError: When the targets of all training, test or validation samples of a client are padding.
    """

    on_read: Callable[[], None] | None = None

    def __init__(
        self,
        dataset: Dataset,
        partition: Partition,
        seed: int,
        handovers: Mapping[int, tuple[int, int]] | None = None,
    ) -> None:
        """Turn the index arrays into tensors."""
        _refuse_padding_alone(dataset, partition)
        self.dataset = dataset.channels_last()
        self.seed = seed
        self._handovers = dict(handovers or {})
        self._train = [torch.from_numpy(index) for index in partition.train]
        self._test = [torch.from_numpy(index) for index in partition.test]
        self._validation = [torch.from_numpy(index) for index in partition.validation]
        self._turns = torch.from_numpy(partition.turns)
        self._relabel = torch.from_numpy(partition.relabel)
        owner = np.full(len(dataset), -1, dtype=np.int64)
        for splits in (partition.train, partition.test, partition.validation):
            if len(splits):
                owner[np.concatenate(splits)] = np.repeat(np.arange(len(splits)), [len(index) for index in splits])
        self.owner = torch.from_numpy(owner)

    def __len__(self) -> int:
        """The number of clients, n. The id n stands for the data of all clients together."""
        return len(self._train)

    def train(self, client: int, fold: str = "all", round: int = 0, max_samples: int | None = None) -> Tensor:
        """Indices of the client's training samples.

        Args:
            client: The id of the client.
            fold: One of ``FOLDS``. No independent unit is divided between two folds.
            round: The round, as clients may change their data.
            max_samples: The number of samples at most. They are drawn once, and fewer are among more.

        Raises:
            ContractError: When there is no such fold.
        """
        if client == len(self):
            return torch.cat(self._train)
        holder = self._holder(client, round)
        index = self._train[holder]
        if fold not in FOLDS:
            raise ContractError(f"expected a fold, one of {', '.join(FOLDS)}, found {fold!r}")
        for half in fold.removeprefix("all"):
            index = self._half(holder, index, half)
        if max_samples is None:
            return index
        order = np.random.default_rng(seed_of(self.seed, "some", client=client)).permutation(len(index))
        return index[torch.from_numpy(np.sort(order[:max_samples]))]

    def _half(self, holder: int, index: Tensor, half: str) -> Tensor:
        """One of two random halves of some samples; ``A1`` is the first half of ``A``.

        Each class is in both halves, if each has several independent units.
        """
        units = self.unit_values(index)
        distinct = np.unique(units)
        purpose = "halves" if half in "AB" else "quarters"
        shuffled = np.random.default_rng(seed_of(self.seed, purpose, client=holder)).permutation(distinct)
        if self.dataset.unit is not None and len(units):
            classes = self._classes_of(units, index)[np.searchsorted(distinct, shuffled)]
            shuffled = shuffled[classes_at_both_ends(classes)]
        first = torch.from_numpy(np.isin(units, shuffled[: len(distinct) // 2]))
        return index[first if half in "A1" else ~first]

    def _classes_of(self, units: np.ndarray[Any, Any], index: Tensor) -> np.ndarray[Any, Any]:
        """The class of each independent unit, (u,): the commonest of its samples."""
        _, unit = np.unique(units, return_inverse=True)
        classes: np.ndarray[Any, Any] = unit_counts(unit, self.dataset.labels[index].numpy()).argmax(axis=1)
        return classes

    def unit_values(self, index: Tensor) -> np.ndarray[Any, Any]:
        """The independent unit of each of some samples, (s,)."""
        unit = self.dataset.unit
        return np.arange(len(index)) if unit is None else self.dataset.columns[unit][index.numpy()]

    def weight(self, client: int) -> int:
        """Bytes of the client's training samples and their labels in memory."""
        dataset = self.dataset
        sample: int = prod(dataset.shape) * dataset.inputs.dtype.itemsize + dataset.labels.dtype.itemsize
        return len(self.train(client)) * sample

    def test(self, client: int, round: int = 0) -> Tensor:
        """Indices of the client's test samples."""
        return self._test[self._holder(client, round)]

    @property
    def validates(self) -> bool:
        """Whether the clients have samples for validation."""
        return bool(self._validation)

    def held_out(self, client: int, split: str, round: int = 0) -> Tensor:
        """Indices of the client's samples of a split that nothing is trained on, "test" or "validation"."""
        holder = self._holder(client, round)
        return self._validation[holder] if split == "validation" else self._test[holder]

    def batches(self, index: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs (b, ...) and targets (b, ...) of some samples, as the clients that hold them see them.

        Args:
            index: The samples.
            size: The samples of a batch; 0 is all at once. The last batch may be shorter.
        """
        for part in index.split(_batches_at_once(size * prod(self.dataset.shape)) * size or len(index)):
            inputs, targets = self.samples(part)
            yield from zip(inputs.split(size or len(index)), targets.split(size or len(index)), strict=True)

    def samples(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of some samples, as the clients that hold them see them.

        Inputs are (s, ...) float32; tokens are int64. Targets are the classes (s,) int64, or what the data set has in
        their place (`Dataset.targets`).
        """
        inputs, targets = self.raw_samples(index)
        return self.dataset.normalise(inputs, self.owner[index]), targets

    def raw_samples(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs (s, ...) before they are normalised, and targets, as the clients that hold them see them."""
        if self.on_read is not None:
            self.on_read()
        inputs = self.dataset.gather(index)
        owner = self.owner[index]
        if inputs.ndim == 4:
            # Mostly these are samples of one client, which turns all of them alike.
            turns = self._turns[owner]
            first = int(turns[0])
            if bool((turns == first).all()):
                inputs = torch.rot90(inputs, first, dims=(2, 3)) if first else inputs
            else:
                for turn in (1, 2, 3):
                    inputs[turns == turn] = torch.rot90(inputs[turns == turn], turn, dims=(2, 3))
        targets = self.dataset.targets
        return inputs, self.labels(index) if targets is None else targets[index]

    def labels(self, index: Tensor) -> Tensor:
        """The classes (s,) of some samples, as the clients that hold them call them; without reading the inputs."""
        return self._relabel[self.owner[index], self.dataset.labels[index]]

    def _holder(self, client: int, round: int) -> int:
        since, other = self._handovers.get(client, (0, client))
        return other if round >= since else client


def classes_at_both_ends(classes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An order of shuffled units whose first and second half have a unit of each class, if each class has several.

    All other units stay in their random order. Where some class has one unit, all do: which classes a client has is
    chance there, and with the other classes in both halves, halves of alike clients would depend on each other.

    Args:
        classes: The class of each unit, (u,).

    Returns:
        The places of the units in this order, (u,).
    """
    by_class = np.argsort(classes, kind="stable")
    _, firsts, counts = np.unique(classes[by_class], return_index=True, return_counts=True)
    if counts.min() == 1:
        return np.arange(len(classes))
    first = by_class[firsts]
    second = by_class[firsts + 1]
    others = np.setdiff1d(np.arange(len(classes)), np.concatenate([first, second]))
    return np.concatenate([first, others, second])


def _refuse_padding_alone(dataset: Dataset, partition: Partition) -> None:
    """Refuse a client that has nothing to learn or to be tested on, as all of its tokens have no class.

    Raises:
        DataError: For the first such client.
    """
    if dataset.targets is None:
        return
    has_target = (counted_share(dataset.targets) > 0).numpy()
    if has_target.all():
        return
    splits = {"training": partition.train, "test": partition.test, "validation": partition.validation}
    for split, parts in splits.items():
        for client, part in enumerate(parts):
            if len(part) and not has_target[part].any():
                name = partition.names[client] if partition.names else client
                raise DataError(
                    f"{dataset.name}: expected a class of at least one token in the {split} samples of client {name}, "
                    f"found padding (-100) alone in all {len(part)}; leave out samples without a class, or the client"
                )


def _batches_at_once(numbers: int) -> int:
    """The batches that are normalised together where each has so many numbers, at least one.

    They are few: what was just normalised is still in the processor's cache when it is read.
    """
    small = 0 < numbers <= _NUMBERS_IN_CACHE // _SMALL_BATCHES_AT_ONCE
    # How a product is rounded may depend on where in a line of the cache a batch begins. Batches of whole lines begin
    # at the start of one, however many of them are taken together.
    whole_lines = numbers % _NUMBERS_IN_LINE == 0
    count = _SMALL_BATCHES_AT_ONCE if small and whole_lines else _BATCHES_AT_ONCE
    return max(1, min(count, _NUMBERS_AT_ONCE // max(1, numbers)))


@dataclass(frozen=True)
class SimulationSpec:
    """A network and the clients' data, in parts that can be sent to other processes.

    Attributes:
        network: The function that makes the network, the same every time.
        dataset: The data of all clients.
        partition: The samples of each client, and how it sees them.
        seed: The seed of the run.
        handovers: The changes of data as `ClientData` takes them.
        precision: The precision of training as `Loop` takes it.
        objective: What the networks learn.
    """

    network: Callable[[], nn.Module]
    dataset: Dataset
    partition: Partition
    seed: int
    handovers: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    precision: str = "float32"
    objective: Objective = field(default_factory=Objective)

    @cached_property
    def client_data(self) -> ClientData:
        """The clients' data."""
        return ClientData(self.dataset, self.partition, self.seed, self.handovers)


def client_stats_of(plan: Plan, client_data: ClientData) -> dict[str, Rows]:
    """The statistics that a plan asks for, by name, with a row of each client that is asked."""
    stats = {}
    for name, asked in plan.client_stats.items():
        if bool(asked.any()):
            clients = plan.cohort[asked]
            data = (client_data.train(client, "all", plan.round) for client in clients.tolist())
            rows = [client_stat(name, client_data, index) for index in data]
            if len(widths := {len(row) for row in rows}) > 1:
                raise ContractError(
                    f"expected the statistic {name!r} to have as many numbers for every client, found "
                    f"{' and '.join(map(str, sorted(widths)))}"
                )
            stats[name] = Rows(clients, torch.stack(rows))
    return stats


def client_stat(name: str, client_data: ClientData, index: Tensor) -> Tensor:
    """One statistic of some samples, as a row (q,) float32.

    Args:
        name: One of ``CLIENT_STATS``, or ``"package.module:function"``. "classes" is the number of classes present,
            (1,). "entropy" is the entropy of the class counts in bits, (1,) (AdaCFL Eq. 4). "subspaces" holds the first
            left singular vectors of the samples of each class, (classes * 3 * features,), and is 0 where there are none
            (PACFL section 3). "inputs" is the mean of `input_features`.
        client_data: The data of all clients.
        index: The samples.

    Raises:
        ContractError: When there is no such statistic, or a function returns no row of numbers.
    """
    if name not in CLIENT_STATS:
        return own_stat(name, *client_data.samples(index), client_data.dataset.classes)
    if name == "inputs":
        batches = client_data.batches(index, _ROWS_AT_ONCE)
        sums = [input_features(inputs, client_data.seed).double().sum(dim=0) for inputs, _ in batches]
        return (torch.stack(sums).sum(dim=0) / len(index)).float()
    labels = client_data.labels(index)
    counts = labels.bincount(minlength=client_data.dataset.classes)
    if name == "classes":
        return (counts > 0).sum()[None].float()
    if name == "entropy":
        return torch.tensor([entropy(counts)])
    inputs, _ = client_data.samples(index)
    vectors = torch.zeros(client_data.dataset.classes, SINGULAR_VECTORS, inputs[0].numel())
    for label in counts.nonzero().flatten().tolist():
        of_class = inputs[labels == label].flatten(1).float()
        left, values, _ = torch.linalg.svd(of_class.T, full_matrices=False)
        # Beyond the rank of the samples, such as of copies of one, the vectors are any.
        smallest = values[0] * max(of_class.shape) * torch.finfo(values.dtype).eps
        rank = min(int((values > smallest).sum()), SINGULAR_VECTORS)
        vectors[label, :rank] = left[:, :rank].T
    return vectors.flatten()


def own_stat(name: str, inputs: Tensor, labels: Tensor, classes: int) -> Tensor:
    """A statistic by a function of a user's own, as a row (q,) float32.

    Args:
        name: The function as ``"package.module:function"``. It gets the other arguments and returns as many numbers for
            every client.
        inputs: The samples as the network reads them, (s, ...) float32.
        labels: Their classes, (s,).
        classes: The number of classes.

    Raises:
        ContractError: When there is no such function, or it returns no row of numbers.
        UserCodeError: When the function fails.
    """
    if ":" not in name:
        raise ContractError(
            f"expected a statistic of {', '.join(CLIENT_STATS)}, or 'package.module:function', found {name!r}"
        )
    place = f"the statistic {name!r}"
    function = users_function(place, name, ContractError)
    row = in_user_code(place, lambda: torch.as_tensor(function(inputs, labels, classes)).float())
    if row.ndim != 1 or not len(row):
        raise ContractError(f"{place}: expected a row of numbers, (q,), found {tuple(row.shape)}")
    return row
