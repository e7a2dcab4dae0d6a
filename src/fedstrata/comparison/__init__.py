"""Several algorithms on the same federations: run side by side, and in one table."""

from fedstrata.comparison.document import Comparison, load_comparison
from fedstrata.comparison.run import compare_experiments
from fedstrata.comparison.sweep import sweep_experiments

__all__ = [
    "Comparison",
    "compare_experiments",
    "load_comparison",
    "sweep_experiments",
]
