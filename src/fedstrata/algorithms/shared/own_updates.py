"""What clients have sent by their normal training, as far as their cluster compares it, and how it is compared."""

from __future__ import annotations

from fedstrata.core import TRAIN, Layout, Report, Rows
from fedstrata.lazy_torch import torch

ZERO_NORM = 1e-30
"""A smaller norm is that of an update of zeros. Updates of a converged client are small, but far longer."""

_NORMAL_MAD = 0.6745
"""The median absolute deviation of a normal distribution whose standard deviation is 1."""


def modified_z_scores(values: torch.Tensor) -> torch.Tensor:
    """How far each value is above the median, in standard deviations estimated by the median absolute deviation, (m,).

    A few outliers do not change it: Iglewicz and Hoaglin, "How to detect and handle outliers", ASQC 1993.
    """
    deviation = values - values.median()
    spread = deviation.abs().median().clamp(min=torch.finfo(values.dtype).tiny)
    return _NORMAL_MAD * deviation / spread


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
