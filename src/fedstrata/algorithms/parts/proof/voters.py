"""Old names of `fedstrata.algorithms.shared.split_half`, until all who use them have moved."""

from fedstrata.algorithms.shared.split_half import add_fold_tasks as twins
from fedstrata.algorithms.shared.split_half import fold_updates as heard
from fedstrata.algorithms.shared.split_half import known_sizes as counted

__all__ = ["counted", "heard", "twins"]
