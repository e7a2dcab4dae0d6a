"""Updates that lie on one side of those of their cluster in nearly all columns.

ALIE and min-max shift every column of the honest mean by so many of its standard deviations, always to the same side.
Each number of such an update is ordinary, and so are its norm and its direction. But an honest update is above the
coordinate-wise median of its cluster in some columns, and below it in others. Whoever shifts each column to a side of
its own is not found.

That the signs of an update's columns expose what its norm and direction do not: Xu, Huang, Song, Lan, "Byzantine-robust
federated learning through collaborative malicious gradient filtering", ICDCS 2022 (SignGuard). There the updates
themselves have the signs. Here their differences from the median have them, which are as often positive as negative
also where the inputs of a network are all positive.
"""

from __future__ import annotations

from collections.abc import Iterator

from fedstrata.algorithms.shared.own_updates import own_clusters
from fedstrata.core import TRAIN, Layout, Report, evenly_spread
from fedstrata.lazy_torch import torch

_COLUMNS = 512
"""So many of the columns, evenly spread, are compared: enough to estimate a share of them."""

_MIN_COLUMNS = 100
"""Updates are compared if clients differ in at least so many of these columns."""

_LARGEST_BALANCE = 0.9
"""An update is one-sided if its balance is larger than this, or smaller than its opposite.

In honest federations (``experiments/honest_balances.py``) the largest was 0.80, of a client with classes that most
others did not have. It is 1 for ALIE and min-max.
"""

_MIN_CLIENTS = 3
"""Updates are compared if at least so many clients of a cluster answer."""


def one_sided(layout: Layout, report: Report, labels: torch.Tensor) -> torch.Tensor:
    """Whose update of the normal training is above the median of its cluster in nearly all columns, or below it.

    Convolutions and linear layers are compared, of the clients that have trained the model of their cluster. Where half
    of these or more are one-sided, nobody is: a network with a single output may move all its weights alike.

    Args:
        layout: The layout of the network.
        report: The report of the round.
        labels: The cluster of each client in this round, (n,); -1 for a pending client.

    Returns:
        A bool (n,).
    """
    found = torch.zeros(len(labels), dtype=torch.bool)
    for clients, values in balances_by_cluster(layout, report, labels):
        extreme = values.abs() > _LARGEST_BALANCE
        if 2 * int(extreme.sum()) < len(clients):
            found[clients[extreme]] = True
    return found


def balances_by_cluster(
    layout: Layout, report: Report, labels: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The compared clients of each cluster, ids (m,), and the balances of their updates, (m,).

    The arguments are as in `one_sided`.
    """
    updates = report.results[TRAIN].updates
    own = own_clusters(report, labels)
    columns = layout.conv_and_linear
    values = updates.values[:, columns[evenly_spread(len(columns), _COLUMNS)]]
    for cluster in own[own >= 0].unique().tolist():
        rows = (own == cluster).nonzero().flatten()
        if len(rows) >= _MIN_CLIENTS:
            yield updates.clients[rows], balances(values[rows])


def balances(values: torch.Tensor) -> torch.Tensor:
    """The share of columns in which each row is above the median of its column, minus that in which it is below.

    Columns in which all rows are equal do not count. With fewer than a hundred others, all balances are zero.

    Args:
        values: The rows, (m, c).

    Returns:
        From -1 to 1, (m,).
    """
    signs = (values - values.median(dim=0).values).sign()
    differing = int(signs.any(dim=0).sum())
    if differing < _MIN_COLUMNS:
        return torch.zeros(len(values))
    found: torch.Tensor = signs.sum(dim=1) / differing
    return found
