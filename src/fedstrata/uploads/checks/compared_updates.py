"""What clients have sent by their normal training, as far as their cluster compares it, and how it is compared.

Of few updates, the inner product of each with each other is computed at once, and all that is asked of the updates of a
cluster follows from these: how far they point along the sum of some, and along their main axis. Of many, they would
take more time than the sums themselves. Whatever is known of single clients is taken out of the rows of all clients,
and put back, as arrays of numpy, whose calls on a few numbers take a fraction of the time of torch's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedstrata.base.lazy_torch import torch
from fedstrata.clustering.groups import Bools, Floats, GroupIndex, Ints
from fedstrata.core import TRAIN, Layout, Report, Rows, evenly_spread
from fedstrata.core.row_products import compared_ranges, norms_of

DECAY = 0.9
"""The weight of a round in what is averaged over rounds, relative to the next one: the last ten or so count."""

MIN_CLIENTS = 3
"""The updates of a cluster are compared if at least so many of its clients answer."""

ZERO_NORM = 1e-30
"""A smaller norm is that of an update of zeros. Updates of a converged client are small, but far longer."""

_AXIS_COLUMNS = 4096
"""Where the products are not known, the principal axis is that of so many of the columns at most, evenly spread."""

_AXIS_STEPS = 20
"""The number of power iterations that find the principal axis."""

_LEAST_NORM = 1e-15
"""Products of updates with a smaller norm may be too small for float32."""


@dataclass(frozen=True)
class ComparedUpdates:
    """The updates by the normal training of a round, as far as they are compared.

    Attributes:
        clients: Who has sent them, ids (m,).
        values: The columns of convolutions and linear layers, (m, q); running statistics say nothing about a client.
        norms: The norm of each row, float32 (m,).
        sizes: The number of training samples of each client, (m,).
        own: The cluster of each client that has trained the model of its cluster, (m,); -1 for all others.
        sent: All that they have sent, (m, p).
        ranges: The columns of `values` among the p.
    """

    clients: Ints
    values: torch.Tensor
    norms: Floats
    sizes: Ints
    own: Ints
    sent: Rows
    ranges: tuple[slice, ...]


def compared_updates(layout: Layout, report: Report, labels: torch.Tensor) -> ComparedUpdates:
    """The updates by the normal training of a round, as they are compared.

    Where a network has other columns than these, they are a copy.

    Args:
        layout: The layout of the network.
        report: The report of the round.
        labels: The cluster of each client, (n,); -1 for a pending client.
    """
    result = report.results[TRAIN]
    updates = result.updates
    clients = updates.clients.numpy()
    chosen = result.chosen.numpy()
    ranges = compared_ranges(layout)
    return ComparedUpdates(
        clients=clients,
        values=compared_columns(layout, updates).values,
        # numpy would warn of a norm that is no float32 number; torch makes it infinite.
        norms=torch.from_numpy(norms_of(updates, ranges)).float().numpy(),
        sizes=result.sizes.numpy(),
        own=np.where(chosen == labels.numpy()[clients], chosen, -1),
        sent=updates,
        ranges=ranges,
    )


def compared_columns(layout: Layout, updates: Rows) -> Rows:
    """The columns of convolutions and linear layers of some updates."""
    mask = layout.select("all")
    return updates if mask == layout.everything else updates.take_columns(layout.columns(mask))


@dataclass(frozen=True)
class UpdatesOfClusters:
    """The updates that are compared. Those of large clusters are not copied, as they may take much memory.

    Attributes:
        clusters: The cluster of each of the m clients that have sent them.
        values: The compared columns of all updates of the round, (a, q).
        rows: The place of each client among them, (m,).
        norms: The norm of each client's update, (m,).
        products: The inner product of each two updates of the round, (a, a); None where there are many.
    """

    clusters: GroupIndex
    values: torch.Tensor
    rows: Ints
    norms: Floats
    products: Floats | None

    @cached_property
    def moved(self) -> Bools:
        """Whose update is not zero, (m,)."""
        return self.norms > ZERO_NORM

    def along_sums(self, counted: Bools) -> tuple[Floats, Floats]:
        """How far each update points along the sum of some of those of its cluster, all scaled to norm 1.

        Args:
            counted: Which updates are in the sum, (m,). None of them is zero.

        Returns:
            The inner product of each update with the sum of its cluster, (m,); and the squared norm of the sum, (m,).
        """
        if self._cosines is None:
            return self._along_computed_sums(counted)
        along: Floats = self._cosines @ counted
        of = self.clusters.of
        return along, self.clusters.sums(along * counted)[of]

    def _along_computed_sums(self, counted: Bools) -> tuple[Floats, Floats]:
        """The same without the cosine of each two updates, which would be many; row by row, without a copy."""
        along = np.empty(len(counted))
        squares = np.empty(len(counted))
        for members in self._members():
            total = torch.zeros(self.values.shape[1])
            for place in members.tolist():
                if counted[place]:
                    total.add_(self.values[self.rows[place]], alpha=1 / float(self.norms[place]))
            for place in members.tolist():
                along[place] = float(torch.dot(self.values[self.rows[place]], total)) / self.norms[place]
            squares[members] = float(torch.dot(total, total))
        return along, squares

    def along_axes(self, counted: Bools) -> Floats:
        """How far each counted update, (m,) bool, points along the first principal axis of those of its cluster, (m,).

        The updates are scaled to norm 1. The axis goes through zero: they are not centred. The numbers of a cluster are
        the inner products up to one factor, and 0 for those that are not counted.
        """
        if self._cosines is not None:
            products = self._cosines * (counted[:, None] & counted)
            # No eigenvalue is above 1 then, and the largest is at least 1 / m: its power is a number.
            scaled = products / self.clusters.sizes[self.clusters.of]
            found: Floats = np.linalg.matrix_power(scaled, _AXIS_STEPS) @ products.sum(axis=1)
            return found
        columns = evenly_spread(self.values.shape[1], _AXIS_COLUMNS)
        compared = self.values.index_select(1, columns).index_select(0, torch.from_numpy(self.rows))
        units = compared / torch.from_numpy(self.norms)[:, None]
        along = np.zeros(len(counted))
        for members in self._members():
            places = members[counted[members]]
            some = units.index_select(0, torch.from_numpy(places))
            # Power iterations, which begin with the sum of the rows.
            axis = some.sum(dim=0)
            for _ in range(_AXIS_STEPS):
                axis = some.T @ (some @ axis)
                axis = axis / torch.linalg.vector_norm(axis).clamp_min(ZERO_NORM)
            along[places] = (some @ axis).numpy()
        return along

    @cached_property
    def _cosines(self) -> Floats | None:
        """The cosine of each two updates of one cluster, (m, m), and 0 elsewhere; None where they are not known.

        Products of updates that are nearly zero may have vanished.
        """
        if self.products is None or (self.moved & (self.norms < _LEAST_NORM)).any():
            return None
        same = self.clusters.of[:, None] == self.clusters.of
        norms = self.norms.astype(np.float64)
        cosines = self.products[self.rows[:, None], self.rows] / (norms[:, None] * norms)
        cosines.flat[:: len(cosines) + 1] = 1.0  # the diagonal, in a fraction of the time of fill_diagonal
        return np.where(same, cosines, 0.0)

    def _members(self) -> Iterator[Ints]:
        """The places of the clients of each cluster among the m."""
        for cluster in range(self.clusters.count):
            yield np.flatnonzero(self.clusters.of == cluster)


@dataclass(frozen=True)
class ClientHistory:
    """What is known of clients. Each field that is a tensor has a row for every client, (n, ...)."""

    def rows_of(self, ids: Ints) -> dict[str, NDArray[Any]]:
        """The rows of some clients, ids (m,), by the name of the field."""
        return {name: values.numpy()[ids] for name, values in self._tensors.items()}

    def with_rows(self, ids: Ints, rows: Any) -> Self:
        """The same with other rows of some clients.

        Args:
            ids: The clients, (m,).
            rows: A dataclass whose fields are these rows, (m, ...), each with the name of the tensor.
        """
        known = self._tensors
        changed: dict[str, Any] = {name: known[name].clone() for name in vars(rows)}
        for name, values in changed.items():
            values.numpy()[ids] = getattr(rows, name)
        return replace(self, **changed)

    def without(self, clients: torch.Tensor) -> Self:
        """The same where some clients, bool (n,), have what every client has before its first upload: zeros."""
        changed: dict[str, Any] = {name: values.masked_fill(clients, 0) for name, values in self._tensors.items()}
        return replace(self, **changed)

    @property
    def _tensors(self) -> dict[str, torch.Tensor]:
        return {name: values for name, values in vars(self).items() if isinstance(values, torch.Tensor)}
