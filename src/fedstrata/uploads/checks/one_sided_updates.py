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

import numpy as np

from fedstrata.clustering.groups import Bools, Floats, Ints, groups_of
from fedstrata.core import evenly_spread
from fedstrata.uploads.checks.compared_updates import ComparedUpdates

_COLUMNS = 512
"""So many of the columns, evenly spread, are compared: enough to estimate a share of them."""

_STRIDE = 4
"""Every fourth of them is looked at first, which tells that nobody is one-sided in nearly all honest rounds."""

_MIN_COLUMNS = 100
"""Updates are compared if clients differ in at least so many of these columns."""

_LARGEST_BALANCE = 0.9
"""An update is one-sided if its balance is larger than this, or smaller than its opposite.

In honest federations (`honest_balances.py`) the largest was 0.80, of a client with classes that most
others did not have. It is 1 for ALIE and min-max.
"""

_MIN_CLIENTS = 3
"""Updates are compared if at least so many clients of a cluster answer."""


def one_sided(updates: ComparedUpdates) -> list[int]:
    """Whose update is above the median of its cluster in nearly all columns, or below it.

    Where half of a cluster or more are one-sided, nobody is: a network with a single output may move all its weights
    alike.

    Args:
        updates: The updates of the round. Those of clients that have trained the model of their cluster are compared.

    Returns:
        Their ids.
    """
    columns = evenly_spread(updates.values.shape[1], _COLUMNS)
    some = updates.values.index_select(1, columns[::_STRIDE]).numpy()
    found = list[int]()
    for clusters in _clusters_by_size(updates):
        for members in clusters[_may_be_one_sided(some[clusters], len(columns))]:
            values = balances(updates.values[members][:, columns].numpy())
            extreme = np.abs(values) > _LARGEST_BALANCE
            if 0 < 2 * np.count_nonzero(extreme) < len(members):
                found += updates.clients[members[extreme]].tolist()
    return found


def _may_be_one_sided(values: Floats, columns: int) -> Bools:
    """In which clusters the balance of a row may be extreme in all columns, by those in some of them.

    A column in which a row is not on the one side takes its balance down by as much, wherever the column is.

    Args:
        values: Some columns of the rows of g clusters of m clients, (g, m, q').
        columns: The number of all columns.

    Returns:
        A bool (g,).
    """
    signs = _signs(values)
    differing = signs.any(axis=1).sum(axis=1)
    balanced = differing[:, None] - np.abs(signs.sum(axis=2))
    found: Bools = (balanced <= (1 - _LARGEST_BALANCE) * columns).any(axis=1)
    return found


def balances_by_cluster(updates: ComparedUpdates) -> Iterator[tuple[Ints, Floats]]:
    """The compared clients of each cluster, ids (m,), and the balances of their updates, (m,)."""
    columns = evenly_spread(updates.values.shape[1], _COLUMNS)
    for clusters in _clusters_by_size(updates):
        for members in clusters:
            yield updates.clients[members], balances(updates.values[members][:, columns].numpy())


def _clusters_by_size(updates: ComparedUpdates) -> Iterator[Ints]:
    """The places of the compared updates of all clusters of m clients, (g, m), for each such m."""
    rows, clusters = groups_of(updates.own, _MIN_CLIENTS)
    for members in clusters.members_by_size:
        yield rows[members]


def balances(values: Floats) -> Floats:
    """The share of columns in which each row is above the median of its column, minus that in which it is below.

    Columns in which all rows are equal do not count. With fewer than a hundred others, all balances are zero.

    Args:
        values: The rows, (m, q).

    Returns:
        From -1 to 1, (m,).
    """
    signs = _signs(values)
    differing = np.count_nonzero(signs.any(axis=0))
    balance: Floats = signs.sum(axis=1) / max(differing, 1)
    return balance if differing >= _MIN_COLUMNS else np.zeros_like(balance)


def _signs(values: Floats) -> Floats:
    """Whether each row (..., m, q) is above the lower median of its column, 1, below it, -1, or neither, 0."""
    middle = (values.shape[-2] - 1) // 2
    medians = np.partition(values, middle, axis=-2)[..., middle : middle + 1, :]
    signs: Floats = np.sign(values - medians)
    return signs
