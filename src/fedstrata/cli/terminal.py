"""What the commands share: their options, how they print, and `--verbose`."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, TextIO

import click
import typer
from typer.core import TyperCommand

from fedstrata.base.errors import MachineError
from fedstrata.base.quoting import printable
from fedstrata.play.interrupt import Stopped

ExperimentFile = Annotated[str | None, typer.Argument(metavar="EXPERIMENT.toml")]

Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a key, such as local.lr=0.1."),
]

NewFolder = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="The folder; by default a new one in runs.")
]

Seeds = Annotated[
    str | None,
    typer.Option("--seeds", metavar="SEED,SEED", help="Seeds for each; by default the experiment's, or all folds."),
]

Resume = Annotated[bool, typer.Option("--resume", help="Go on with what is in the folder.")]

AnyFolder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run or of a comparison.")]

Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]

_WIDE = 100_000
"""The characters of a line of a table off a terminal, which no table needs."""

_MESSAGE_CHARACTERS = 900
"""The largest number of characters of a message. A longer one loses its middle, as what to do stands at its end."""


def fail(message: object, status: int, trace: str = "") -> int:
    """Print in one line what went wrong, and below it the lines of a trace, and return the exit status."""
    line = printable(" ".join(str(message).split()))
    if len(line) > _MESSAGE_CHARACTERS:
        line = f"{line[: _MESSAGE_CHARACTERS // 2]} ... {line[-_MESSAGE_CHARACTERS // 2 :]}"
    try:
        for each in (f"fedstrata: {line}", *map(printable, trace.splitlines())):
            print(each, file=sys.stderr)
    except OSError:
        # Where no message can be printed, the status still tells it.
        _discard(sys.stderr)
    return status


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


def show_table(titles: Sequence[str], rows: Sequence[Sequence[str]], headed: bool = False) -> None:
    """Print a table: drawn on a terminal, aligned lines elsewhere.

    Args:
        titles: The titles of the columns.
        rows: The cells of each row.
        headed: Whether the aligned lines have the titles above them.
    """
    from rich.box import HEAVY_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Console().is_terminal
    console = Console(width=None if drawn else _WIDE)
    table = Table(*titles, box=HEAVY_HEAD if drawn else None, pad_edge=drawn, show_header=drawn or headed)
    for row in rows:
        table.add_row(*map(Text, row))
    with console.capture() as shown:
        console.print(table)
    for line in shown.get().splitlines():
        say(line.rstrip())


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


_LIBRARY = "fedstrata"
"""The logger above all of the library's. Without `--verbose`, only warnings are shown."""


def start_logging() -> None:
    """Show everything that the library notes, on standard error."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True)
    logging.getLogger(_LIBRARY).setLevel(logging.DEBUG)


def note_error(error: BaseException) -> None:
    """Show where an error came from, if `--verbose` was given."""
    logging.getLogger(_LIBRARY).debug("this is where the error came from", exc_info=error)


class PlainCommand(TyperCommand):
    """A command whose help has brackets as they are, such as those of "[required]".

    Typer puts a backslash before them for Rich, also where Rich does not show the help.
    """

    def get_help(self, ctx: click.Context) -> str:
        """Return the help, as text."""
        return super().get_help(ctx).replace("\\[", "[")
