"""The attacks that an experiment can name, and what Byzantine clients know. A new one is a function and a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from fedstrata.base.lazy_torch import torch
from fedstrata.base.registry import Registry
from fedstrata.core import TRAIN, Rows


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

ATTACKS: Registry[Attack] = Registry(
    {
        name: f"fedstrata.uploads.attacks.updates:{name}"
        for name in (
            *("sign_flip", "scaling", "noise", "zero", "alie", "ipm", "min_max", "sybil"),
            *("slow_poisoning", "split", "merge", "cluster_hopping"),
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
