"""The command line. Exit status: 0 done, 1 failed, 2 bad input, told in one line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import click
import typer

import fedstrata
from fedstrata.cli import choosing, deploying, folders, running
from fedstrata.cli.output import fail, say
from fedstrata.errors import FedstrataError, InputError, MachineError
from fedstrata.resources import resource_errors

app = typer.Typer(
    add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, invoke_without_command=True
)


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit.

    Args:
        args: those of the process unless given.
    """
    try:
        with resource_errors():
            status = app(args, standalone_mode=False)
    except InputError as error:
        status = fail(error, 2)
    except MachineError as error:
        status = fail(f"{error.reason}, then give the same command again", 1)
    except FedstrataError as error:
        status = fail(error, 1)
    except click.ClickException as error:
        status = fail(error.format_message(), error.exit_code)
    sys.exit(status)


@app.callback()
def fedstrata_(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    """Find which federated clients belong together, and train one model per group."""
    if version:
        say(fedstrata.__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        say(context.get_help())


for _group in (running, folders, choosing):
    app.add_typer(_group.commands)
app.add_typer(deploying.commands, name="deploy")
