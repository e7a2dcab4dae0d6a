"""What clients have sent by their normal training, as far as their cluster compares it, and how it is compared."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedstrata.base.lazy_torch import torch
from fedstrata.clustering.groups import Floats, Ints
from fedstrata.core import TRAIN, Layout, Report, Rows
from fedstrata.core.row_products import norms_of, products_of

ZERO_NORM = 1e-30
"""A smaller norm is that of an update of zeros. Updates of a converged client are small, but far longer."""


@dataclass(frozen=True)
class ComparedUpdates:
    """The updates by the normal training of a round, as far as they are compared.

    Attributes:
        clients: Who has sent them, ids (m,).
        values: The columns of convolutions and linear layers, (m, q); running statistics say nothing about a client.
        norms: The norm of each row, float32 (m,).
        own: The cluster of each client that has trained the model of its cluster, (m,); -1 for all others.
        sent: All that they have sent, (m, p).
        ranges: The columns of `values` among the p.
    """

    clients: Ints
    values: torch.Tensor
    norms: Floats
    own: Ints
    sent: Rows
    ranges: tuple[slice, ...]

    @property
    def products(self) -> Floats | None:
        """The inner product of each two rows, (m, m); None where there are many rows, or they are large."""
        return products_of(self.sent, self.ranges)

    def of_clusters(self, report: Report, labels: torch.Tensor) -> ComparedUpdates:
        """The same with other clusters, (n,)."""
        return replace(self, own=own_clusters(report, labels))


def compared_updates(layout: Layout, report: Report, labels: torch.Tensor) -> ComparedUpdates:
    """The updates by the normal training of a round, as they are compared.

    Where a network has other columns than these, they are a copy.

    Args:
        layout: The layout of the network.
        report: The report of the round.
        labels: The cluster of each client, (n,); -1 for a pending client.
    """
    updates = report.results[TRAIN].updates
    return ComparedUpdates(
        clients=updates.clients.numpy(),
        values=compared_columns(layout, updates).values,
        norms=compared_norms(layout, updates),
        own=own_clusters(report, labels),
        sent=updates,
        ranges=layout.conv_and_linear_ranges,
    )


def compared_norms(layout: Layout, updates: Rows) -> Floats:
    """The norms of convolutions and linear layers of some updates, float32 (m,)."""
    # numpy would warn of a norm that is no float32 number; torch makes it infinite.
    norms: Floats = torch.from_numpy(norms_of(updates, layout.conv_and_linear_ranges)).float().numpy()
    return norms


def own_clusters(report: Report, labels: torch.Tensor) -> Ints:
    """The cluster of each client that has trained the model of its cluster, (m,); -1 for all others who answered.

    Args:
        report: The report of the round.
        labels: The cluster of each client, (n,); -1 for a pending client.
    """
    result = report.results[TRAIN]
    chosen = result.chosen.numpy()
    return np.where(chosen == labels.numpy()[result.updates.clients.numpy()], chosen, -1)


def compared_columns(layout: Layout, updates: Rows) -> Rows:
    """The columns of convolutions and linear layers of some updates."""
    mask = layout.conv_and_linear_mask
    return updates if mask == layout.everything else updates.take_columns(layout.columns(mask))
