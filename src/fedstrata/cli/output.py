"""What commands print."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedstrata.quoting import printable

LONGEST = 900
"""Characters of a message; of a longer one the middle is left out, as it begins with what and ends with what to do."""


def fail(message: object, status: int) -> int:
    """Say in one line what went wrong, and hand the exit status on."""
    line = printable(" ".join(str(message).split()))
    if len(line) > LONGEST:
        line = f"{line[: LONGEST // 2]} ... {line[-LONGEST // 2 :]}"
    try:
        print("fedstrata:", line, file=sys.stderr)
    except OSError:
        # Where nobody can be told, the status still tells it.
        discard(sys.stderr)
    return status


def say(text: object) -> None:
    """Print a line at once. A reader that has left, such as `head`, has what it wants, and ends no command."""
    try:
        print(text, flush=True)
    except OSError as error:
        discard(sys.stdout)
        if not isinstance(error, BrokenPipeError):
            raise OSError(error.errno, error.strerror, "standard output") from error


def discard(stream: TextIO) -> None:
    """Drop what a stream still holds and all that is printed to it from now on; Python would complain at its end."""
    # A stream that only looks like a file, as in tests, has no number.
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


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
        with console.capture() as drawn:
            console.print(table)
        say(drawn.get().rstrip("\n"))
        return
    rows = [titles, *rows] if headed else rows
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
