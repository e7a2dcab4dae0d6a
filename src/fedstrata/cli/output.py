"""What commands print."""

import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text


def fail(message: object, status: int) -> int:
    """Say in one line what went wrong, and hand the exit status on."""
    print("fedstrata:", " ".join(str(message).split()), file=sys.stderr)
    return status


def short(value: Any) -> str:
    """A value in a cell."""
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def show(titles: Sequence[str], rows: Sequence[Sequence[str]], headed: bool = False) -> None:
    """A table on a terminal, aligned lines elsewhere, on request with the titles above them."""
    console = Console()
    if console.is_terminal:
        table = Table(*titles)
        for row in rows:
            table.add_row(*map(Text, row))
        console.print(table)
        return
    rows = [titles, *rows] if headed else rows
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
