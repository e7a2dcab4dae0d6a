"""What a client has sent by its normal training, as far as its cluster compares it."""

from __future__ import annotations

from fedstrata.core import TRAIN, Layout, Report, Rows
from fedstrata.lazy_torch import torch


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
    columns = layout.columns(layout.select("all"))
    return updates if len(columns) == layout.p else updates.only(columns)
