"""Several algorithms on the same federations: run side by side, and in one table."""

from fedstrata.comparison.collect import tabulate
from fedstrata.comparison.document import Comparison
from fedstrata.comparison.run import compare_experiments
from fedstrata.comparison.sweep import Sweep, sweep_experiments
from fedstrata.report.comparison.words import choice_text, row_kind, table_of

__all__ = [
    "Comparison",
    "Sweep",
    "choice_text",
    "compare_experiments",
    "row_kind",
    "sweep_experiments",
    "table_of",
    "tabulate",
]
