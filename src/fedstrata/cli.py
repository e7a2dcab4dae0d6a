"""The command line. Exit status: 0 done, 1 failed, 2 bad input, told in one line."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import click
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

import fedstrata
from fedstrata.errors import ExperimentError, FedstrataError, InputError

app = typer.Typer(
    add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, invoke_without_command=True
)


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit.

    Args:
        args: those of the process unless given.
    """
    try:
        status = app(args, standalone_mode=False)
    except InputError as error:
        status = _fail(error, 2)
    except FedstrataError as error:
        status = _fail(error, 1)
    except click.ClickException as error:
        status = _fail(error.format_message(), error.exit_code)
    sys.exit(status)


@app.callback()
def fedstrata_(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    """Find which federated clients belong together, and train one model per group."""
    if version:
        print(fedstrata.__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command("run")
def run_(
    experiment: Annotated[str | None, typer.Argument(metavar="EXPERIMENT.toml")] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key, such as local.lr=0.1.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The run folder; by default a new one in runs.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Run an experiment, by default handwritten digits in four hidden groups, and write its report."""
    run = fedstrata.run(experiment, out, sets=sets or (), resume=resume, quiet=quiet)
    measures = {key: value for key, value in run.summary.items() if not isinstance(value, Mapping | list)}
    _show(("measure", "value"), [(key, _short(value)) for key, value in measures.items()])
    for node in run.tree:
        if node.split is None and node.members:
            print(f"cluster {node.id}: clients {', '.join(map(str, node.members))}")
    print(f"run folder: {run.folder}")
    print(f"report: {run.folder / 'report.html'}")


@app.command("compare")
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
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key, such as local.lr=0.1.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder of the comparison; by default a new one in runs.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the comparison in the folder.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
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
            # One that came in the middle of a round has nothing to say.
            raise typer.Exit(_fail(stop, 130) if stop.args else 130) from None
    from fedstrata.comparison import TITLES, cells

    _show(TITLES, [cells(row) for row in comparison.table], headed=True)
    if comparison.jobs:
        print(comparison.jobs)
    print(f"comparison: {comparison.folder / 'comparison.md'}")
    failed = [run for run in comparison.runs if run.error]
    for run in failed:
        _fail(f"{run.algorithm} with seed {run.seed} failed: {run.error}", 1)
    if failed:
        raise typer.Exit(1)


@app.command()
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


@app.command("list")
def list_(
    kind: Annotated[Literal["algorithms", "datasets", "partitions", "models"], typer.Argument(metavar="KIND")],
) -> None:
    """List the algorithms, datasets, partitions or models that an experiment can name."""
    rows = []
    for name, thing in getattr(fedstrata, kind.upper()).items():
        if kind == "datasets":
            rows.append((name, thing.about, thing.origin))
        else:
            rows.append((name, (thing.__doc__ or "").partition("\n")[0], getattr(thing, "source", "")))
    _show(("name", "what it is", "source"), rows)


@app.command("scout")
def scout_(
    experiment: Annotated[str | None, typer.Argument(metavar="EXPERIMENT.toml")] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key, such as local.lr=0.1.")
    ] = None,
    rounds: Annotated[
        int, typer.Option(min=2, help="Rounds of FedAvg to watch; the first tells the sample counts.")
    ] = 3,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Say which layers separate the clients of an experiment, and what kind of skew that suggests.

    For every layer: how well who is like whom replicates between halves of the clients' data (correlation), how large
    that pattern is beside what is each client's own (apart), how alike two clients are on average (common, their mean
    cosine), and how often chance replicates as well (p). The sentence says how often it does in any of the layers.
    """
    from fedstrata.config import load

    checked = load(experiment, sets or ())
    from fedstrata.scout import scout

    finding = scout(checked, rounds, lambda line: None if quiet else print(line, file=sys.stderr))
    rows = [
        (view.name, f"{view.correlation:.2f}", f"{view.apart:.2f}", f"{view.common:.2f}", f"{view.p:.2g}")
        for view in finding.views
    ]
    if rows:
        _show(("layer", "correlation", "apart", "common", "p"), rows, headed=True)
    print(finding.sentence)


@app.command("assign")
def assign_(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a finished run.")],
    clients: Annotated[
        list[Path], typer.Argument(metavar="CLIENT_DATA...", help="Of each client, a .npz file or folder of Parquet.")
    ],
) -> None:
    """Place new clients by a finished run; JSON on standard output."""
    from fedstrata.assign import assign

    print(json.dumps(assign(folder, clients), indent=1))


def _numbers(text: str | None) -> list[int] | None:
    """Whole numbers between commas."""
    try:
        return None if text is None else [int(part) for part in text.split(",")]
    except ValueError:
        raise ExperimentError(f"--seeds = {text!r}: expected whole numbers between commas, such as 0,1,2") from None


deploy = typer.Typer(rich_markup_mode=None, help="Run the same experiment on real devices, with Flower.")
app.add_typer(deploy, name="deploy")

Federation = Annotated[Path, typer.Option(metavar="DIR", help="The folder that `deploy init` made.")]


@deploy.command("init")
def deploy_init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder for the federation.")],
    experiment: Annotated[str | None, typer.Argument(metavar="EXPERIMENT.toml")] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key, such as local.lr=0.1.")
    ] = None,
    host: Annotated[str, typer.Option(help="Name or address at which nodes reach the server.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of the server.")] = 8000,
) -> None:
    """Make a test federation: certificates, keys, a node for every client with its data, and what to do next."""
    from fedstrata.flower.deploy import init

    print(init(folder, experiment, sets or (), host, port))


@deploy.command("run")
def deploy_run(
    experiment: Annotated[str, typer.Argument(metavar="EXPERIMENT.toml")],
    federation: Federation,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The run folder; by default a new one in runs.")
    ] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key, such as local.lr=0.1.")
    ] = None,
) -> None:
    """Run an experiment on a federation that is up."""
    from fedstrata.flower.deploy import run

    print(f"run folder: {run(experiment, federation, out, sets or ())}")


@deploy.command("resume")
def deploy_resume(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="The run folder.")], federation: Federation
) -> None:
    """Go on with a run after its server was lost."""
    from fedstrata.flower.deploy import resume

    print(f"run folder: {resume(out, federation)}")


def _fail(message: object, status: int) -> int:
    print("fedstrata:", " ".join(str(message).split()), file=sys.stderr)
    return status


def _short(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _show(titles: Sequence[str], rows: Sequence[Sequence[str]], headed: bool = False) -> None:
    """A table on a terminal, aligned lines elsewhere, on request with the titles above them."""
    console = Console()
    if console.is_terminal:
        table = Table(*titles)
        for row in rows:
            table.add_row(*map(Text, row))
        console.print(table)
        return
    rows = [titles, *rows] if headed else rows
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
