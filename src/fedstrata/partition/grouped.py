"""Schemes with groups of clients that differ in their classes, in their images, or in the meaning of their labels."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Self

import numpy as np
from annotated_types import Gt, Interval, Le, MinLen
from numpy.typing import NDArray
from pydantic import AfterValidator, Strict, model_validator
from pydantic.dataclasses import dataclass

from fedstrata.base.limits import CLASSES
from fedstrata.base.quoting import shown
from fedstrata.partition.scheme import (
    MIN_SAMPLES,
    SCHEME_CONFIG,
    Allocation,
    Grouped,
    IntArray,
    Pool,
    Whole,
    allocate_inside,
    apportion,
    class_counts,
    draw_by_class,
    renumber,
)
from fedstrata.partition.ungrouped import allocate_evenly

_MIX_DECIMALS = 12
"""Two mixes of classes that differ by less are the same: 1/6 is not the same number however it is computed."""

_Mixes = NDArray[np.float64]
"""The share of each class in each group, (groups, classes). Rows sum to 1."""


def _check_distinct(labels: tuple[int, ...]) -> tuple[int, ...]:
    """Refuse a class that is named twice: it would have twice the share of the others."""
    if len(set(labels)) < len(labels):
        raise ValueError("a list that names each class once")
    return labels


_Class = Annotated[int, Strict(), Interval(ge=0, le=CLASSES - 1)]
_ClassSet = Annotated[tuple[_Class, ...], MinLen(1), AfterValidator(_check_distinct)]


def _too_many_groups(groups: int, limit: int, reason: str) -> Iterator[str]:
    """Yield the problem that there are more groups than allowed, if so."""
    if groups > limit:
        yield f"groups = {groups}: expected at most {limit}, {reason}"


@dataclass(frozen=True, kw_only=True, config=SCHEME_CONFIG)
class FeatureSkew(Grouped):
    """Groups that hold the same classes, and whose images or labels are changed.

    Attributes:
        groups: The number of groups, of as equal sizes as possible. Give this or `sizes`.
        sizes: The number of clients of each group.
    """

    groups: Whole | None = None
    sizes: Annotated[tuple[Whole, ...], MinLen(1)] | None = None

    @model_validator(mode="after")
    def _check_one_of_two(self) -> Self:
        if (self.groups is None) == (self.sizes is None):
            raise ValueError("either groups or sizes")
        return self

    def group_sizes(self, clients: int, classes: int) -> IntArray:
        """Return the number of clients of each group, (groups,)."""
        if self.sizes is not None:
            return np.array(self.sizes, dtype=np.int64)
        return apportion(clients, np.ones(self.groups or 1))

    @abstractmethod
    def most_groups(self, classes: int) -> tuple[int, str]:
        """Return the largest number of groups, and the reason."""

    def problems(self, clients: int, classes: int) -> Iterator[str]:
        """Yield what does not fit of its own keys."""
        limit, reason = self.most_groups(classes)
        if self.sizes is None:
            yield from _too_many_groups(self.groups or 1, limit, reason)
            yield from _too_many_groups(self.groups or 1, clients, "the number of clients")
            return
        key = f"sizes = {shown(list(self.sizes))}"
        if len(self.sizes) > limit:
            yield f"{key}: expected at most {limit} groups, {reason}"
        if sum(self.sizes) != clients:
            yield f"{key}: expected a sum of {clients}, the number of clients, found {sum(self.sizes)}"

    def allocate_unchanged(self, pool: Pool) -> tuple[Allocation, IntArray]:
        """Return the allocation before images or labels are changed, and the group of each client, (n,)."""
        sizes = self.group_sizes(pool.clients, pool.classes)
        group = np.repeat(np.arange(len(sizes)), sizes)
        if self.inside is None:
            # The same random stream as `iid`: with and without rotation, clients hold the same samples.
            return Allocation.unchanged(pool, allocate_evenly(pool), group), group
        # Each group gets all the samples it could have, not just those its clients keep, so that `inside` can choose.
        count = len(pool.labels)
        edges = np.cumsum(sizes)[:-1] * count // pool.clients
        group_samples = tuple(np.sort(part) for part in np.split(pool.rng("heaps").permutation(count), edges))
        return allocate_inside(pool, group_samples, sizes, np.arange(len(sizes)), self.inside), group


@dataclass(frozen=True, kw_only=True, config=SCHEME_CONFIG)
class Rotation(FeatureSkew):
    """Turn the images of group g by g quarter turns counter-clockwise; with two groups by 0 and 180 degrees."""

    source: ClassVar[str] = "Ghosh et al., NeurIPS 2020"
    groups_differ_by: ClassVar[str | None] = "turned images"

    def most_groups(self, classes: int) -> tuple[int, str]:
        """Return the largest number of groups, and the reason."""
        return 4, "as there are quarter turns"

    def allocate(self, pool: Pool) -> Allocation:
        """Allocate the samples of a pool."""
        allocation, group = self.allocate_unchanged(pool)
        return replace(allocation, turns=group * 2 if group[-1] == 1 else group)


@dataclass(frozen=True, kw_only=True, config=SCHEME_CONFIG)
class Concept(FeatureSkew):
    """Let each group call the classes by other labels: the same images under other labels.

    Of c classes that are relabelled, group g calls the i-th by the label of number i + g * (c // groups), modulo c. Two
    groups that relabel two classes swap them.

    Attributes:
        classes: The classes that are relabelled; all by default.
    """

    source: ClassVar[str] = "after Sattler et al., IEEE TNNLS 2020, permuted labels"
    groups_differ_by: ClassVar[str | None] = "relabelled classes"

    classes: _ClassSet | None = None

    def most_groups(self, classes: int) -> tuple[int, str]:
        """Return the largest number of groups, and the reason."""
        if self.classes is None:
            return classes, "the number of classes"
        return len(self.classes), "the number of relabelled classes"

    def problems(self, clients: int, classes: int) -> Iterator[str]:
        """Yield what does not fit of its own keys."""
        yield from super().problems(clients, classes)
        if self.classes is not None and max(self.classes) >= classes:
            yield f"classes = {shown(list(self.classes))}: expected classes of 0 to {classes - 1}"

    def allocate(self, pool: Pool) -> Allocation:
        """Allocate the samples of a pool."""
        allocation, group = self.allocate_unchanged(pool)
        moved = np.arange(pool.classes) if self.classes is None else np.array(self.classes)
        shift = len(moved) // (int(group[-1]) + 1)
        relabel = np.tile(np.arange(pool.classes), (len(group), 1))
        relabel[:, moved] = moved[(np.arange(len(moved)) + shift * group[:, None]) % len(moved)]
        return replace(allocation, relabel=relabel)


@dataclass(frozen=True, kw_only=True, config=SCHEME_CONFIG)
class LabelSkew(Grouped):
    """Groups that hold different classes.

    With samples = 0 every client has the same, largest possible number of samples with the mix of its group.
    """

    groups_differ_by: ClassVar[str | None] = "the classes held"

    @abstractmethod
    def mixes(self, classes: int) -> _Mixes:
        """Return the share of each class in each group, (groups, classes)."""

    def group_sizes(self, clients: int, classes: int) -> IntArray:
        """Return the number of clients of each group, (groups,)."""
        return apportion(clients, np.ones(len(self.mixes(classes))))

    def allocate(self, pool: Pool) -> Allocation:
        """Allocate the samples of a pool."""
        mixes = self.mixes(pool.classes)
        sizes = self.group_sizes(pool.clients, pool.classes)
        client_size = pool.size
        if client_size == 0:
            available = class_counts(pool.labels, pool.classes)
            client_size = max(MIN_SAMPLES, largest_client_size(available, mixes, sizes))
        quotas = client_quotas(mixes, client_size)
        rng = pool.rng("samples")
        # Two groups of the same mix are one group in truth.
        group_truth = renumber([mix.round(_MIX_DECIMALS).tobytes() for mix in mixes])
        if self.inside is None:
            samples = draw_by_class(pool.labels, np.repeat(quotas, sizes, axis=0), rng)
            return Allocation.unchanged(pool, samples, np.repeat(group_truth, sizes))
        group_samples = draw_by_class(pool.labels, quotas * sizes[:, None], rng)
        return allocate_inside(pool, group_samples, sizes, group_truth, self.inside)


@dataclass(frozen=True, kw_only=True, config=SCHEME_CONFIG)
class Majority(LabelSkew):
    """Let class g be `share` of the samples of every client of group g, the rest uniform over the other classes.

    Attributes:
        groups: The number of groups, of as equal sizes as possible.
        share: The share of the group's own class in each client.
    """

    source: ClassVar[str] = "AdaCFL's alpha, HiCFL's Non-IID-2, LayerCFL's beta"
    groups: Whole
    share: Annotated[float, Strict(), Gt(0), Le(1)]

    def mixes(self, classes: int) -> _Mixes:
        """Return the share of each class in each group, (groups, classes)."""
        mixes = np.full((self.groups, classes), (1 - self.share) / max(classes - 1, 1))
        np.fill_diagonal(mixes, self.share)
        return mixes

    def problems(self, clients: int, classes: int) -> Iterator[str]:
        """Yield what does not fit of its own keys."""
        yield from _too_many_groups(self.groups, classes, "the number of classes")
        yield from _too_many_groups(self.groups, clients, "the number of clients")
        if self.share < 1 and classes < 2:
            yield f"share = {self.share}: expected 1 where there is one class"


@dataclass(frozen=True, kw_only=True, config=SCHEME_CONFIG)
class LabelGroups(LabelSkew):
    """Let group g hold only the classes of its own set, in equal shares.

    Attributes:
        labels: The classes of each group; equal sets are one group in truth.
    """

    source: ClassVar[str] = "HiCFL's Non-IID-1"
    labels: Annotated[tuple[_ClassSet, ...], MinLen(1)]

    def mixes(self, classes: int) -> _Mixes:
        """Return the share of each class in each group, (groups, classes)."""
        return equal_shares(self.labels, classes)

    def problems(self, clients: int, classes: int) -> Iterator[str]:
        """Yield what does not fit of its own keys."""
        for group, labels in enumerate(self.labels):
            if max(labels) >= classes:
                yield f"labels[{group}] = {shown(list(labels))}: expected classes of 0 to {classes - 1}"
        if len(self.labels) > clients:
            yield f"labels: expected at most {clients} groups, the number of clients, found {len(self.labels)}"


@dataclass(frozen=True, kw_only=True, config=SCHEME_CONFIG)
class ClassPairs(LabelSkew):
    """Make as many groups as classes; group j holds classes j and j + 1 (mod classes) in equal shares."""

    source: ClassVar[str] = "AdaCFL's B"

    def mixes(self, classes: int) -> _Mixes:
        """Return the share of each class in each group, (groups, classes)."""
        return equal_shares([(j, (j + 1) % classes) for j in range(classes)], classes)

    def problems(self, clients: int, classes: int) -> Iterator[str]:
        """Yield what does not fit of its own keys."""
        if classes < 3:
            yield f"scheme = 'class_pairs': expected at least 3 classes for different pairs, found {classes}"
        if clients < classes:
            yield f"scheme = 'class_pairs': expected at least one client per class, {classes}, found {clients}"


def equal_shares(sets: Sequence[Sequence[int]], classes: int) -> _Mixes:
    """Let group g have the classes of ``sets[g]`` in equal shares, and no others."""
    mixes = np.zeros((len(sets), classes))
    for mix, labels in zip(mixes, sets, strict=True):
        mix[list(labels)] = 1 / len(labels)
    return mixes


def client_quotas(mixes: _Mixes, size: int) -> IntArray:
    """Turn shares into the samples of a client of `size` samples: (groups, classes) -> (groups, classes)."""
    return np.stack([apportion(size, mix) for mix in mixes])


def largest_client_size(available: IntArray, mixes: _Mixes, group_sizes: IntArray) -> int:
    """Return the most samples that every client can have, of those available, while each group keeps its mix."""
    per_sample = group_sizes @ mixes
    needed = per_sample > 0
    # Rounding to whole samples can ask for a few more than the exact shares do.
    size = int(np.floor((available[needed] / per_sample[needed]).min()))
    while (group_sizes @ client_quotas(mixes, size) > available).any():
        size -= 1
    return size
