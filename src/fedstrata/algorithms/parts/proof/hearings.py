"""Old names of `fedstrata.algorithms.shared.split_half`, until all who use them have moved."""

from fedstrata.algorithms.shared.split_half import MIN_FOLD as LEAST
from fedstrata.algorithms.shared.split_half import Participants as Hearing
from fedstrata.algorithms.shared.split_half import select_participants as hearing
from fedstrata.algorithms.shared.split_half import too_few_samples as unheard

__all__ = ["LEAST", "Hearing", "hearing", "unheard"]
