"""What is done with the folder of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

commands = typer.Typer()


@commands.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The run folder.")],
    figures: Annotated[
        str | None, typer.Option(metavar="png|svg|pdf", help="Save the pictures as files of this kind instead.")
    ] = None,
) -> None:
    """Build the report of a run again, from its records alone."""
    if figures is not None:
        from fedstrata.report.files import save

        for path in save(folder, figures):
            print(path)
        return
    from fedstrata.report import build

    build(folder)
    print(folder / "report.html")


@commands.command("assign")
def assign_(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a finished run.")],
    clients: Annotated[
        list[Path], typer.Argument(metavar="CLIENT_DATA...", help="Of each client, a .npz file or folder of Parquet.")
    ],
) -> None:
    """Place new clients by a finished run; JSON on standard output."""
    from fedstrata.assign import assign

    print(json.dumps(assign(folder, clients), indent=1))
