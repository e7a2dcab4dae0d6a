"""Schemes without groups. All but `natural` also work inside the groups of another scheme."""

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Gt, Le, MinLen
from numpy.typing import NDArray
from pydantic import Strict
from pydantic.dataclasses import dataclass

from fedstrata.base.errors import PartitionError, PartitionKeyError
from fedstrata.base.quoting import shown
from fedstrata.partition.scheme import (
    MIN_SAMPLES,
    SCHEME_CONFIG,
    Allocation,
    IntArray,
    Pool,
    Scheme,
    Whole,
    apportion,
    class_counts,
    draw_by_class,
    total_samples,
)

_Alpha = Annotated[float, Strict(), Gt(0), Le(1e6)]

_MAX_DRAWS = 1000
"""The largest number of Dirichlet draws until every client has enough samples."""


@dataclass(frozen=True, config=SCHEME_CONFIG)
class IID(Scheme):
    """Draw the same number of random samples for every client; all clients belong together."""

    source: ClassVar[str] = "McMahan et al., AISTATS 2017, section 3"

    def allocate(self, pool: Pool) -> Allocation:
        """Allocate the samples of a pool."""
        return Allocation.unchanged(pool, allocate_evenly(pool), np.zeros(pool.clients, dtype=np.int64))


def allocate_evenly(pool: Pool) -> tuple[IntArray, ...]:
    """Draw the same number of random samples for every client, to within one sample where all are taken.

    Where the size is given, the samples of a client do not depend on how many clients come after it.

    Raises:
        PartitionError: When there are not enough samples.
    """
    count = len(pool.labels)
    total = total_samples(count, pool.clients, pool.size)
    order = pool.rng("samples").permutation(count)[:total]
    return tuple(np.sort(part) for part in np.array_split(order, pool.clients))


@dataclass(frozen=True, config=SCHEME_CONFIG)
class Dirichlet(Scheme):
    """Divide each class by a Dirichlet draw over the clients, or draw each client's own mix of classes.

    Attributes:
        alpha: The concentration; small values give each client few classes.
        over: With "clients" each class is divided over the clients, whose sizes then vary. With "classes" each client
            draws its mix, and all have the same size.
    """

    source: ClassVar[str] = "Yurochkin et al., ICML 2019 (over clients); Hsu et al., 2019 (over classes)"
    mixes_classes: ClassVar[bool] = True
    alpha: _Alpha
    over: Literal["clients", "classes"] = "clients"

    def allocate(self, pool: Pool) -> Allocation:
        """Allocate the samples of a pool."""
        if self.over == "classes":
            samples = dirichlet_mixes(pool.labels, pool.clients, pool.size, self.alpha, pool.rng("samples"))
        else:
            samples = draw_and_divide(pool, pool.labels, self.alpha)
        return Allocation.unchanged(pool, samples, None)


def draw_and_divide(pool: Pool, labels: IntArray, alpha: float) -> tuple[IntArray, ...]:
    """Draw the samples that all clients have together, and divide each class of them by Dirichlet(alpha).

    Args:
        pool: The pool.
        labels: The class of each sample in the pool, by which they are divided, (samples,).
        alpha: The concentration, > 0.
    """
    count = len(labels)
    rng = pool.rng("samples")
    drawn = np.sort(rng.permutation(count)[: total_samples(count, pool.clients, pool.size)])
    return tuple(drawn[part] for part in dirichlet(labels[drawn], pool.clients, alpha, rng))


