"""From groups that were drawn anew to clusters that go on from old ones."""

from __future__ import annotations

from dataclasses import replace

from fedstrata.core import Result, Rows
from fedstrata.lazy_torch import torch


def regroup(labels: torch.Tensor, result: Result, groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """New labels, and the old cluster that each new one goes on from: that of most of its members, as `advance` wants.

    Those who were away keep their cluster while it lasts. They wait at its node if several groups go on from it, for
    nobody knows to which they belong; and they stay by themselves if none does.

    Args:
        labels: old cluster of each client, (n,), once the pending ones that answered are settled.
        result: who answered, and the cluster whose model each trained.
        groups: of those who answered, (m,) in 0..g-1, none empty.

    Returns:
        Labels (n,), -1 = pending, and parents (k',); a cluster that is no parent has nobody left.
    """
    parents = [int(result.chosen[groups == group].bincount().argmax()) for group in range(int(groups.max()) + 1)]
    away = torch.ones_like(labels, dtype=torch.bool).index_fill(0, result.updates.clients, False)
    new = torch.full_like(labels, -1).index_copy(0, result.updates.clients, groups)
    for old in labels[away & (labels >= 0)].unique().tolist():
        if old not in parents:
            parents.append(old)
        if parents.count(old) == 1:
            new[away & (labels == old)] = parents.index(old)
    return new, torch.tensor(parents)


def restarted(result: Result, starts: torch.Tensor, models: torch.Tensor, origins: torch.Tensor) -> Result:
    """The answers as if each had been trained from the model that its new cluster goes on from.

    So their mean is the mean of what was uploaded (Algorithm 1, line 30), and bit for bit the mean update of those
    who did start there.

    Args:
        result: who answered.
        starts: what each update is added to, (m, p).
        models: of the old clusters, (k, p).
        origins: the old cluster that the new cluster of each goes on from, (m,).
    """
    moves = result.updates.values + (starts - models[origins])
    return replace(result, updates=Rows(result.updates.clients, moves), chosen=origins)
