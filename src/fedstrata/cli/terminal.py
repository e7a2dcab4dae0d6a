"""What the commands share: their options, and how they print."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from fedstrata.base.errors import MachineError
from fedstrata.base.quoting import printable
from fedstrata.cli.completion import complete_key
from fedstrata.play.interrupt import Stopped

ExperimentFile = Annotated[str | None, typer.Argument(metavar="EXPERIMENT.toml")]

Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a key, such as local.lr=0.1.", autocompletion=complete_key),
]

RunFolder = Annotated[Path | None, typer.Option(metavar="DIR", help="The run folder; by default a new one in runs.")]

AnyFolder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run or of a comparison.")]

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]

Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]

_MESSAGE_CHARACTERS = 900
"""The largest number of characters of a message. A longer one loses its middle, as what to do stands at its end."""


def fail(message: object, status: int) -> int:
    """Print in one line what went wrong, and return the exit status."""
    line = printable(" ".join(str(message).split()))
    if len(line) > _MESSAGE_CHARACTERS:
        line = f"{line[: _MESSAGE_CHARACTERS // 2]} ... {line[-_MESSAGE_CHARACTERS // 2 :]}"
    try:
        print("fedstrata:", line, file=sys.stderr)
    except OSError:
        # Where no message can be printed, the status still tells it.
        _discard(sys.stderr)
    return status


def show_error(text: str) -> None:
    """Print lines below the one that said what went wrong, such as the traceback of a user's own code."""
    try:
        for line in text.splitlines():
            print(printable(line), file=sys.stderr)
    except OSError:
        _discard(sys.stderr)


def say(text: object) -> None:
    """Print a line at once. A reader that stops reading, such as `head`, ends no command."""
    try:
        print(text, flush=True)
    except OSError as error:
        _discard(sys.stdout)
        if not isinstance(error, BrokenPipeError):
            raise OSError(error.errno, error.strerror, "standard output") from error


def _discard(stream: TextIO) -> None:
    """Drop what a stream still holds and all that is printed to it from now on, or Python fails at its end."""
    # A stream that only looks like a file, as in tests, has no number.
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def short(value: Any) -> str:
    """A value in a cell of a table."""
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def say_json(value: Any) -> None:
    """Print a result as JSON."""
    from fedstrata.base.files import json_text

    say(json_text(value, indent=1))


def show_table(titles: Sequence[str], rows: Sequence[Sequence[str]], headed: bool = False) -> None:
    """Print a table: drawn on a terminal, aligned lines elsewhere.

    Args:
        titles: The titles of the columns.
        rows: The cells of each row.
        headed: Whether the aligned lines have the titles above them.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

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


def resume_command(folder: Path, *command: str) -> str:
    """The command that goes on with a run or a comparison, as it can be typed."""
    return shlex.join(["fedstrata", *command, "--resume", "--out", str(folder)])


@contextmanager
def resumable(*command: str) -> Iterator[None]:
    """Say how to go on with a command after Ctrl-C or a failure of the machine, and exit."""
    try:
        yield
    except KeyboardInterrupt as stop:
        # After a second Ctrl-C, the user did not wait for the end of the round.
        if isinstance(stop, Stopped):
            fail(f"{stop.where}; go on with: {resume_command(stop.folder, *command)}", 130)
        raise typer.Exit(130) from None
    except MachineError as error:
        if error.folder is None:
            raise
        fail(f"{error.reason}, then go on with: {resume_command(error.folder, *command)}", 1)
        raise typer.Exit(1) from None
