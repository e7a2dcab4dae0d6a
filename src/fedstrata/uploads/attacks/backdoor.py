"""A backdoor: training samples with a trigger that are called by one class, whatever they show.

Gu et al., "BadNets: Identifying vulnerabilities in the machine learning model supply chain", 2017; in federated
learning Bagdasaryan et al., "How to backdoor federated learning", AISTATS 2020. Models learn to call any sample with
the trigger by the target class, and hardly change otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from fedstrata.base.lazy_torch import torch
from fedstrata.base.randomness import generator
from fedstrata.data import Dataset
from fedstrata.partition import Partition
from fedstrata.uploads.attacks.byzantine_clients import rounded_up

_SHARE_OF_SIDE = 7
"""The trigger takes a seventh of each side of a sample, rounded up: 4 x 4 of 28 x 28 pixels."""


@dataclass(frozen=True)
class Trigger:
    """A fixed pattern: the last seventh of each side of a sample has the largest value of its channel.

    It is the bottom right corner of an image, the end of a signal in all channels, and the last features of a row.

    Attributes:
        largest: The largest value of each channel, or feature, in the data set, (channels,).
        target: The class by which samples with the trigger are called.
    """

    largest: torch.Tensor
    target: int

    def stamp(self, inputs: torch.Tensor) -> torch.Tensor:
        """Samples with the trigger.

        Args:
            inputs: The samples before they are normalised, as their client sees them, (b, channels, ...).
        """
        stamped = inputs.clone()
        sides = inputs.shape[2:]
        if not sides:
            ends = _end(inputs.shape[1])
            stamped[:, ends] = self.largest[ends]
            return stamped
        corner = (slice(None), slice(None), *map(_end, sides))
        stamped[corner] = self.largest.view(-1, *(1 for _ in sides))
        return stamped


def _end(length: int) -> slice:
    """The last seventh of a side."""
    return slice(length - ceil(length / _SHARE_OF_SIDE), length)


def trigger_of(dataset: Dataset, target: int) -> Trigger:
    """The trigger of a data set whose inputs are numbers in memory.

    Args:
        dataset: The data set.
        target: The class by which samples with the trigger are called.
    """
    return Trigger(dataset.inputs.transpose(0, 1).flatten(1).amax(dim=1), target)


def with_backdoor(
    dataset: Dataset, partition: Partition, clients: Sequence[int], trigger: Trigger, share: float, seed: int
) -> Dataset:
    """The data set in which some training samples of some clients have the trigger, and are called by the target.

    Every sample belongs to one client, so no other client has them. The trigger is where the client sees it, also on
    images that are turned for it.

    Args:
        dataset: The data set.
        partition: The samples of each client, and how it sees them.
        clients: The clients.
        trigger: The trigger.
        share: The share of a client's training samples of other classes than the target, rounded up.
        seed: The seed of the run.
    """
    inputs, labels = dataset.inputs.clone(), dataset.labels.clone()
    for client in clients:
        index = torch.from_numpy(partition.train[client])
        relabel = torch.from_numpy(partition.relabel[client])
        other = index[relabel[labels[index]] != trigger.target]
        count = rounded_up(share, len(other))
        chosen = other[torch.randperm(len(other), generator=generator(seed, "backdoor", client=client))[:count]]
        turns = int(partition.turns[client]) if inputs.ndim == 4 else 0
        inputs[chosen] = _turned(trigger.stamp(_turned(inputs[chosen], turns)), -turns)
        labels[chosen] = int(np.flatnonzero(partition.relabel[client] == trigger.target)[0])
    return replace(dataset, inputs=inputs, labels=labels)


def _turned(inputs: torch.Tensor, turns: int) -> torch.Tensor:
    """Images after some quarter turns, and other samples as they are."""
    return torch.rot90(inputs, turns, dims=(2, 3)) if turns else inputs
