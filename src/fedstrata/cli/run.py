"""fedstrata run: run an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

import fedstrata
from fedstrata.cli.terminal import Experiment, Quiet, RunFolder, Sets, fail, failed, say, short, show_table, stopped
from fedstrata.errors import MachineError


def run(
    experiment: Experiment = None,
    sets: Sets = None,
    out: RunFolder = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")] = False,
    quiet: Quiet = False,
) -> None:
    """Run an experiment, by default handwritten digits in four hidden groups, and write its report."""
    try:
        finished = fedstrata.run(experiment, out, sets=sets or (), resume=resume, quiet=quiet)
    except KeyboardInterrupt as stop:
        raise stopped(stop, "run") from None
    except MachineError as error:
        raise failed(error, "run") from None
    measures = {key: value for key, value in finished.summary.items() if not isinstance(value, Mapping | list)}
    show_table(("measure", "value"), [(key, short(value)) for key, value in measures.items()])
    for node in finished.tree:
        if node.split is None and node.members:
            say(f"cluster {node.id}: clients {', '.join(map(str, node.members))}")
    say(f"run folder: {finished.folder}")
    say(f"report: {finished.folder / 'report.html'}")
    from fedstrata.report.words import warnings

    for warning in warnings(finished.summary):
        fail(warning, 0)
    if finished.diverged:
        raise typer.Exit(1)
