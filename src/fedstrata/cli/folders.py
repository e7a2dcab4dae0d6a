"""What is done with the folder of a run."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from fedstrata.cli.output import say

commands = typer.Typer()


@commands.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run or of a comparison.")],
    figures: Annotated[
        str | None, typer.Option(metavar="png|svg|pdf", help="Save the charts as files of this kind instead.")
    ] = None,
) -> None:
    """Build the page of a run or of a comparison again, from its records alone."""
    if figures is not None:
        from fedstrata.report.export import save

        for path in save(folder, figures):
            say(path)
        return
    from fedstrata.report import build, comparison

    if (folder / "comparison.json").is_file():
        say(comparison.build(folder))
    else:
        build(folder)
        say(folder / "report.html")


@commands.command()
def watch(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run or of a comparison.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 is one that is free.")] = 0,
) -> None:
    """Serve the page of a run while it goes on, on 127.0.0.1 alone; Ctrl-C ends it."""
    from fedstrata.report.live import LiveServer

    with LiveServer(folder, port) as server, suppress(KeyboardInterrupt):
        say(f"watching: {server.url} (Ctrl-C ends it)")
        server.serve_forever()


@commands.command("assign")
def assign_(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a finished run.")],
    clients: Annotated[
        list[Path], typer.Argument(metavar="CLIENT_DATA...", help="Of each client, a .npz file or folder of Parquet.")
    ],
) -> None:
    """Place new clients by a finished run; JSON on standard output."""
    from fedstrata.runner.assign import assign

    say(json.dumps(assign(folder, clients), indent=1))
