"""What networks learn: the loss that training lowers, the metric that scores show, and the augmentation of samples."""

from fedstrata.objective.named import LOSSES, METRICS, TRANSFORMS, check_objective_names
from fedstrata.objective.objective import Objective

__all__ = ["LOSSES", "METRICS", "TRANSFORMS", "Objective", "check_objective_names"]
