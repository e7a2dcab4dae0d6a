"""Comparisons of several runs: what their folder holds, its words, and its page."""

from fedstrata.report.comparison.folder import (
    Difference,
    Row,
    RunEntry,
    Statistic,
    SweepChoice,
    read_document,
    run_warnings,
)
from fedstrata.report.comparison.page import build_comparison, write_comparison_page
from fedstrata.report.comparison.words import (
    COLUMNS,
    choice_text,
    difference_text,
    pair_table,
    result_text,
    row_kind,
    table_of,
)

__all__ = [
    "COLUMNS",
    "Difference",
    "Row",
    "RunEntry",
    "Statistic",
    "SweepChoice",
    "build_comparison",
    "choice_text",
    "difference_text",
    "pair_table",
    "read_document",
    "result_text",
    "row_kind",
    "run_warnings",
    "table_of",
    "write_comparison_page",
]
