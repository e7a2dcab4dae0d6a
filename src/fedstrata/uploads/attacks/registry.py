"""The attacks that an experiment can name. A new one is a function, and one line here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from fedstrata.base.lazy_torch import torch
from fedstrata.base.registry import Registry
from fedstrata.uploads.attacks.knowledge import Knowledge

Attack: TypeAlias = "Callable[[torch.Tensor, torch.Tensor, float | None, torch.Generator], torch.Tensor]"
"""A function from the updates that Byzantine clients have trained (f, p), those of the honest clients with the same
model (h, p), the strength (None is the usual one of the attack) and random numbers to what they send, (f, p)."""

InformedAttack: TypeAlias = "Callable[[Knowledge], torch.Tensor]"
"""A function from all that Byzantine clients with the same model know to what they send, (f, p)."""

ATTACKS: Registry[Attack] = Registry(
    {
        name: f"fedstrata.uploads.attacks.updates:{name}"
        for name in ("sign_flip", "scaling", "noise", "zero", "alie", "ipm", "min_max", "sybil")
    },
    group="fedstrata.uploads.attacks",
)
"""The attacks on updates by name."""

INFORMED_ATTACKS: Registry[InformedAttack] = Registry(
    {
        name: f"fedstrata.uploads.attacks.informed:{name}"
        for name in ("slow_poisoning", "split", "merge", "cluster_hopping")
    },
    group="fedstrata.informed_attacks",
)
"""The attacks of clients that also know the round, each other and the true groups, by name."""

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
    return (*ATTACKS, *INFORMED_ATTACKS, *DATA_ATTACKS)


def on_updates(attack: Attack) -> InformedAttack:
    """An attack on updates as one of clients that know more."""
    return lambda known: attack(known.own, known.honest, known.strength, known.generator)
