"""Old names of `fedstrata.algorithms.shared.split_half`, until all who use them have moved."""

from fedstrata.algorithms.shared.split_half import FoldSimilarity as Testimony
from fedstrata.algorithms.shared.split_half import compared_layers as looked_at
from fedstrata.algorithms.shared.split_half import groups_test as examine
from fedstrata.clustering.split_half import MIN_CLIENTS as FEWEST

__all__ = ["FEWEST", "Testimony", "examine", "looked_at"]
