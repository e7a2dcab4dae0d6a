"""What Byzantine clients send instead of what they have trained, for experiments with robust rules."""

from fedstrata.uploads.attacks.backdoor import Trigger, trigger_of, with_backdoor
from fedstrata.uploads.attacks.byzantine_clients import ByzantineClients, Losses, choose_byzantine
from fedstrata.uploads.attacks.registry import (
    ATTACKS,
    BACKDOOR,
    DATA_ATTACKS,
    LABEL_FLIP,
    NEED_GROUPS,
    NO_ATTACK,
    Attack,
    Knowledge,
    named_attacks,
)

__all__ = [
    "ATTACKS",
    "BACKDOOR",
    "DATA_ATTACKS",
    "LABEL_FLIP",
    "NEED_GROUPS",
    "NO_ATTACK",
    "Attack",
    "ByzantineClients",
    "Knowledge",
    "Losses",
    "Trigger",
    "choose_byzantine",
    "named_attacks",
    "trigger_of",
    "with_backdoor",
]
