"""Groups that hold different classes, or the same in different shares."""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Gt, Interval, Le, MinLen
from pydantic import AfterValidator, Strict
from pydantic.dataclasses import dataclass

from fedstrata.limits import CLASSES
from fedstrata.partition.by_group import Mixes, largest, majority_mixes, quotas, set_mixes
from fedstrata.partition.grouped import Grouped, compose, too_many
from fedstrata.partition.scheme import KEYS, LEAST, Cut, Pool, Whole
from fedstrata.partition.shares import Indices, apportion, hand_out, renumber, supply
from fedstrata.quoting import shown


def distinct(labels: tuple[int, ...]) -> tuple[int, ...]:
    """Refuse a class that is named twice: it would have twice the share of the others."""
    if len(set(labels)) < len(labels):
        raise ValueError("a class is named twice")
    return labels


Class = Annotated[int, Strict(), Interval(ge=0, le=CLASSES - 1)]
Labels = Annotated[tuple[Class, ...], MinLen(1), AfterValidator(distinct)]


@dataclass(frozen=True, kw_only=True, config=KEYS)
class Skewed(Grouped):
    """Groups that hold different classes.

    With samples = 0 every client has the most that all of them can have, equally, with the mix of their group.

    Attributes:
        inside: another scheme, which deals each group's samples to the group's clients.
    """

    marks: ClassVar[str | None] = "the classes held"

    @abstractmethod
    def mixes(self, classes: int) -> Mixes:
        """Return the share of each class in each group (groups, classes)."""

    def members(self, clients: int, classes: int) -> Indices:
        """Return the number of clients of each group (groups,)."""
        return apportion(clients, np.ones(len(self.mixes(classes))))

    def cut(self, pool: Pool) -> Cut:
        """Deal the samples of a pool."""
        mixes, sizes = self.mixes(pool.classes), self.members(pool.clients, pool.classes)
        size = pool.size or max(LEAST, largest(supply(pool.labels, pool.classes), mixes, sizes))
        owed, rng = quotas(mixes, size), pool.rng("samples")
        # Two groups of the same mix are one group in truth.
        same = renumber([mix.tobytes() for mix in mixes])
        if self.inside is None:
            shares = hand_out(pool.labels, np.repeat(owed, sizes, axis=0), rng)
            return Cut.plain(pool, shares, np.repeat(same, sizes))
        return compose(pool, hand_out(pool.labels, owed * sizes[:, None], rng), sizes, same, self.inside)


@dataclass(frozen=True, kw_only=True, config=KEYS)
class Majority(Skewed):
    """Let class g be `share` of the samples of every client of group g, the rest uniform over the other classes.

    Attributes:
        groups: number of groups, of as equal sizes as can be.
        share: share of the group's own class in each client.
        inside: another scheme, which deals each group's samples to the group's clients.
    """

    source: ClassVar[str] = "AdaCFL's alpha, HiCFL's Non-IID-2, LayerCFL's beta"
    groups: Whole
    share: Annotated[float, Strict(), Gt(0), Le(1)]

    def mixes(self, classes: int) -> Mixes:
        """Return the share of each class in each group (groups, classes)."""
        return majority_mixes(self.groups, classes, self.share)

    def problems(self, clients: int, classes: int) -> Iterator[str]:
        """Say what these two numbers forbid."""
        yield from too_many(self.groups, classes, "the number of classes")
        yield from too_many(self.groups, clients, "the number of clients")
        if self.share < 1 and classes < 2:
            yield f"share = {self.share}: must be 1 where there is one class"


@dataclass(frozen=True, kw_only=True, config=KEYS)
class LabelGroups(Skewed):
    """Let group g hold only the classes of its own set, in equal shares.

    Attributes:
        labels: the classes of each group; equal sets are one group in truth.
        inside: another scheme, which deals each group's samples to the group's clients.
    """

    source: ClassVar[str] = "HiCFL's Non-IID-1"
    labels: Annotated[tuple[Labels, ...], MinLen(1)]

    def mixes(self, classes: int) -> Mixes:
        """Return the share of each class in each group (groups, classes)."""
        return set_mixes(self.labels, classes)

    def problems(self, clients: int, classes: int) -> Iterator[str]:
        """Say what these two numbers forbid."""
        for group, members in enumerate(self.labels):
            if max(members) >= classes:
                yield f"labels[{group}] = {shown(list(members))}: the classes are 0 to {classes - 1}"
        if len(self.labels) > clients:
            yield f"labels: {len(self.labels)} groups, at most {clients}, the number of clients"


@dataclass(frozen=True, kw_only=True, config=KEYS)
class ClassPairs(Skewed):
    """Make as many groups as classes; group j holds classes j and j + 1 (mod classes) in equal shares.

    Attributes:
        inside: another scheme, which deals each group's samples to the group's clients.
    """

    source: ClassVar[str] = "AdaCFL's B"

    def mixes(self, classes: int) -> Mixes:
        """Return the share of each class in each group (groups, classes)."""
        return set_mixes([(j, (j + 1) % classes) for j in range(classes)], classes)

    def problems(self, clients: int, classes: int) -> Iterator[str]:
        """Say what these two numbers forbid."""
        if classes < 3:
            yield f"scheme = 'class_pairs': needs at least 3 classes for different pairs, there are {classes}"
        if clients < classes:
            yield f"scheme = 'class_pairs': needs at least one client per class, {classes}, there are {clients}"
