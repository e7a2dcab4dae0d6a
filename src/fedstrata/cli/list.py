"""fedstrata list: what an experiment can name."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

import fedstrata
from fedstrata.cli.terminal import show_table


def list_names(
    kind: Annotated[Literal["algorithms", "datasets", "partitions", "models"], typer.Argument(metavar="KIND")],
) -> None:
    """List the algorithms, datasets, partitions or models that an experiment can name."""
    rows = []
    for name, thing in getattr(fedstrata, kind.upper()).items():
        if kind == "datasets":
            rows.append((name, thing.about, thing.origin))
        else:
            rows.append((name, (thing.__doc__ or "").partition("\n")[0], getattr(thing, "source", "")))
    show_table(("name", "what it is", "source"), rows)
