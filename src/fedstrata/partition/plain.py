"""Schemes without groups; every one of them but `natural` may also deal inside the groups of another scheme."""

from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Gt, Le, MinLen
from pydantic import Strict
from pydantic.dataclasses import dataclass

from fedstrata.errors import PartitionError
from fedstrata.partition import by_label, by_size
from fedstrata.partition.scheme import KEYS, LEAST, Cut, Pool, Scheme, Whole
from fedstrata.quoting import shown

Alpha = Annotated[float, Strict(), Gt(0), Le(1e6)]


class Plain(Scheme):
    """A scheme whose keys are right or wrong by themselves."""

    def check(self, clients: int, classes: int, key: str = "partition") -> None:
        """Accept any number of clients and classes."""


@dataclass(frozen=True, config=KEYS)
class IID(Plain):
    """Deal samples at random, equally many to every client; all clients belong together."""

    source: ClassVar[str] = "McMahan et al., AISTATS 2017, section 3"

    def cut(self, pool: Pool) -> Cut:
        """Deal the samples of a pool."""
        shares = by_size.even(len(pool.labels), pool.clients, pool.size, pool.rng("samples"))
        return Cut.plain(pool, shares, np.zeros(pool.clients, dtype=np.int64))


@dataclass(frozen=True, config=KEYS)
class Dirichlet(Plain):
    """Share each class out by a Dirichlet draw over the clients, or draw each client's own mix of classes.

    Attributes:
        alpha: concentration; small values give each client few classes.
        over: clients shares each class out over them, in uneven sizes; classes draws each client's mix.
    """

    source: ClassVar[str] = "Yurochkin et al., ICML 2019 (over clients); Hsu et al., 2019 (over classes)"
    alpha: Alpha
    over: Literal["clients", "classes"] = "clients"

    def cut(self, pool: Pool) -> Cut:
        """Deal the samples of a pool."""
        rng = pool.rng("samples")
        if self.over == "classes":
            shares = by_label.dirichlet_mixes(pool.labels, pool.clients, pool.size, self.alpha, rng)
        else:
            chosen = pool.chosen(rng)
            deal = by_label.dirichlet(pool.labels[chosen], pool.clients, self.alpha, LEAST, rng)
            shares = tuple(chosen[positions] for positions in deal)
        return Cut.plain(pool, shares, None)


@dataclass(frozen=True, config=KEYS)
class Quantity(Plain):
    """Skew only the number of samples, by a Dirichlet draw; all clients belong together.

    Attributes:
        alpha: concentration; small values give few clients most of the samples.
    """

    source: ClassVar[str] = "Li et al., ICDE 2022"
    alpha: Alpha

    def cut(self, pool: Pool) -> Cut:
        """Deal the samples of a pool."""
        rng = pool.rng("samples")
        chosen = pool.chosen(rng)
        deal = by_size.quantity(len(chosen), pool.clients, self.alpha, LEAST, rng)
        return Cut.plain(pool, tuple(chosen[part] for part in deal), np.zeros(pool.clients, dtype=np.int64))


@dataclass(frozen=True, config=KEYS)
class Shards(Plain):
    """Sort samples by class, cut them into equal shards and deal these at random.

    Attributes:
        per_client: shards of each client.
    """

    source: ClassVar[str] = "McMahan et al., AISTATS 2017, section 3"
    per_client: Whole = 2

    def cut(self, pool: Pool) -> Cut:
        """Deal the samples of a pool."""
        rng = pool.rng("samples")
        return Cut.plain(pool, by_label.shards(pool.labels, pool.clients, pool.size, self.per_client, rng), None)


@dataclass(frozen=True, config=KEYS)
class Natural(Plain):
    """Give each client the samples of one value of a column, such as the subject of a recording.

    Attributes:
        column: the column whose values are the clients, in ascending order.
    """

    source: ClassVar[str] = "the data: HiCFL's users of USC-HAD"
    column: Annotated[str, MinLen(1)]
    divides: ClassVar[bool] = False

    def cut(self, pool: Pool) -> Cut:
        """Deal the samples of a pool."""
        if self.column not in pool.columns:
            known = ", ".join(pool.columns) or "no further columns"
            raise PartitionError(f"partition.column = {shown(self.column)}: the data has {known}")
        column = pool.columns[self.column]
        return Cut.plain(pool, by_size.natural(column, pool.clients, pool.size, pool.rng("samples")), None)
