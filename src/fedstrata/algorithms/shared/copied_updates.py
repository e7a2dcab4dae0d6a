"""Clients that send the same update as others of their cluster.

Clients that collude send one update all together, so that it counts several times (sybils; ALIE, IPM and min-max as
well). Honest clients do not, as they train on different samples. So of the clients that send the same, one counts.
Whoever adds some noise to it is not found.

That sybils are told by updates that are too alike: Fung, Yoon, Beschastnikh, "The limitations of federated learning in
sybil settings", RAID 2020. There each client counts less, the more its updates are like those of others. Here that
would weaken honest groups of clients that are alike.
"""

from __future__ import annotations

from fedstrata.core import TRAIN, Report, Rows
from fedstrata.lazy_torch import torch

_TOLERANCE = 1e-4
"""Updates are the same if their distance is at most so many times their norm."""

_COLUMNS = 4096
"""So many of the columns, evenly spread, are compared first: enough to tell updates that are not the same."""

_TINY = 1e-30
"""A smaller norm is that of an update of zeros, which says nothing about who sent it."""


def originals_of(report: Report, labels: torch.Tensor) -> torch.Tensor:
    """Whose update of the normal training each client has sent, (n,): its own, or that of a client of smaller id.

    Those are compared that have trained the model of their cluster. Where half of these or more send what others send,
    everyone counts: a cluster is what most of its clients are.

    Args:
        report: The report of the round.
        labels: The cluster of each client, (n,); -1 for a pending client.
    """
    result = report.results[TRAIN]
    clients = result.updates.clients
    own = torch.where(result.chosen == labels[clients], result.chosen, -1)
    originals = torch.arange(len(labels))
    for cluster in own[own >= 0].unique().tolist():
        answered = (own == cluster).nonzero().flatten()
        found = _same_updates(result.updates, answered[clients[answered].argsort()])
        if 2 * sum(map(len, found)) < len(answered):
            for first, *others in found:
                originals[others] = first
    return originals


def _same_updates(updates: Rows, rows: torch.Tensor) -> list[list[int]]:
    """The groups of clients that have sent the same update, ids in ascending order.

    Args:
        updates: The updates, (m, p).
        rows: Whose of them are compared, places in the order of ids.
    """
    p = updates.values.shape[1]
    columns = torch.linspace(0, p - 1, min(p, _COLUMNS), dtype=torch.float64).long()
    some = updates.values[:, columns]
    norms = torch.linalg.vector_norm(some, dim=1)
    # Equal updates have equal norms, so that they are neighbours in this order.
    rows = rows[norms[rows].argsort(stable=True)]
    lengths = norms[rows].tolist()
    groups = [rows[:1].tolist()]
    for place, row in enumerate(rows[1:].tolist(), start=1):
        before = groups[-1][-1]
        is_near = lengths[place] - lengths[place - 1] <= _TOLERANCE * lengths[place]
        if is_near and all(_are_same(each[before], each[row]) for each in (some, updates.values)):
            groups[-1].append(row)
        else:
            groups.append([row])
    return [sorted(updates.clients[group].tolist()) for group in groups if len(group) > 1]


def _are_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two updates, (p,) each, are the same, and not zero."""
    length = float(torch.linalg.vector_norm(other))
    return length > _TINY and float(torch.dist(one, other)) <= _TOLERANCE * length
