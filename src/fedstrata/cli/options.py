"""What several commands are given."""

from pathlib import Path
from typing import Annotated

import typer

Experiment = Annotated[str | None, typer.Argument(metavar="EXPERIMENT.toml")]

Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key, such as local.lr=0.1.")
]

RunFolder = Annotated[Path | None, typer.Option(metavar="DIR", help="The run folder; by default a new one in runs.")]

Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
