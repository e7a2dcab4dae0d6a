"""What a partition scheme is: its keys, what it is given, what it returns, and the steps that all schemes share.

A scheme is a frozen dataclass whose fields are its keys in an experiment file. A new one is a subclass of `Scheme`, or
of `Grouped`, and one line in `PARTITIONS`. A grouped scheme may have another scheme inside its groups.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, ClassVar
from zlib import crc32

import numpy as np
from annotated_types import Interval
from numpy.typing import NDArray
from pydantic import ConfigDict, InstanceOf, Strict, ValidationError, field_validator
from pydantic.dataclasses import dataclass
from pydantic_core import to_jsonable_python

from fedstrata.base.errors import ExperimentError, PartitionError
from fedstrata.base.key_errors import explain, unknown
from fedstrata.base.limits import MAX_SAMPLES
from fedstrata.base.registry import Registry

IntArray = NDArray[np.int64]
"""Positions of samples, or numbers of them, int64."""

MIN_SAMPLES = 2
"""The fewest samples of a client where sizes are drawn: one to train and one to test."""

SCHEME_CONFIG = ConfigDict(extra="forbid")
"""The configuration of every scheme: an unknown key is an error."""

Whole = Annotated[int, Strict(), Interval(ge=1, le=MAX_SAMPLES)]
"""A whole number from 1, of clients, groups or shards."""


@dataclasses.dataclass(frozen=True, eq=False)
class Pool:
    """The samples that a scheme allocates, and the number of clients that it allocates them to.

    Attributes:
        labels: The class of each sample, (samples,).
        classes: The number of classes.
        clients: The number of clients n.
        size: The samples per client, training and test together; 0 is all there are.
        seed: The seed of the experiment.
        columns: Further columns of the data, (samples,) each.
        name: The name of the pool. Each group of a grouped scheme has a pool, with random streams of its own.
    """

    labels: IntArray
    classes: int
    clients: int
    size: int
    seed: int
    columns: Mapping[str, NDArray[Any]] = dataclasses.field(default_factory=dict)
    name: str = "partition"

    def rng(self, purpose: str) -> np.random.Generator:
        """Return the random stream of one purpose."""
        return np.random.default_rng(np.random.SeedSequence([self.seed, crc32(f"{self.name} {purpose}".encode())]))

    def part(self, name: str, chosen: slice | IntArray, clients: int) -> "Pool":
        """Return the pool of some samples for some of the clients, with random streams of its own by the name."""
        columns = {key: column[chosen] for key, column in self.columns.items()}
        return dataclasses.replace(self, labels=self.labels[chosen], clients=clients, columns=columns, name=name)


@dataclasses.dataclass(frozen=True, eq=False)
class Allocation:
    """The samples of each client, before they are split into training and test.

    Attributes:
        samples: The positions in the pool of each client's samples, ascending and disjoint, (n,).
        truth: The true group of each client, (n,); None where the scheme has no groups.
        turns: The quarter turns, counter-clockwise, of a client's images, (n,).
        relabel: The label that client i gives to class y, at [i, y], (n, classes).
        names: The name of each client, (n,); empty where the scheme gives none.
    """

    samples: tuple[IntArray, ...]
    truth: IntArray | None
    turns: IntArray
    relabel: IntArray
    names: tuple[str, ...] = ()

    @classmethod
    def unchanged(cls, pool: Pool, samples: tuple[IntArray, ...], truth: IntArray | None) -> "Allocation":
        """Return the allocation that leaves images and labels as they are."""
        turns = np.zeros(pool.clients, dtype=np.int64)
        return cls(samples, truth, turns, np.tile(np.arange(pool.classes), (pool.clients, 1)))


@dataclass(frozen=True, config=SCHEME_CONFIG)
class Scheme(ABC):
    """A way to allocate samples to clients.

    Attributes:
        source: The paper or data that it comes from.
        groups_differ_by: What tells its groups apart; None for a scheme without groups.
        works_inside: Whether it can allocate the samples inside a group of another scheme.
        mixes_classes: Whether its clients differ in their mixes of classes, and so are alike where there is one class.
    """

    source: ClassVar[str]
    groups_differ_by: ClassVar[str | None] = None
    works_inside: ClassVar[bool] = True
    mixes_classes: ClassVar[bool] = False

    def check(self, clients: int, classes: int, place: str = "partition") -> None:
        """Refuse keys that do not fit the numbers of clients and classes.

        Raises:
            ExperimentError: When a key does not fit; the message begins with its place in the experiment.
        """
        for problem in self.problems(clients, classes):
            raise ExperimentError(f"{place}.{problem}")

    def problems(self, clients: int, classes: int) -> Iterator[str]:
        """Yield what does not fit of its own keys, each as "key = value: what is expected". Most fit any numbers."""
        yield from ()

    @abstractmethod
    def allocate(self, pool: Pool) -> Allocation:
        """Allocate the samples of a pool.

        Raises:
            PartitionError: When there are not enough samples.
        """

    def allocate_test(self, pool: Pool, allocation: Allocation, test: Pool) -> tuple[IntArray, ...]:
        """Allocate the test samples of a data set to the clients that have its training samples.

        Each class is divided over the clients in proportion to their training samples of it, by largest remainder.

        Args:
            pool: The pool of the training samples.
            allocation: The training samples of each client.
            test: The pool of the test samples.

        Returns:
            The positions in the pool `test` of each client's test samples, ascending and disjoint, (n,).
        """
        held = np.stack([class_counts(pool.labels[own], pool.classes) for own in allocation.samples])
        quotas = np.zeros_like(held)
        available = class_counts(test.labels, pool.classes)
        for label in np.flatnonzero(held.sum(axis=0)):
            quotas[:, label] = apportion(int(available[label]), held[:, label])
        return draw_by_class(test.labels, quotas, test.rng("samples"))


@dataclass(frozen=True, kw_only=True, config=SCHEME_CONFIG)
class Grouped(Scheme):
    """A scheme with true groups of clients. The clients of a group have contiguous ids.

    Attributes:
        inside: Another scheme, which allocates each group's samples to the group's clients. It has no groups, or its
            groups differ in another way.
    """

    inside: InstanceOf[Scheme] | None = None

    @field_validator("inside")
    @classmethod
    def _check_inside(cls, inside: Scheme | None) -> Scheme | None:
        scheme = inside
        while scheme is not None:
            if not scheme.works_inside:
                raise ValueError("a scheme that can work inside the groups of another one; natural cannot")
            if scheme.groups_differ_by == cls.groups_differ_by:
                raise ValueError(f"a scheme whose groups do not differ by {cls.groups_differ_by}, as those around do")
            scheme = getattr(scheme, "inside", None)
        return inside

    @abstractmethod
    def group_sizes(self, clients: int, classes: int) -> IntArray:
        """Return the number of clients of each group, (groups,)."""

    def check(self, clients: int, classes: int, place: str = "partition") -> None:
        """Refuse keys that do not fit, its own and then those of `inside` in one of the groups."""
        super().check(clients, classes, place)
        if self.inside is not None:
            for size in np.unique(self.group_sizes(clients, classes)):
                self.inside.check(int(size), classes, f"{place}.inside")


def allocate_inside(
    pool: Pool, group_samples: tuple[IntArray, ...], group_sizes: IntArray, group_truth: IntArray, inside: Scheme
) -> Allocation:
    """Allocate each group's samples to the group's clients by the scheme `inside`.

    Two clients belong together when they are in the same group, and in the same group of `inside` too.

    Args:
        pool: The pool of all groups.
        group_samples: The positions in the pool of each group's samples, (groups,).
        group_sizes: The number of clients of each group, (groups,).
        group_truth: A number per group, (groups,). Groups with equal numbers are one in truth.
        inside: The scheme that allocates the samples of one group.

    Raises:
        PartitionError: When `inside` raises it; the message names the group.
    """
    allocations = []
    for group, (samples, clients) in enumerate(zip(group_samples, group_sizes, strict=True)):
        try:
            allocations.append(inside.allocate(pool.part(f"{pool.name} {group}", samples, int(clients))))
        except PartitionError as error:
            raise PartitionError(f"group {group} of the outer scheme: {error}") from None
    pairs = []
    for group, allocation in zip(group_truth, allocations, strict=True):
        inner = [0] * len(allocation.samples) if allocation.truth is None else allocation.truth.tolist()
        pairs += [(int(group), label) for label in inner]
    return Allocation(
        samples=tuple(
            samples[positions]
            for samples, allocation in zip(group_samples, allocations, strict=True)
            for positions in allocation.samples
        ),
        truth=renumber(pairs),
        turns=np.concatenate([allocation.turns for allocation in allocations]),
        relabel=np.concatenate([allocation.relabel for allocation in allocations]),
    )


def apportion(total: int, weights: NDArray[np.floating] | IntArray) -> IntArray:
    """Divide `total` samples in proportion to `weights`, by largest remainder: (parts,) -> (parts,).

    Equal remainders go to the lowest position, so that a reader can compute every number.
    """
    exact = total * (np.asarray(weights, dtype=np.float64) / np.sum(weights, dtype=np.float64))
    parts = np.floor(exact).astype(np.int64)
    left = total - int(parts.sum())
    parts[np.argsort(parts - exact, kind="stable")[:left]] += 1
    return parts


def class_counts(labels: IntArray, classes: int) -> IntArray:
    """Count the samples of each class: (samples,) -> (classes,)."""
    return np.bincount(labels, minlength=classes).astype(np.int64)


def draw_by_class(labels: IntArray, quotas: IntArray, rng: np.random.Generator) -> tuple[IntArray, ...]:
    """Draw as many samples of every class for every receiver as its quota says.

    Each class is a shuffled queue that the receivers take from in order. What the first ones get does not depend on
    how many come after them.

    Args:
        labels: The class of each sample, (samples,).
        quotas: The samples of each class for each receiver, (receivers, classes).
        rng: The generator that shuffles the samples.

    Returns:
        The positions of each receiver's samples, ascending and disjoint, (receivers,).

    Raises:
        PartitionError: When a class has fewer samples than the quotas need.
    """
    available = class_counts(labels, quotas.shape[1])
    needed = quotas.sum(axis=0)
    if (needed > available).any():
        worst = int(np.argmax(needed - available))
        raise PartitionError(
            f"{needed[worst]} samples of class {worst} are needed, training and test together, but there are "
            f"{available[worst]}; ask for fewer clients or samples"
        )
    order = rng.permutation(len(labels))
    queues = np.split(order[np.argsort(labels[order], kind="stable")], np.cumsum(available)[:-1])
    ends = np.cumsum(quotas, axis=0)
    return tuple(
        np.sort(np.concatenate([queue[a:b] for queue, a, b in zip(queues, start, end, strict=True)]))
        for start, end in zip(ends - quotas, ends, strict=True)
    )


def total_samples(count: int, clients: int, size: int) -> int:
    """Return the number of samples that clients of `size` samples take together of `count`; a size of 0 takes all.

    Raises:
        PartitionError: When there are fewer than ``clients * size`` samples.
    """
    if clients * size > count:
        raise PartitionError(
            f"{clients} clients of {size} samples, training and test together, need {clients * size}, but there "
            f"are {count}; ask for fewer clients or samples"
        )
    return clients * size or count


def renumber(keys: Sequence[object]) -> IntArray:
    """Give equal keys equal numbers, in the order of their first appearance: (n,) -> (n,)."""
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


PARTITIONS: Registry[type[Scheme]] = Registry(
    {
        "iid": "fedstrata.partition.ungrouped:IID",
        "rotation": "fedstrata.partition.grouped:Rotation",
        "concept": "fedstrata.partition.grouped:Concept",
        "majority": "fedstrata.partition.grouped:Majority",
        "label_groups": "fedstrata.partition.grouped:LabelGroups",
        "class_pairs": "fedstrata.partition.grouped:ClassPairs",
        "shards": "fedstrata.partition.ungrouped:Shards",
        "dirichlet": "fedstrata.partition.ungrouped:Dirichlet",
        "quantity": "fedstrata.partition.ungrouped:Quantity",
        "natural": "fedstrata.partition.ungrouped:Natural",
    },
    group="fedstrata.partitions",
)
"""The schemes of partition, by name."""


def scheme_from(keys: Mapping[str, object], place: str = "partition") -> Scheme:
    """Make a scheme of ``{"scheme": name, ...its keys}``. The key `inside` is such a mapping again.

    With a `column` and no name it is "natural".

    Args:
        keys: The keys, as in the experiment file.
        place: The place of the keys in the experiment, for the message.

    Raises:
        ExperimentError: When there is no such scheme, or a key does not fit it.
    """
    options = dict(keys)
    # A column divides the samples in one way alone.
    name = options.pop("scheme", "natural" if "column" in options else None)
    if name is None:
        raise ExperimentError(f"{place}.scheme: expected one of {', '.join(PARTITIONS)}, found none")
    if not isinstance(name, str) or name not in PARTITIONS:
        raise ExperimentError(unknown(f"{place}.scheme", name, "partition", PARTITIONS))
    kind = PARTITIONS[name]
    inside = options.get("inside")
    if isinstance(inside, Mapping) and "inside" in _key_names(kind):
        options["inside"] = scheme_from(inside, f"{place}.inside")
    try:
        return kind(**options)
    except ValidationError as failure:
        raise ExperimentError(explain(failure, keys, kind, place, chosen_by="scheme")) from None


def keys_of(scheme: Scheme) -> dict[str, object]:
    """Return the keys that make this scheme, with every default; ``scheme_from(keys_of(s)) == s``."""
    keys: dict[str, object] = {"scheme": next(name for name in PARTITIONS if PARTITIONS[name] is type(scheme))}
    for name in _key_names(type(scheme)):
        value = getattr(scheme, name)
        if value is not None:
            keys[name] = keys_of(value) if isinstance(value, Scheme) else to_jsonable_python(value)
    return keys


def _key_names(kind: type[Scheme]) -> list[str]:
    """List the keys of a scheme, with `inside` last as in an experiment file."""
    return sorted((field.name for field in fields(kind)), key="inside".__eq__)
