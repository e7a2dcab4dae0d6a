"""The attacks on updates: what Byzantine clients with the same model send, by all that they know; and all names.

The names are those of the libraries ByzFL and Blades, but for attacks against the clustering, the last ones. Strata
compares updates of two parts of each client's data, so these send in all tasks of a round what belongs together: a test
of replication finds in both parts what they made up. The arguments of every function, and what it returns, are those of
`Attack`. A new one is a function, and an entry in `ATTACKS`. An attack on data has its name in `DATA_ATTACKS`, and what
it does to the data in ``build/attacks.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from fedstrata.base.lazy_torch import torch
from fedstrata.base.randomness import generator
from fedstrata.base.registry import Registry
from fedstrata.core import TRAIN, Rows

RAMP_ROUNDS = 10
"""The number of rounds after which slow poisoning has its full strength."""


@dataclass(frozen=True)
class Knowledge:
    """What the Byzantine clients with one model know in a task of a round.

    Attributes:
        updates: What all clients have trained in this task, with any model, (m, p).
        columns: The columns that are uploaded in it, (q,).
        senders: Which of them are Byzantine and have this model, bool (m,).
        known: Which of them are honest and have not diverged, bool (m,).
        same_model: Which of them have this model, bool (m,).
        byzantine: The ids of all Byzantine clients, ascending (b,).
        groups: The true group of each client when the run begins, (n,); None where there are none.
        strength: The strength of the attack; None is its usual one.
        round: The number of the round.
        from_round: The first round in which they attack.
        seed: The seed of the run.
        generator: The random numbers of this task and round.
        task: The name of the task: "train" for the updates that are averaged; others are only looked at.
        layers: The places of each layer's weights among the columns, by the name of the layer.
    """

    updates: Rows
    columns: torch.Tensor
    senders: torch.Tensor
    known: torch.Tensor
    same_model: torch.Tensor
    byzantine: torch.Tensor
    groups: torch.Tensor | None
    strength: float | None
    round: int
    from_round: int
    seed: int
    generator: torch.Generator
    task: str = TRAIN
    layers: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def strength_or(self, usual: float) -> float:
        """The strength of the attack, or its usual one."""
        return usual if self.strength is None else self.strength

    @property
    def own(self) -> torch.Tensor:
        """The updates that the senders have trained, (f, q)."""
        return self._uploaded(self.senders)

    @property
    def honest(self) -> torch.Tensor:
        """The updates of the honest clients with the same model, (h, q)."""
        return self._uploaded(self.known & self.same_model)

    @property
    def clients(self) -> torch.Tensor:
        """The ids of the senders, (f,)."""
        return self.updates.clients[self.senders]

    @property
    def places(self) -> torch.Tensor:
        """The place of each sender among all Byzantine clients, (f,). It is the same in all tasks and rounds."""
        return torch.searchsorted(self.byzantine, self.clients)

    def mean_of(self, groups: torch.Tensor) -> torch.Tensor | None:
        """The mean update of the honest clients of some true groups, with any model, (q,); None where there are none.

        Args:
            groups: The numbers of the groups, (g,).
        """
        assert self.groups is not None, "the attack needs true groups"
        here = self.known & torch.isin(self.groups[self.updates.clients], groups)
        return self._uploaded(here).mean(dim=0) if bool(here.any()) else None

    def _uploaded(self, rows: torch.Tensor) -> torch.Tensor:
        """What some clients would upload, by a bool (m,)."""
        return self.updates.values[rows][:, self.columns]


Attack: TypeAlias = "Callable[[Knowledge], torch.Tensor]"
"""A function from all that Byzantine clients with the same model know to what they send, (f, q)."""


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


ATTACKS: Registry[Attack] = Registry(
    {
        attack.__name__: attack
        for attack in (
            *(sign_flip, scaling, noise, zero, alie, ipm, min_max, sybil),
            *(slow_poisoning, split, merge, cluster_hopping),
        )
    }
)
"""The attacks on updates by name."""

NEED_GROUPS = ("merge", "cluster_hopping")
"""The attacks that need to know the true groups."""

LABEL_FLIP = "label_flip"
"""The attack on data: of c classes, Byzantine clients call class y by the label c - 1 - y, and train as all others."""

BACKDOOR = "backdoor"
"""The attack on data that teaches models to call samples with a trigger by one class: `uploads.attacks.backdoor`."""

DATA_ATTACKS = (LABEL_FLIP, BACKDOOR)
"""The attacks on data. Byzantine clients have the changed data in all rounds."""

NO_ATTACK = "none"
"""The value of ``attack.kind`` that stands for honest clients only."""


def named_attacks() -> tuple[str, ...]:
    """The names of all attacks."""
    return (*ATTACKS, *DATA_ATTACKS)
