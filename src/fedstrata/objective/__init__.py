"""What networks learn: the loss that training lowers, the metric that scores show, and the augmentation of samples.

A new metric is a function in `metrics` and its entry in `metric_info.METRIC_INFOS`.
"""

from fedstrata.objective.objective import LOSSES, METRICS, TRANSFORMS, Objective, check_objective_names

__all__ = ["LOSSES", "METRICS", "TRANSFORMS", "Objective", "check_objective_names"]
