"""Two groups that differ in more than how often each class occurs.

Where every client has its own mix of classes, most of what tells their updates apart is this mix, and groups of like
updates are groups of like mixes. Another difference, such as images that are turned, is hidden behind it. The update of
the last layer's bias shows the mix: a step of SGD on the cross-entropy moves the bias of a class by the share of the
class minus its mean probability. So what the leading principal components of this update explain by linear regression
is taken out of the updates of the first linear layer. The first principal axis of what is left parts the clients.

That the bias of the last layer shows the mix: Wang, Xu, Zhu, Zhu, "Addressing class imbalance in federated learning",
AAAI 2021, of its whole weights. Regression on leading components of what confounds a comparison: Price et al.,
"Principal components analysis corrects for stratification in genome-wide association studies", Nature Genetics 2006.
"""

from __future__ import annotations

from fedstrata.algorithms.evidence.layer_scan import bias_of
from fedstrata.base.lazy_torch import torch
from fedstrata.core import Layout, Rows

_COMPONENTS = 3
"""The number of principal components of the last layer's bias that stand for the class mix."""

_CLIENTS_PER_COEFFICIENT = 3
"""The least number of clients for each coefficient of the regression, its constant included."""

_TOLERANCE = 1e-6
"""A smaller share of what it is compared with is rounding, in single precision."""


def sides_beyond_class_mixes(layout: Layout, updates: Rows) -> torch.Tensor | None:
    """Who is on the second of two sides that differ in more than the class mix, bool (m,); None where nothing says it.

    Args:
        layout: The layout of the network. Its last layer needs a bias.
        updates: The updates of the clients, (m, p).
    """
    bias = bias_of(layout)
    if bias is None:
        return None
    rows = updates.values
    by_class = _centred(rows[:, layout.columns(layout.select(bias))])
    components = min(_COMPONENTS, by_class.shape[1] - 1)
    if components < 1 or len(rows) < _CLIENTS_PER_COEFFICIENT * (components + 1):
        return None
    scores, strengths, _ = torch.linalg.svd(by_class, full_matrices=False)
    # A component without any spread is rounding, and says nothing of a mix.
    mixes = scores[:, :components][:, strengths[:components] > _TOLERANCE * strengths[0]]
    first = _centred(rows[:, layout.columns(layout.select("first_linear"))])
    rest = first - mixes @ (mixes.T @ first)
    lengths = torch.linalg.vector_norm(rest, dim=1, keepdim=True)
    if bool((lengths <= _TOLERANCE * torch.linalg.vector_norm(first)).any()):
        return None
    units = _centred(rest / lengths)
    second: torch.Tensor = torch.linalg.svd(units, full_matrices=False).U[:, 0] > 0
    # So that the sides do not depend on the sign of the axis.
    second = second != second[0]
    return second if bool(second.any()) else None


def _centred(rows: torch.Tensor) -> torch.Tensor:
    """Rows minus their mean, in double precision."""
    exact = rows.double()
    centred: torch.Tensor = exact - exact.mean(dim=0)
    return centred
