"""Attacks of clients that also know the round, each other and the true groups. Most are made against the clustering.

Strata compares updates of two parts of each client's data, so these attacks send in all tasks of a round what belongs
together: a test of replication finds in both parts what they made up.
"""

from __future__ import annotations

from fedstrata.base.lazy_torch import torch
from fedstrata.base.randomness import generator
from fedstrata.uploads.attacks.knowledge import Knowledge
from fedstrata.uploads.attacks.updates import mean_norm, or_usual

RAMP_ROUNDS = 10
"""The number of rounds after which slow poisoning has its full strength."""


def slow_poisoning(known: Knowledge) -> torch.Tensor:
    """A sign flip that grows: from the trained update in the first round, in equal steps, to minus `strength` times it.

    The strength is 1 by default, and reached after `RAMP_ROUNDS` rounds. So no round differs much from the one before.
    """
    progress = min(1.0, (known.round - known.from_round) / RAMP_ROUNDS)
    return known.own * (1 - progress * (1 + or_usual(known.strength, 1.0)))


def split(known: Knowledge) -> torch.Tensor:
    """Two made-up groups: every second Byzantine client sends a direction, the others its opposite.

    The direction is random, and the same in all tasks and rounds. Its norm is `strength` times the mean norm of the
    honest updates, by default once.
    """
    own = known.own
    direction = torch.randn(own.shape[1], generator=generator(known.seed, "split attack"))
    length = or_usual(known.strength, 1.0) * mean_norm(own, known.honest)
    sign = 1 - 2 * (known.places % 2)[:, None]
    sent: torch.Tensor = sign * length * direction / direction.norm()
    return sent.to(own.dtype)


def merge(known: Knowledge) -> torch.Tensor:
    """A bridge between groups: points on the way from the mean of the own true group to that of all other groups.

    Of b Byzantine clients, the i-th goes i / (b + 1) of the way, times `strength`, by default 1. The means are those of
    honest updates. Where they know none of their own group, they begin at what they have trained.
    """
    assert known.groups is not None
    sent = known.own.clone()
    share = or_usual(known.strength, 1.0) * (known.places + 1) / (len(known.byzantine) + 1)
    for row, group in enumerate(known.groups[known.clients].tolist()):
        others = known.groups.unique()
        start = known.mean_of(torch.tensor([group]))
        end = known.mean_of(others[others != group])
        start = sent[row] if start is None else start
        sent[row] = start if end is None else torch.lerp(start, end, float(share[row]))
    return sent


def cluster_hopping(known: Knowledge) -> torch.Tensor:
    """The mean of the honest updates of another true group, drawn anew in each round, times `strength`, by default 1.

    A client draws the same group for all tasks of a round. It sends what it has trained where none of them has an
    honest update in the task.
    """
    assert known.groups is not None
    sent = known.own.clone()
    for row, client in enumerate(known.clients.tolist()):
        others = known.groups.unique()
        others = others[others != known.groups[client]]
        if not len(others):
            continue
        draw = generator(known.seed, "cluster hopping", known.round, client)
        mean = known.mean_of(others[torch.randint(len(others), (1,), generator=draw)])
        if mean is not None:
            sent[row] = or_usual(known.strength, 1.0) * mean
    return sent
