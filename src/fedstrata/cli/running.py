"""Run an experiment, or several side by side."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

import fedstrata
from fedstrata.cli.options import Experiment, Quiet, RunFolder, Sets
from fedstrata.cli.output import fail, short, show
from fedstrata.errors import ExperimentError
from fedstrata.patience import Stopped

commands = typer.Typer()


@commands.command("run")
def run_(
    experiment: Experiment = None,
    sets: Sets = None,
    out: RunFolder = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")] = False,
    quiet: Quiet = False,
) -> None:
    """Run an experiment, by default handwritten digits in four hidden groups, and write its report."""
    try:
        run = fedstrata.run(experiment, out, sets=sets or (), resume=resume, quiet=quiet)
    except KeyboardInterrupt as stop:
        raise _stopped(stop, "run") from None
    measures = {key: value for key, value in run.summary.items() if not isinstance(value, Mapping | list)}
    show(("measure", "value"), [(key, short(value)) for key, value in measures.items()])
    for node in run.tree:
        if node.split is None and node.members:
            print(f"cluster {node.id}: clients {', '.join(map(str, node.members))}")
    print(f"run folder: {run.folder}")
    print(f"report: {run.folder / 'report.html'}")


@commands.command("compare")
def compare_(
    sources: Annotated[
        list[str] | None,
        typer.Argument(metavar="EXPERIMENT.toml | DIR...", help="An experiment, or the folders of finished runs."),
    ] = None,
    algorithms: Annotated[
        str | None, typer.Option(metavar="NAME,NAME", help="The algorithms, with the keys of [algorithms.NAME].")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="SEED,SEED", help="Seeds for each of them; by default the experiment's.")
    ] = None,
    sets: Sets = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder of the comparison; by default a new one in runs.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the comparison in the folder.")] = False,
    quiet: Quiet = False,
) -> None:
    """Run several algorithms side by side, with equal local work done once, or put finished runs into one table."""
    given = sources or []
    folders = [Path(source) for source in given if Path(source).is_dir()]
    if folders:
        if len(folders) < len(given) or algorithms or seeds or sets or resume:
            raise ExperimentError(
                "compare: expected an experiment file with --algorithms, or run folders alone; use one"
            )
        from fedstrata.comparison import tabulate

        comparison = tabulate(folders, out)
    elif not algorithms or len(given) > 1:
        raise ExperimentError(f"compare: expected one experiment file and --algorithms NAME,NAME; found {given}")
    else:
        names, experiment = [name.strip() for name in algorithms.split(",")], next(iter(given), None)
        try:
            comparison = fedstrata.compare(
                experiment, names, _numbers(seeds), out, sets=sets or (), resume=resume, quiet=quiet
            )
        except KeyboardInterrupt as stop:
            keys = [f"--set={pair}" for pair in sets or ()] + ([f"--seeds={seeds}"] if seeds else [])
            raise _stopped(stop, "compare", *given, f"--algorithms={algorithms}", *keys) from None
    from fedstrata.comparison import TITLES, cells

    show(TITLES, [cells(row) for row in comparison.table], headed=True)
    if comparison.jobs:
        print(comparison.jobs)
    print(f"comparison: {comparison.folder / 'comparison.md'}")
    print(f"page: {comparison.folder / 'comparison.html'}")
    for trouble in comparison.troubles:
        fail(trouble, 1)
    if comparison.troubles:
        raise typer.Exit(1)


def _stopped(stop: KeyboardInterrupt, *command: str) -> typer.Exit:
    """Say how to go on, as it can be typed; whoever did not wait for the end of the round is told nothing."""
    if isinstance(stop, Stopped):
        again = shlex.join(["fedstrata", *command, "--resume", "--out", str(stop.folder)])
        fail(f"{stop.where}; go on with: {again}", 130)
    return typer.Exit(130)


def _numbers(text: str | None) -> list[int] | None:
    """Whole numbers between commas."""
    try:
        return None if text is None else [int(part) for part in text.split(",")]
    except ValueError:
        raise ExperimentError(f"--seeds = {text!r}: expected whole numbers between commas, such as 0,1,2") from None
