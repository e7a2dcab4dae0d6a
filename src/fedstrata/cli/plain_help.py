"""Help without the marks of Rich."""

from __future__ import annotations

import click
from typer.core import TyperCommand


class PlainCommand(TyperCommand):
    """A command whose help has brackets as they are, such as those of "[required]".

    Typer puts a backslash before them for Rich, also where Rich does not show the help.
    """

    def get_help(self, ctx: click.Context) -> str:
        """Return the help, as text."""
        return super().get_help(ctx).replace("\\[", "[")
