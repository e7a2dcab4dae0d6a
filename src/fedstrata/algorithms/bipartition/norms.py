"""The norms of a cluster's updates: is its model stationary, and is it for every member?"""

from __future__ import annotations

from fedstrata.base.lazy_torch import torch
from fedstrata.core import Problem, Result
from fedstrata.core.aggregation import plain_mean, weighted_mean

EPS1_SHARE = 0.1
"""The automatic eps1 is this share of the largest update norm of the cluster (Sattler et al. 2020, section V)."""

EPS2_SHARE = 0.4
"""The automatic eps2. The authors' own experiments use 4 times eps1 (0.4 and 1.6)."""


def max_norm(rows: torch.Tensor) -> float:
    """The largest norm of a row (LayerCFL Eq. 28); 0 without rows."""
    if not len(rows):
        return 0.0
    return float(rows.double().norm(dim=1).max())  # Squares of float32 overflow long before their roots.


def mean_norm(problem: Problem, usable: Result) -> float:
    """The norm of the mean update of some clients, over all conv and linear layers (LayerCFL Eq. 27)."""
    updates = usable.updates.take_columns(problem.layout.conv_and_linear)
    together = torch.zeros(len(usable.sizes), dtype=torch.int64)
    # Not by a robust rule: of two groups it follows the larger one, so that no cluster would be stationary.
    mean = plain_mean if problem.aggregation.rule is plain_mean else weighted_mean
    return float(mean(updates, usable.sizes, together, 1).double().norm())


def norm_threshold(value: float | str, largest: torch.Tensor, share: float) -> float:
    """A threshold as given, or a share of the largest norm seen where it is ``"auto"``."""
    return share * float(largest) if isinstance(value, str) else value