def dirichlet(labels: IntArray, clients: int, alpha: float, rng: np.random.Generator) -> tuple[IntArray, ...]:
    """Divide each class by Dirichlet(alpha) over the clients. Sizes vary.

    Small `alpha` gives each client few classes; large `alpha` approaches an even division.
    Yurochkin et al., "Bayesian nonparametric federated learning of neural networks", 2019.

    Args:
        labels: The class of each sample, (samples,).
        clients: The number of clients.
        alpha: The concentration, > 0.
        rng: The generator that draws the shares, then the samples.

    Returns:
        The positions of each client's samples, ascending and disjoint, together all samples, (clients,).

    Raises:
        PartitionError: When 1000 draws left some client with fewer than `MIN_SAMPLES`.
    """
    available = class_counts(labels, 1)
    fewest_missing = clients * MIN_SAMPLES
    for _ in range(_MAX_DRAWS):
        shares = rng.dirichlet(np.full(clients, alpha), size=len(available))
        edges = np.rint(np.cumsum(shares, axis=1) * available[:, None]).astype(np.int64)
        # The sum of the shares may end just below 1, and the last client's end is then one sample off.
        edges[:, -1] = available
        quotas = np.diff(edges, axis=1, prepend=0).T
        missing = int(np.maximum(MIN_SAMPLES - quotas.sum(axis=1), 0).sum())
        if missing == 0:
            return draw_by_class(labels, quotas, rng)
        fewest_missing = min(fewest_missing, missing)
    raise PartitionError(
        f"every client needs {MIN_SAMPLES} samples, but the best of {_MAX_DRAWS} Dirichlet draws of {len(labels)} "
        f"samples for {clients} clients was {fewest_missing} short; ask for fewer clients, more samples or a larger "
        f"alpha ({alpha:g})"
    )


def dirichlet_mixes(
    labels: IntArray, clients: int, size: int, alpha: float, rng: np.random.Generator
) -> tuple[IntArray, ...]:
    """Give each client a mix of classes that is its own draw of Dirichlet(alpha). All clients have the same size.

    Hsu, Qi and Brown, "Measuring the effects of non-identical data distribution for federated visual classification",
    2019: when a class has run out, the client fills up from the classes that are left, in the proportions of its mix.

    Args:
        labels: The class of each sample, (samples,).
        clients: The number of clients.
        size: The samples of each client; 0 takes all there are, equally to within one sample.
        alpha: The concentration, > 0.
        rng: The generator that draws the mixes, then the samples.

    Returns:
        The positions of each client's samples, ascending and disjoint, (clients,).

    Raises:
        PartitionError: When there are fewer than ``clients * size`` samples.
    """
    left = class_counts(labels, 1)
    sizes = apportion(total_samples(len(labels), clients, size), np.ones(clients))
    quotas = np.zeros((clients, len(left)), dtype=np.int64)
    for i, mix in enumerate(rng.dirichlet(np.full(len(left), alpha), size=clients)):
        # Each pass fills the client up or empties a class, so there are at most `classes` + 1 of them.
        while (missing := int(sizes[i] - quotas[i].sum())) > 0:
            wanted = np.where(left > 0, mix, 0.0)
            # A tiny alpha makes a mix of one class and zeros; when that class is gone, any class will do.
            weights = wanted if wanted.sum() > 0 else left
            taken = np.minimum(apportion(missing, weights), left)
            quotas[i] += taken
            left -= taken
    return draw_by_class(labels, quotas, rng)


@dataclass(frozen=True, config=SCHEME_CONFIG)
class Quantity(Scheme):
    """Skew only the number of samples, by a Dirichlet draw; all clients belong together.

    Attributes:
        alpha: The concentration; small values give few clients most of the samples.
    """

    source: ClassVar[str] = "Li et al., ICDE 2022"
    alpha: _Alpha

    def allocate(self, pool: Pool) -> Allocation:
        """Allocate the samples of a pool: a Dirichlet partition with a single class."""
        samples = draw_and_divide(pool, np.zeros_like(pool.labels), self.alpha)
        same_group = np.zeros(pool.clients, dtype=np.int64)
        return Allocation.unchanged(pool, samples, same_group)


