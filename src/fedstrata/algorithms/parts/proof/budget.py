"""Old names of `fedstrata.algorithms.shared.split_half`, until all who use them have moved."""

from fedstrata.algorithms.shared.split_half import is_split_half_round as is_twin_round
from fedstrata.algorithms.shared.split_half import next_level as level
from fedstrata.algorithms.shared.split_half import to_decision as spoken
from fedstrata.algorithms.shared.split_half import with_round as gathered

__all__ = ["gathered", "is_twin_round", "level", "spoken"]
