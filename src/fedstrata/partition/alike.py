"""Groups that hold the same classes: what differs is how their images lie, or what their labels mean."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, ClassVar, Self

import numpy as np
from annotated_types import MinLen
from pydantic import model_validator
from pydantic.dataclasses import dataclass

from fedstrata.partition.by_size import even
from fedstrata.partition.grouped import Grouped, compose, too_many
from fedstrata.partition.scheme import KEYS, Cut, Pool, Whole
from fedstrata.partition.shares import Indices, apportion
from fedstrata.quoting import shown


@dataclass(frozen=True, kw_only=True, config=KEYS)
class Alike(Grouped):
    """Groups that hold the same classes, and whose images or labels are changed.

    Attributes:
        groups: number of groups, of as equal sizes as can be; this or `sizes` is given.
        sizes: number of clients of each group.
        inside: another scheme, which deals each group's samples to the group's clients.
    """

    groups: Whole | None = None
    sizes: Annotated[tuple[Whole, ...], MinLen(1)] | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.groups is None) == (self.sizes is None):
            raise ValueError("give either groups or sizes")
        return self

    def members(self, clients: int, classes: int) -> Indices:
        """Return the number of clients of each group (groups,)."""
        if self.sizes is not None:
            return np.array(self.sizes, dtype=np.int64)
        return apportion(clients, np.ones(self.groups or 1))

    @abstractmethod
    def most(self, classes: int) -> tuple[int, str]:
        """Return the largest number of groups, and why."""

    def problems(self, clients: int, classes: int) -> Iterator[str]:
        """Say what these two numbers forbid."""
        most, why = self.most(classes)
        if self.sizes is None:
            yield from too_many(self.groups or 1, most, why)
            yield from too_many(self.groups or 1, clients, "the number of clients")
        else:
            sizes = list(self.sizes)
            if len(sizes) > most:
                yield f"sizes = {shown(sizes)}: at most {most} groups, {why}"
            if sum(sizes) != clients:
                told = f"they sum to {sum(sizes)} and must sum to the number of clients, {clients}"
                yield f"sizes = {shown(sizes)}: {told}"

    def spread(self, pool: Pool) -> tuple[Cut, Indices]:
        """Deal random samples to every group: the cut, and the group of each client (n,)."""
        sizes = self.members(pool.clients, pool.classes)
        group = np.repeat(np.arange(len(sizes)), sizes)
        count = len(pool.labels)
        if self.inside is None:
            # The stream of `iid`: a federation and its rotated twin hold the very same samples.
            return Cut.plain(pool, even(count, pool.clients, pool.size, pool.rng("samples")), group), group
        # A group's heap is all it could have, not just what its clients keep, so that `inside` can choose.
        edges = np.cumsum(sizes)[:-1] * count // pool.clients
        heaps = tuple(np.sort(heap) for heap in np.split(pool.rng("heaps").permutation(count), edges))
        return compose(pool, heaps, sizes, np.arange(len(sizes)), self.inside), group


@dataclass(frozen=True, kw_only=True, config=KEYS)
class Rotation(Alike):
    """Turn the images of group g by g quarter turns counter-clockwise, those of two groups by 0 and 180 degrees.

    Attributes:
        groups: number of groups, of as equal sizes as can be; this or `sizes` is given.
        sizes: number of clients of each group.
        inside: another scheme, which deals each group's samples to the group's clients.
    """

    source: ClassVar[str] = "Ghosh et al., NeurIPS 2020"
    marks: ClassVar[str | None] = "turned images"

    def most(self, classes: int) -> tuple[int, str]:
        """Return the largest number of groups, and why."""
        return 4, "as there are quarter turns"

    def cut(self, pool: Pool) -> Cut:
        """Deal the samples of a pool."""
        cut, group = self.spread(pool)
        return replace(cut, turns=group * 2 if group[-1] == 1 else group)


@dataclass(frozen=True, kw_only=True, config=KEYS)
class Concept(Alike):
    """Let group g call class y (y + g * (classes // groups)) mod classes: the same images under other labels.

    Attributes:
        groups: number of groups, of as equal sizes as can be; this or `sizes` is given.
        sizes: number of clients of each group.
        inside: another scheme, which deals each group's samples to the group's clients.
    """

    source: ClassVar[str] = "after Sattler et al., IEEE TNNLS 2020, permuted labels"
    marks: ClassVar[str | None] = "relabelled classes"

    def most(self, classes: int) -> tuple[int, str]:
        """Return the largest number of groups, and why."""
        return classes, "the number of classes"

    def cut(self, pool: Pool) -> Cut:
        """Deal the samples of a pool."""
        cut, group = self.spread(pool)
        shift = pool.classes // (int(group[-1]) + 1)
        return replace(cut, relabel=(np.arange(pool.classes) + shift * group[:, None]) % pool.classes)
