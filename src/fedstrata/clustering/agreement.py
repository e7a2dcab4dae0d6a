"""How well two groupings of the same clients agree, whatever their groups are called.

A negative label is a client that waits for its group; each such client counts as a group of its own.
"""

from __future__ import annotations

import numpy as np

from fedstrata.clustering.arrays import GroupLabels, Numbers, renumbered


def ari(labels: Numbers, truth: Numbers) -> float:
    """Adjusted Rand index: 1 for the same groups, about 0 for chance (Hubert and Arabie, 1985).

    Args:
        labels: The cluster of each client, (m,) integers.
        truth: The true group of each client, (m,) integers.

    Raises:
        ValueError: When the lengths differ or there is no client.
    """
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(*_both(truth, labels)))


def purity(labels: Numbers, truth: Numbers) -> float:
    """Share of clients that belong to the true group most frequent in their cluster; 1 for clusters of one.

    Not symmetric: the first argument is what was found.

    Args:
        labels: The cluster that was found for each client, (m,) integers.
        truth: The true group of each client, (m,) integers.

    Raises:
        ValueError: When the lengths differ or there is no client.
    """
    found, true = _both(labels, truth)
    # The clients of each pair of a cluster and a true group: with many waiting clients there are many clusters.
    groups = int(true.max()) + 1
    pairs, sizes = np.unique(found * groups + true, return_counts=True)
    clusters = pairs // groups
    largest = np.maximum.reduceat(sizes, np.flatnonzero(np.diff(clusters, prepend=-1)))
    return int(largest.sum()) / len(found)


def _both(first: Numbers, second: Numbers) -> tuple[GroupLabels, GroupLabels]:
    one = renumbered(first)
    two = renumbered(second)
    if not len(one) or len(one) != len(two):
        raise ValueError(f"expected two labels for each of at least one client, found {len(one)} and {len(two)}")
    return one, two
