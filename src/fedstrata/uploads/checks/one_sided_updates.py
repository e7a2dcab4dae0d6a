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
from fedstrata.uploads.checks.compared_updates import MIN_CLIENTS, ComparedUpdates

_COLUMNS = 512
"""So many of the columns, evenly spread, are compared: enough to estimate a share of them."""

_MIN_COLUMNS = 100
"""Updates are compared if clients differ in at least so many of these columns."""

_LARGEST_BALANCE = 0.9
"""An update is one-sided if its balance is larger than this, or smaller than its opposite.

In honest federations (`honest_balances.py`) the largest was 0.80, of a client with classes that most
others did not have. It is 1 for ALIE and min-max.
"""


def one_sided(updates: ComparedUpdates) -> Bools:
    """Whose update is above the median of its cluster in nearly all columns, or below it.

    Where half of a cluster or more are one-sided, nobody is: a network with a single output may move all its weights
    alike.

    Args:
        updates: The updates of the round. Those of clients that have trained the model of their cluster are compared.

    Returns:
        A bool (m,).
    """
    found = np.zeros(len(updates.own), np.bool_)
    for places, values in balances_by_size(updates):
        extreme = np.abs(values) > _LARGEST_BALANCE
        few = 2 * np.count_nonzero(extreme, axis=1, keepdims=True) < extreme.shape[1]
        found[places] = extreme & few
    return found


def balances_by_size(updates: ComparedUpdates) -> Iterator[tuple[Ints, Floats]]:
    """The places of the updates of the g clusters of m clients, and their balances, (g, m) each, for each such m."""
    columns = evenly_spread(updates.values.shape[1], _COLUMNS)
    some = updates.values.index_select(1, columns).numpy()
    rows, clusters = groups_of(updates.own, MIN_CLIENTS)
    for members in clusters.members_by_size:
        yield rows[members], balances(some[rows[members]])


def balances(values: Floats) -> Floats:
    """The share of columns in which each row is above the median of its column, minus that in which it is below.

    Columns in which all rows are equal do not count. With fewer than a hundred others, all balances are zero.

    Args:
        values: The rows of g clusters of m clients, (g, m, q).

    Returns:
        From -1 to 1, (g, m).
    """
    signs = _signs(values)
    differing = np.count_nonzero(signs.any(axis=1), axis=1)[:, None]
    return np.where(differing >= _MIN_COLUMNS, signs.sum(axis=2) / np.maximum(differing, 1), 0.0)


def _signs(values: Floats) -> Floats:
    """Whether each row (g, m, q) is above the lower median of its column, 1, below it, -1, or neither, 0."""
    middle = (values.shape[1] - 1) // 2
    medians = np.partition(values, middle, axis=1)[:, middle : middle + 1]
    signs: Floats = np.sign(values - medians)
    return signs
