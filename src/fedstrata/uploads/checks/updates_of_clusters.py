"""How the updates of each cluster point beside each other: along the sum of some of them, and along their main axis.

Of few updates, the inner product of each with each other is computed at once, and all that is asked for follows from
these. Of many, they would take more time than the sums themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedstrata.base.lazy_torch import torch
from fedstrata.clustering.groups import Bools, Floats, GroupIndex, Ints
from fedstrata.core import evenly_spread
from fedstrata.uploads.checks.compared_updates import ZERO_NORM

_AXIS_COLUMNS = 4096
"""Where the products are not known, the principal axis is that of so many of the columns at most, evenly spread."""

_AXIS_STEPS = 20
"""The number of power iterations that find the principal axis."""

_GRAM_CLIENTS = 512
"""For up to so many clients of a cluster, these multiply by the products of its updates, which are then few."""

_COPIED = 2**20
"""Clusters whose updates have up to so many numbers are copied, as a call for each row would take longer."""

_LEAST_NORM = 1e-15
"""Products of updates with a smaller norm may be too small for float32."""


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
        """The same without the cosine of each two updates, which would be many."""
        along = np.empty(len(counted))
        squares = np.empty(len(counted))
        weights = (counted / self.norms).astype(np.float32)
        for members in self._members():
            products = _products_by_copy if len(members) * self.values.shape[1] <= _COPIED else _products_by_row
            total, products_with_total = products(self.values, self.rows[members], weights[members])
            along[members] = products_with_total / self.norms[members]
            squares[members] = float(torch.dot(total, total))
        return along, squares

    def along_axes(self, counted: Bools) -> Floats:
        """How far each counted update, (m,) bool, points along the first principal axis of those of its cluster, (m,).

        The updates are scaled to norm 1. The axis goes through zero: they are not centred. The numbers of a cluster are
        the inner products up to one factor, and 0 for those that are not counted.
        """
        if self._cosines is not None:
            return _along_axes_by_products(self._cosines * (counted[:, None] & counted), self.clusters)
        columns = evenly_spread(self.values.shape[1], _AXIS_COLUMNS)
        some = self.values.index_select(1, columns).index_select(0, torch.from_numpy(self.rows))
        units = some / torch.from_numpy(self.norms)[:, None]
        along = np.zeros(len(counted))
        for members in self._members():
            places = members[counted[members]]
            along[places] = _along_axis_of_rows(units.index_select(0, torch.from_numpy(places)))
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


def _along_axes_by_products(products: Floats, clusters: GroupIndex) -> Floats:
    """The inner product of each row with the first principal axis of its cluster, up to one factor for each, (m,).

    Args:
        products: The inner product of each two rows of norm 1 that are in one cluster, (m, m), and 0 elsewhere.
        clusters: The cluster of each row.
    """
    # No eigenvalue is above 1 then, and the largest is at least 1 / m: its power is a number.
    scaled = products / clusters.sizes[clusters.of]
    along: Floats = np.linalg.matrix_power(scaled, _AXIS_STEPS) @ products.sum(axis=1)
    return along


def _along_axis_of_rows(units: torch.Tensor) -> Floats:
    """The same for the rows (m, k) of one cluster, by power iterations that begin with the sum of the rows, (m,)."""
    if len(units) <= _GRAM_CLIENTS:
        everyone = GroupIndex(np.zeros(len(units), np.int64), 1)
        return _along_axes_by_products((units @ units.T).double().numpy(), everyone)
    axis = units.sum(dim=0)
    for _ in range(_AXIS_STEPS):
        axis = units.T @ (units @ axis)
        axis = axis / torch.linalg.vector_norm(axis).clamp_min(ZERO_NORM)
    return (units @ axis).numpy()


def _products_by_copy(values: torch.Tensor, rows: Ints, weights: Floats) -> tuple[torch.Tensor, Floats]:
    """The weighted sum of some rows of values (a, q), (q,), and its inner product with each, (m,): by a copy."""
    some = values.index_select(0, torch.from_numpy(rows))
    total = torch.from_numpy(weights) @ some
    return total, (some @ total).numpy()


def _products_by_row(values: torch.Tensor, rows: Ints, weights: Floats) -> tuple[torch.Tensor, Floats]:
    """The same row by row, without a copy."""
    total = torch.zeros(values.shape[1])
    for row, weight in zip(rows.tolist(), weights.tolist(), strict=True):
        total.add_(values[row], alpha=weight)
    return total, np.array([float(torch.dot(values[row], total)) for row in rows.tolist()], np.float32)