@dataclass(frozen=True, config=SCHEME_CONFIG)
class Shards(Scheme):
    """Sort samples by class, cut them into equal shards, and give each client random shards.

    Attributes:
        per_client: The number of shards of each client.
    """

    source: ClassVar[str] = "McMahan et al., AISTATS 2017, section 3"
    mixes_classes: ClassVar[bool] = True
    per_client: Whole = 2

    def allocate(self, pool: Pool) -> Allocation:
        """Allocate the samples of a pool."""
        total = total_samples(len(pool.labels), pool.clients, pool.size)
        shards = pool.clients * self.per_client
        if total < shards:
            raise PartitionError(
                f"{pool.clients} clients of {self.per_client} shards need {shards} samples at least, but {total} "
                "are allocated; ask for fewer clients or shards"
            )
        rng = pool.rng("samples")
        drawn = rng.permutation(len(pool.labels))[:total]
        by_class = drawn[np.argsort(pool.labels[drawn], kind="stable")]
        parts = np.array_split(by_class, shards)
        shards_of_clients = rng.permutation(shards).reshape(pool.clients, self.per_client)
        samples = tuple(np.sort(np.concatenate([parts[shard] for shard in own])) for own in shards_of_clients)
        return Allocation.unchanged(pool, samples, None)


@dataclass(frozen=True, config=SCHEME_CONFIG)
class Natural(Scheme):
    """Give each client the samples of one value of a column, such as the subject of a recording.

    Attributes:
        column: The column whose values are the clients.
        order: The order of the clients: "ascending" is that of the values, "given" that of the first sample of each.
    """

    source: ClassVar[str] = "the data: HiCFL's users of USC-HAD"
    column: Annotated[str, MinLen(1)]
    order: Literal["ascending", "given"] = "ascending"
    works_inside: ClassVar[bool] = False

    def allocate(self, pool: Pool) -> Allocation:
        """Allocate the samples of a pool. The clients get the first values, and have their names.

        Where the mean size is given, every client keeps the same share of its own samples.
        """
        column = self._column_of(pool)
        # Nan among numbers, which is not itself, or a text without characters.
        if missing := int((column == "" if column.dtype.kind == "U" else column != column).sum()):
            raise PartitionKeyError(
                f"partition.column = {shown(self.column)}: {missing} samples have no value in it, so they belong to "
                "no client; fill it in, or leave these samples out"
            )
        values, firsts, owner = np.unique(column, return_index=True, return_inverse=True)
        if pool.clients > len(values):
            raise PartitionError(
                f"{pool.clients} clients need as many different values, but the column has {len(values)}; "
                f"ask for at most {len(values)} clients"
            )
        places = np.argsort(firsts) if self.order == "given" else np.arange(len(values))
        places = places[: pool.clients]
        own = [np.flatnonzero(owner == place).astype(np.int64) for place in places]
        sizes = np.array([len(positions) for positions in own], dtype=np.int64)
        kept = apportion(total_samples(int(sizes.sum()), pool.clients, pool.size), sizes)
        rng = pool.rng("samples")
        samples = tuple(np.sort(rng.permutation(positions)[:keep]) for positions, keep in zip(own, kept, strict=True))
        names = tuple(str(value) for value in values[places])
        return replace(Allocation.unchanged(pool, samples, None), names=names)

    def allocate_test(self, pool: Pool, allocation: Allocation, test: Pool) -> tuple[IntArray, ...]:
        """Allocate the test samples of a data set: each to the client that its column names."""
        column = self._column_of(test).astype(np.str_)
        return tuple(np.flatnonzero(column == name).astype(np.int64) for name in allocation.names)

    def _column_of(self, pool: Pool) -> NDArray[Any]:
        """Return the column whose values are the clients, (samples,)."""
        if self.column not in pool.columns:
            known = ", ".join(pool.columns) or "no further columns"
            raise PartitionKeyError(f"partition.column = {shown(self.column)}: the data has {known}")
        return pool.columns[self.column]
