"""What clients have sent by their normal training, as far as their cluster compares it, and how it is compared."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedstrata.algorithms.shared.groups import Floats
from fedstrata.core import TRAIN, Layout, Report, Rows
from fedstrata.lazy_torch import torch

ZERO_NORM = 1e-30
"""A smaller norm is that of an update of zeros. Updates of a converged client are small, but far longer."""


@dataclass(frozen=True)
class ComparedUpdates:
    """The updates by the normal training of a round, as far as they are compared.

    Attributes:
        clients: Who has sent them, ids int64 (m,).
        values: The columns of convolutions and linear layers, (m, q); running statistics say nothing about a client.
        norms: The norm of each row, (m,).
        own: The cluster of each client that has trained the model of its cluster, int64 (m,); -1 for all others.
        sent: All that they have sent, (m, p).
        ranges: The columns of `values` among the p.
    """

    clients: torch.Tensor
    values: torch.Tensor
    norms: torch.Tensor
    own: torch.Tensor
    sent: Rows
    ranges: tuple[slice, ...]

    @property
    def products(self) -> Floats | None:
        """The inner product of each two rows, (m, m); None where there are many rows, or they are large."""
        return self.sent.products(self.ranges)

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
        clients=updates.clients,
        values=compared_columns(layout, updates).values,
        norms=compared_norms(layout, updates),
        own=own_clusters(report, labels),
        sent=updates,
        ranges=layout.conv_and_linear_ranges,
    )


def compared_norms(layout: Layout, updates: Rows) -> torch.Tensor:
    """The norms of convolutions and linear layers of some updates, (m,)."""
    norms = updates.norms(layout.conv_and_linear_ranges)
    return torch.from_numpy(norms).float()


def own_clusters(report: Report, labels: torch.Tensor) -> torch.Tensor:
    """The cluster of each client that has trained the model of its cluster, (m,); -1 for all others who answered.

    Args:
        report: The report of the round.
        labels: The cluster of each client, (n,); -1 for a pending client.
    """
    result = report.results[TRAIN]
    return torch.where(result.chosen == labels[result.updates.clients], result.chosen, -1)


def compared_columns(layout: Layout, updates: Rows) -> Rows:
    """The columns of convolutions and linear layers of some updates."""
    mask = layout.conv_and_linear_mask
    return updates if mask == layout.everything else updates.take_columns(layout.columns(mask))
