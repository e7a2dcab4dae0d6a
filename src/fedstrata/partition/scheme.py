"""What a scheme of partition is given, what it returns, and how its keys are declared."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar
from zlib import crc32

import numpy as np
from annotated_types import Interval
from numpy.typing import NDArray
from pydantic import ConfigDict, Strict

from fedstrata.limits import SAMPLES
from fedstrata.partition.shares import Indices, enough

LEAST = 2
"""Samples that every client is owed where sizes are drawn: one to train and one to test."""

KEYS = ConfigDict(extra="forbid")
"""Of every scheme: its fields are its keys in an experiment file, and an unknown one is an error."""

Whole = Annotated[int, Strict(), Interval(ge=1, le=SAMPLES)]
"""A whole number from 1, of clients, groups or shards."""


@dataclass(frozen=True, eq=False)
class Pool:
    """The samples that a scheme deals, and to whom.

    Attributes:
        labels: class of each sample (samples,).
        classes: number of classes.
        clients: number of clients n.
        size: samples per client, training and test together; 0 = all there are.
        seed: of the experiment.
        columns: further columns of the data (samples,) each.
        name: which pool of a composed scheme this is; every pool has streams of its own.
    """

    labels: Indices
    classes: int
    clients: int
    size: int
    seed: int
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    name: str = "partition"

    def rng(self, purpose: str) -> np.random.Generator:
        """Return the random stream of one purpose."""
        return np.random.default_rng(np.random.SeedSequence([self.seed, crc32(f"{self.name} {purpose}".encode())]))

    def chosen(self, rng: np.random.Generator) -> Indices:
        """Draw the samples that all clients have together, for schemes that then vary the sizes; ascending."""
        count = len(self.labels)
        return np.sort(rng.permutation(count)[: enough(count, self.clients, self.size)])

    def part(self, positions: Indices, clients: int, group: int) -> "Pool":
        """Return the pool of one group: some of the samples, for some of the clients."""
        return replace(self, labels=self.labels[positions], clients=clients, columns={}, name=f"{self.name} {group}")


@dataclass(frozen=True, eq=False)
class Cut:
    """Who gets which samples of a pool, before they are split into training and test.

    Attributes:
        shares: positions in the pool, ascending; disjoint (n,).
        truth: which clients belong together (n,); None where the scheme has no groups.
        turns: quarter turns counter-clockwise of a client's images (n,).
        relabel: the label that client i gives to class y, at [i, y] (n, classes).
    """

    shares: tuple[Indices, ...]
    truth: Indices | None
    turns: Indices
    relabel: Indices

    @classmethod
    def plain(cls, pool: Pool, shares: tuple[Indices, ...], truth: Indices | None) -> "Cut":
        """Return the cut that leaves images and labels as they are."""
        turns = np.zeros(pool.clients, dtype=np.int64)
        return cls(shares, truth, turns, np.tile(np.arange(pool.classes), (pool.clients, 1)))


@dataclass(frozen=True)
class Scheme(ABC):
    """A way to deal samples to clients; a subclass is a frozen dataclass of its keys.

    Attributes:
        source: where it comes from.
        marks: what tells its groups apart; None for a scheme without groups.
        divides: whether it can deal the samples of one group of another scheme.
    """

    source: ClassVar[str]
    marks: ClassVar[str | None] = None
    divides: ClassVar[bool] = True

    @abstractmethod
    def check(self, clients: int, classes: int, key: str = "partition") -> None:
        """Find what is wrong with the keys that only these two numbers can tell.

        Args:
            clients: number of clients n.
            classes: number of classes of the data.
            key: the place of this scheme in the experiment, for the message.

        Raises:
            ExperimentError: names the key, its value and what is allowed.
        """

    @abstractmethod
    def cut(self, pool: Pool) -> Cut:
        """Deal the samples of a pool.

        Raises:
            PartitionError: when there are not enough samples.
        """
