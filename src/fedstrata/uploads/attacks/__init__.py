"""What Byzantine clients send instead of what they have trained, for experiments with robust rules."""

from fedstrata.uploads.attacks.backdoor import Trigger, trigger_of, with_backdoor
from fedstrata.uploads.attacks.byzantine_clients import ByzantineClients, Losses, choose_byzantine
from fedstrata.uploads.attacks.knowledge import Knowledge
from fedstrata.uploads.attacks.registry import (
    ATTACKS,
    BACKDOOR,
    DATA_ATTACKS,
    INFORMED_ATTACKS,
    LABEL_FLIP,
    NEED_GROUPS,
    NO_ATTACK,
    Attack,
    InformedAttack,
    named_attacks,
    on_updates,
)

__all__ = [
    "ATTACKS",
    "BACKDOOR",
    "DATA_ATTACKS",
    "INFORMED_ATTACKS",
    "LABEL_FLIP",
    "NEED_GROUPS",
    "NO_ATTACK",
    "Attack",
    "ByzantineClients",
    "InformedAttack",
    "Knowledge",
    "Losses",
    "Trigger",
    "choose_byzantine",
    "named_attacks",
    "on_updates",
    "trigger_of",
    "with_backdoor",
]
