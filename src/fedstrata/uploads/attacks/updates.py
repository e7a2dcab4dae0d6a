"""The attacks on updates: what Byzantine clients with the same model send, by all that they know.

The names are those of the libraries ByzFL and Blades, but for attacks against the clustering, the last ones. Strata
compares updates of two parts of each client's data, so these send in all tasks of a round what belongs together: a test
of replication finds in both parts what they made up. The arguments of every function, and what it returns, are those of
`fedstrata.uploads.attacks.registry.Attack`.
"""

from __future__ import annotations

from fedstrata.base.lazy_torch import torch
from fedstrata.base.randomness import generator
from fedstrata.uploads.attacks.registry import Knowledge

RAMP_ROUNDS = 10
"""The number of rounds after which slow poisoning has its full strength."""


def sign_flip(known: Knowledge) -> torch.Tensor:
    """The trained update times minus `strength`, by default 1."""
    return known.own * -known.strength_or(1.0)


def scaling(known: Knowledge) -> torch.Tensor:
    """The trained update times `strength`, by default 100."""
    return known.own * known.strength_or(100.0)


def zero(known: Knowledge) -> torch.Tensor:
    """Nothing: all zeros."""
    return torch.zeros_like(known.own)


def noise(known: Knowledge) -> torch.Tensor:
    """Normal noise, whose expected squared norm is that of the trained update times the square of `strength`.

    The strength is 10 by default.
    """
    own = known.own
    scale: torch.Tensor = known.strength_or(10.0) * own.norm(dim=1, keepdim=True) / own.shape[1] ** 0.5
    return scale * torch.randn(own.shape, generator=known.generator)


def alie(known: Knowledge) -> torch.Tensor:
    """A little is enough: Baruch et al., NeurIPS 2019: the mean of honest updates minus z standard deviations.

    z is `strength`, by default 1.5. By the formula of the paper z is near 0 where few of the clients are Byzantine, and
    the attack then does nothing. In the paper, attackers estimate mean and deviation from their own honest updates.
    """
    updates = _imitated(known)
    return _by_all(known, updates.mean(dim=0) - known.strength_or(1.5) * _deviation(updates))


def ipm(known: Knowledge) -> torch.Tensor:
    """Inner product manipulation: Xie et al., UAI 2019: the honest mean times minus `strength`, by default 0.5."""
    return _by_all(known, -known.strength_or(0.5) * _imitated(known).mean(dim=0))


def min_max(known: Knowledge) -> torch.Tensor:
    """Min-max: Shejwalkar and Houmansadr, NDSS 2021, Section IV: as far from the honest mean as two honest clients are.

    What is sent is the mean minus a multiple of the standard deviations. The multiple is the largest with which the
    distance from every honest update is at most the largest one between two of them. `strength` multiplies it, by
    default 1.
    """
    updates = _imitated(known).double()
    mean, direction = updates.mean(dim=0), -_deviation(updates)
    farthest = torch.cdist(updates, updates).max()
    # The squared distance of an update x from the mean plus g times the direction d is |x - mean|^2 - 2 g (x - mean) d
    # + g^2 |d|^2. The largest g with which none is above the square of `farthest`:
    length = direction.square().sum().clamp(min=torch.finfo(torch.float64).tiny)
    along = (updates - mean) @ direction
    room = (farthest.square() - (updates - mean).square().sum(dim=1)).clamp(min=0)
    factor = ((along + (along.square() + length * room).sqrt()) / length).min()
    return _by_all(known, (mean + known.strength_or(1.0) * factor * direction).to(known.own.dtype))


def sybil(known: Knowledge) -> torch.Tensor:
    """All send the same (Fung et al., RAID 2020): the honest mean backwards, with the mean norm of honest updates.

    `strength` multiplies it, by default 1.
    """
    mean = _imitated(known).mean(dim=0)
    length = mean.norm().clamp(min=torch.finfo(mean.dtype).tiny)
    return _by_all(known, -known.strength_or(1.0) * _mean_norm(known) * (mean / length))


def slow_poisoning(known: Knowledge) -> torch.Tensor:
    """A sign flip that grows: from the trained update in the first round, in equal steps, to minus `strength` times it.

    The strength is 1 by default, and reached after `RAMP_ROUNDS` rounds. So no round differs much from the one before.
    """
    progress = min(1.0, (known.round - known.from_round) / RAMP_ROUNDS)
    return known.own * (1 - progress * (1 + known.strength_or(1.0)))


def split(known: Knowledge) -> torch.Tensor:
    """Two made-up groups: every second Byzantine client sends a direction, the others its opposite.

    The direction is random, and the same in all tasks and rounds. Its norm is `strength` times the mean norm of the
    honest updates, by default once.
    """
    own = known.own
    direction = torch.randn(own.shape[1], generator=generator(known.seed, "split attack"))
    length = known.strength_or(1.0) * _mean_norm(known)
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
    share = known.strength_or(1.0) * (known.places + 1) / (len(known.byzantine) + 1)
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
            sent[row] = known.strength_or(1.0) * mean
    return sent


def _imitated(known: Knowledge) -> torch.Tensor:
    """The updates whose mean and spread the attackers imitate: the honest ones, or their own where there are none."""
    honest = known.honest
    return honest if len(honest) else known.own


def _mean_norm(known: Knowledge) -> torch.Tensor:
    """The mean norm of the updates that the attackers imitate; a scalar."""
    norms: torch.Tensor = _imitated(known).norm(dim=1)
    return norms.mean()


def _by_all(known: Knowledge, update: torch.Tensor) -> torch.Tensor:
    """The same update (q,) from each of them, (f, q)."""
    return update.expand_as(known.own).clone()


def _deviation(updates: torch.Tensor) -> torch.Tensor:
    """The standard deviation of each column, (p,); 0 for a single update."""
    return updates.std(dim=0, correction=0)
