"""fedstrata assign: place new clients by a finished run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedstrata.cli.terminal import say


def assign(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a finished run.")],
    clients: Annotated[
        list[Path], typer.Argument(metavar="CLIENT_DATA...", help="Of each client, a .npz file or folder of Parquet.")
    ],
) -> None:
    """Place new clients by a finished run; JSON on standard output."""
    from fedstrata.runner.assign import assign as place

    say(json.dumps(place(folder, clients), indent=1))
