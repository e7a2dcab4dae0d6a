"""The attacks that an experiment can name. A new one is a function, and one line here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from fedstrata.lazy_torch import torch
from fedstrata.registry import Registry

Attack: TypeAlias = "Callable[[torch.Tensor, torch.Tensor, float | None, torch.Generator], torch.Tensor]"
"""A function from the updates that Byzantine clients have trained (f, p), those of the honest clients with the same
model (h, p), the strength (None is the usual one of the attack) and random numbers to what they send, (f, p)."""

ATTACKS: Registry[Attack] = Registry(
    {
        name: f"fedstrata.attacks.updates:{name}"
        for name in ("sign_flip", "scaling", "noise", "zero", "alie", "ipm", "min_max")
    },
    group="fedstrata.attacks",
)
"""The attacks on updates by name."""

LABEL_FLIP = "label_flip"
"""The attack on data: of c classes, Byzantine clients call class y by the label c - 1 - y, and train as all others."""

NO_ATTACK = "none"
"""The value of ``attack.kind`` that stands for honest clients only."""
