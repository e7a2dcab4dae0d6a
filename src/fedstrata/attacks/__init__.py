"""What Byzantine clients send instead of what they have trained, for experiments with robust rules."""

from fedstrata.attacks.byzantine_clients import ByzantineClients, choose_byzantine
from fedstrata.attacks.registry import ATTACKS, LABEL_FLIP, NO_ATTACK, Attack

__all__ = ["ATTACKS", "LABEL_FLIP", "NO_ATTACK", "Attack", "ByzantineClients", "choose_byzantine"]
