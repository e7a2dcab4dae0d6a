"""What networks learn: the loss that training lowers, the metric that scores show, and the augmentation of samples."""

from fedstrata.objective.objective import LOSSES, METRICS, TRANSFORMS, Objective, check_objective_names

__all__ = ["LOSSES", "METRICS", "TRANSFORMS", "Objective", "check_objective_names"]
