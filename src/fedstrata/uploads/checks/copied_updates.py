"""Clients that send the same update as others of their cluster.

Clients that collude send one update all together, so that it counts several times (sybils; ALIE, IPM and min-max as
well). Honest clients do not, as they train on different samples. So of the clients that send the same, one counts.
Whoever adds some noise to it is not found.

That sybils are told by updates that are too alike: Fung, Yoon, Beschastnikh, "The limitations of federated learning in
sybil settings", RAID 2020. There each client counts less, the more its updates are like those of others. Here that
would weaken honest groups of clients that are alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedstrata.base.lazy_torch import torch
from fedstrata.clustering.groups import Bools
from fedstrata.uploads.checks.compared_updates import ZERO_NORM, ComparedUpdates

_TOLERANCE = 1e-4
"""Updates are the same if their distance is at most so many times their norm."""


def copied(updates: ComparedUpdates, left_out: Bools) -> Bools:
    """Whose update does not count, because another client of its cluster has sent the same.

    Of those who send the same, the client counts that is not left out for other reasons, and of these the one of the
    smallest id. Where half of the clients of a cluster who have answered, or more, send what others send, everyone
    counts: a cluster is what most of its clients are.

    Args:
        updates: The updates of the round. Those of clients that have trained the model of their cluster are compared.
        left_out: Which of the updates are left out for other reasons, bool (m,).

    Returns:
        A bool (m,).
    """
    found = np.zeros_like(left_out)
    norms = updates.norms.tolist()
    ids = updates.clients.tolist()
    for cluster in np.unique(updates.own[updates.own >= 0]).tolist():
        answered = np.flatnonzero(updates.own == cluster).tolist()
        groups = _same_updates(updates.values, norms, answered)
        if 2 * sum(map(len, groups)) < len(answered):
            for group in groups:
                _, *others = sorted(group, key=lambda row: (bool(left_out[row]), ids[row]))
                found[others] = True
    return found


def _same_updates(values: torch.Tensor, norms: Sequence[float], rows: Sequence[int]) -> list[list[int]]:
    """The groups of equal updates, by their places.

    Args:
        values: All updates, (m, q).
        norms: The norm of each, m.
        rows: The places of those that are compared.
    """
    # An update of zeros says nothing about who sent it.
    moved = [row for row in rows if norms[row] > ZERO_NORM]
    groups = list[list[int]]()
    for row in sorted(moved, key=lambda row: (norms[row], row)):
        group = _group_of(row, groups, norms, values)
        if group is None:
            groups.append([row])
        else:
            group.append(row)
    return [group for group in groups if len(group) > 1]


def _group_of(row: int, groups: Sequence[list[int]], norms: Sequence[float], values: torch.Tensor) -> list[int] | None:
    """The group of those that have sent the same as a client; None if nobody has. Equal updates have equal norms.

    Args:
        row: The place of its update.
        groups: The groups so far, in ascending order of their norms, none above that of the update.
        norms: The norms of all updates, m.
        values: All updates, (m, q).
    """
    largest = _TOLERANCE * norms[row]
    for group in reversed(groups):
        first = group[0]
        if norms[row] - norms[first] > largest:
            return None
        if float(torch.dist(values[first], values[row])) <= largest:
            return group
    return None
