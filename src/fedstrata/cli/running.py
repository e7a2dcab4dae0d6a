"""Run an experiment, or several side by side."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

import fedstrata
from fedstrata.cli.options import Experiment, Quiet, RunFolder, Sets
from fedstrata.cli.output import fail, say, short, show
from fedstrata.errors import ExperimentError, MachineError
from fedstrata.quoting import shown
from fedstrata.runner.interrupt import Stopped

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
    except MachineError as error:
        raise _failed(error, "run") from None
    measures = {key: value for key, value in run.summary.items() if not isinstance(value, Mapping | list)}
    show(("measure", "value"), [(key, short(value)) for key, value in measures.items()])
    for node in run.tree:
        if node.split is None and node.members:
            say(f"cluster {node.id}: clients {', '.join(map(str, node.members))}")
    say(f"run folder: {run.folder}")
    say(f"report: {run.folder / 'report.html'}")
    from fedstrata.report.words import warnings

    for warning in warnings(run.summary):
        fail(warning, 0)
    if run.diverged:
        raise typer.Exit(1)


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
    keys = [f"--set={pair}" for pair in sets or ()] + ([f"--seeds={seeds}"] if seeds else [])
    again = ("compare", *given, f"--algorithms={algorithms}", *keys)
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
            raise _stopped(stop, *again) from None
        except MachineError as error:
            raise _failed(error, *again) from None
    from fedstrata.comparison import TITLES, cells

    show(TITLES, [cells(row) for row in comparison.table], headed=True)
    if comparison.jobs:
        say(comparison.jobs)
    say(f"comparison: {comparison.folder / 'comparison.md'}")
    say(f"page: {comparison.folder / 'comparison.html'}")
    for warning in comparison.warnings:
        fail(warning, 0)
    for trouble in comparison.troubles:
        fail(trouble, 1)
    if any(run.resumable for run in comparison.runs):
        fail(f"once the cause is gone, go on with: {_resume(comparison.folder, *again)}", 1)
    if comparison.troubles:
        raise typer.Exit(1)


def _stopped(stop: KeyboardInterrupt, *command: str) -> typer.Exit:
    """Say how to go on, as it can be typed; whoever did not wait for the end of the round is told nothing."""
    if isinstance(stop, Stopped):
        fail(f"{stop.where}; go on with: {_resume(stop.folder, *command)}", 130)
    return typer.Exit(130)


def _failed(error: MachineError, *command: str) -> Exception:
    """Say what failed, and what goes on with the run once the cause is gone.

    Returns:
        What is to be raised: the error itself where nothing was begun, so that there is nothing to go on with.
    """
    if error.folder is None:
        return error
    return typer.Exit(fail(f"{error.reason}, then go on with: {_resume(error.folder, *command)}", 1))


def _resume(folder: Path, *command: str) -> str:
    """The command that goes on with a run or a comparison, as it can be typed."""
    return shlex.join(["fedstrata", *command, "--resume", "--out", str(folder)])


def _numbers(text: str | None) -> list[int] | None:
    """Whole numbers between commas."""
    try:
        return None if text is None else [int(part) for part in text.split(",")]
    except ValueError:
        raise ExperimentError(
            f"--seeds = {shown(text)}: expected whole numbers between commas, such as 0,1,2"
        ) from None
