"""The command line. Exit status: 0 done, 1 failed, 2 bad input. A failure is one line on standard error."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import click
import typer

import fedstrata
from fedstrata.base.errors import FedstrataError, InputError, MachineError
from fedstrata.base.resources import resource_errors
from fedstrata.cli import deploy
from fedstrata.cli.commands import app
from fedstrata.cli.terminal import fail, note_error, say, start_logging

app.add_typer(deploy.commands, name="deploy")

_VERBOSE = "Show what the library notes, and where an error came from."


def _with_verbose(command: click.Command) -> click.Command:
    """Add `--verbose` to a command and those below it."""

    def switch(context: click.Context, parameter: click.Parameter, given: bool) -> None:
        if given:
            start_logging()

    option = click.Option(["--verbose"], is_flag=True, expose_value=False, callback=switch, help=_VERBOSE)
    command.params.append(option)
    for inner in getattr(command, "commands", {}).values():
        _with_verbose(inner)
    return command


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit.

    Args:
        args: The arguments; by default those of the process.
    """
    try:
        with resource_errors():
            command = _with_verbose(typer.main.get_command(app))
            status = command.main(args, prog_name="fedstrata", standalone_mode=False)
    except MachineError as error:
        note_error(error)
        status = fail(error.reason + ("" if error.says_how else ", then give the same command again"), 1)
    except FedstrataError as error:
        note_error(error)
        status = fail(error, 2 if isinstance(error, InputError) else 1, error.trace)
    except click.ClickException as error:
        status = fail(error.format_message(), error.exit_code)
    sys.exit(status)


@app.callback()
def _fedstrata(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    """Find which federated clients belong together, and train one model per group."""
    if version:
        say(fedstrata.__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        say(context.get_help())
