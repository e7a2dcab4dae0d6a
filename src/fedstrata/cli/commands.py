"""The commands but `deploy`, and what they print.

A new command is a function here. The help shows them in this order.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import fedstrata
from fedstrata.base.errors import ExperimentError
from fedstrata.cli.terminal import (
    AnyFolder,
    ExperimentFile,
    NewFolder,
    PlainCommand,
    Quiet,
    Resume,
    Seeds,
    Sets,
    fail,
    resumable,
    resume_command,
    say,
    show_table,
)

if TYPE_CHECKING:
    from fedstrata.comparison import Comparison
    from fedstrata.results.run import Run


app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, invoke_without_command=True)

_SECONDS_BETWEEN_LOOKS = 2.0
"""How long `report --follow` waits before it looks at the records again."""


@app.command("run", cls=PlainCommand)
def run_command(
    experiment: ExperimentFile = None,
    sets: Sets = None,
    out: NewFolder = None,
    resume: Resume = False,
    quiet: Quiet = False,
) -> None:
    """Run an experiment, by default handwritten digits in four hidden groups, and write its report."""
    with resumable("run"):
        finished = fedstrata.run(experiment, out, sets=sets or (), resume=resume, quiet=quiet)
    _show_run(finished)
    from fedstrata.report.summary import warnings

    for warning in [*finished.warnings, *warnings(finished.summary)]:
        fail(warning, 0)
    if finished.diverged:
        raise typer.Exit(1)


def _show_run(finished: Run) -> None:
    """Print the summary of a run, the members of each cluster, and where its records are."""
    from fedstrata.report.summary import summary_rows
    from fedstrata.report.words import ClientNames

    names = ClientNames(finished.names)
    show_table(("measure", "value", "meaning"), summary_rows(finished.summary, finished.metric, names))
    for node in finished.tree:
        if node.split is None and node.members:
            say(f"cluster {node.id}: clients {', '.join(map(names.of, node.members))}")
    say(f"run folder: {finished.folder}")
    say(f"report: {finished.folder / 'report.html'}")


@app.command("compare", cls=PlainCommand)
def compare_command(
    algorithms: Annotated[
        str,
        typer.Option(metavar="NAME,NAME", help="The algorithms, with the keys of [algorithms.NAME]."),
    ],
    experiment: ExperimentFile = None,
    seeds: Seeds = None,
    sets: Sets = None,
    out: NewFolder = None,
    resume: Resume = False,
    quiet: Quiet = False,
) -> None:
    """Run several algorithms side by side, with equal local work done once."""
    command = ("compare", *([experiment] if experiment else []), f"--algorithms={algorithms}", *_options(sets, seeds))
    names = [name.strip() for name in algorithms.split(",")]
    with resumable(*command):
        comparison = fedstrata.compare(
            experiment, names, _numbers(seeds), out, sets=sets or (), resume=resume, quiet=quiet
        )
    _show_comparison(comparison, command)


@app.command("sweep", cls=PlainCommand)
def sweep_command(
    experiment: Annotated[str, typer.Argument(metavar="EXPERIMENT.toml")],
    grid: Annotated[
        list[str],
        typer.Option("--grid", metavar="KEY=VALUE,VALUE", help="Values of a key; several keys make all combinations."),
    ],
    seeds: Seeds = None,
    sets: Sets = None,
    out: NewFolder = None,
    resume: Resume = False,
    quiet: Quiet = False,
) -> None:
    """Run an experiment with every combination of some values, and choose the best on validation data."""
    from fedstrata.config import parse_grid

    command = ("sweep", experiment, *(f"--grid={text}" for text in grid), *_options(sets, seeds))
    with resumable(*command):
        swept = fedstrata.sweep(
            experiment, parse_grid(grid), _numbers(seeds), out, sets=sets or (), resume=resume, quiet=quiet
        )
    _show_comparison(swept, command)


def _options(sets: Sequence[str] | None, seeds: str | None) -> list[str]:
    """The options of a command that goes on with a comparison."""
    return [f"--set={pair}" for pair in sets or ()] + ([f"--seeds={seeds}"] if seeds else [])


def _numbers(text: str | None) -> Any:
    """What stands between commas. Whoever uses it refuses what is no list of whole numbers."""
    from fedstrata.config.reading import parse_value

    return None if text is None else parse_value(f"[{text}]")


def _show_comparison(comparison: Comparison, command: Sequence[str]) -> None:
    """Print the table of a comparison, its files and what went wrong, and exit with 1 if anything did."""
    from fedstrata.report.comparison.words import choice_text, row_kind, site_answers, table_of

    document = comparison.document
    for question, told in site_answers(document).items():
        say(f"{question} {' '.join(told)}")
    table = table_of(document.table, document.metric, row_kind(document.sweep))
    show_table(tuple(table.titles), table.rows, headed=True)
    if document.jobs:
        say(document.jobs)
    if document.sweep:
        say(choice_text(document.sweep, document.metric))
    say(f"comparison: {comparison.folder / 'comparison.md'}")
    say(f"page: {comparison.folder / 'comparison.html'}")
    for warning in comparison.warnings:
        fail(warning, 0)
    for trouble in comparison.troubles:
        fail(trouble, 1)
    if any(run.error for run in comparison.runs):
        fail(f"once the cause is gone, go on with: {resume_command(comparison.folder, *command)}", 1)
    if comparison.troubles:
        raise typer.Exit(1)


@app.command("report", cls=PlainCommand)
def report_command(
    folder: AnyFolder,
    figures: Annotated[
        str | None, typer.Option(metavar="png|svg|pdf", help="Save the pictures as files of this kind instead.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Build the page again after every round, until the run is finished.")
    ] = False,
) -> None:
    """Build the page of a run or of a comparison again, from its records alone."""
    if follow and figures is not None:
        raise ExperimentError("report: expected --figures or --follow, found both; use one")
    if figures is not None:
        from fedstrata.report.figures import save_figures

        for path in save_figures(folder, figures):
            say(path)
        return
    from fedstrata import report
    from fedstrata.report.comparison.page import build_comparison

    compared = (folder / "comparison.json").is_file()
    if compared:
        build_comparison(folder)
    elif follow:
        with suppress(KeyboardInterrupt):  # which is how a reader ends it
            report.follow(folder, partial(time.sleep, _SECONDS_BETWEEN_LOOKS), partial(print, file=sys.stderr))
    else:
        report.build(folder)
    say(folder / ("comparison.html" if compared else "report.html"))


@app.command("runs", cls=PlainCommand)
def runs_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder of runs.")] = Path("runs"),
) -> None:
    """List the runs in a folder, and those of the comparisons in it."""
    from fedstrata.report.runs import find_runs

    runs = find_runs(folder)
    rows = []
    for run in runs:
        name = os.path.relpath(run.folder, folder)
        rounds = f"{run.round}/{'?' if run.rounds is None else run.rounds}"
        score = None if run.acc_client is None else f"{run.metric.name} {run.metric.text(run.acc_client)}"
        agreement = None if run.ari is None else f"{run.ari:.2f}"
        changed = run.changed.replace("T", " ")
        cells = (name, run.state, run.algorithm, run.dataset, run.seed, rounds, run.clusters, score, agreement, changed)
        rows.append(["-" if cell is None else str(cell) for cell in cells])
    titles = ("run", "state", "algorithm", "data", "seed", "round", "clusters", "metric", "ari", "changed")
    show_table(titles, rows, headed=True)


@app.command("assign", cls=PlainCommand)
def assign_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a finished run.")],
    clients: Annotated[
        list[Path], typer.Argument(metavar="CLIENT_DATA...", help="Of each client, a file or folder of the run's form.")
    ],
    unlabelled: Annotated[
        bool, typer.Option("--unlabelled", help="Place them by inputs alone; the run needs records.inputs = true.")
    ] = False,
) -> None:
    """Place new clients by a finished run; JSON on standard output."""
    from fedstrata.results.assign import assign

    say(json.dumps(assign(folder, clients, unlabelled=unlabelled), indent=1))


@app.command("predict", cls=PlainCommand)
def predict_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a finished run.")],
    client: Annotated[str, typer.Argument(metavar="CLIENT", help="The client whose model is used, by name or id.")],
    path: Annotated[
        Path, typer.Argument(metavar="DATA", help="Raw samples in the run's form; classes are not needed.")
    ],
) -> None:
    """Predict raw samples with the model of a client; CSV on standard output.

    Rows of a table are prepared as those of the run: gaps are filled, and texts may be texts. A line for each sample
    has the prediction and, for classes, the probability of each.
    """
    import csv

    from fedstrata.results.run import load, predict_file

    header, rows = predict_file(load(folder), client, path)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)


@app.command("export", cls=PlainCommand)
def export_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a finished run.")],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="A new folder for the models.")],
    clients: Annotated[
        list[str] | None, typer.Option("--client", metavar="NAME", help="A client; by default every model in use.")
    ] = None,
    format: Annotated[
        Literal["safetensors", "torch", "onnx", "peft"],
        typer.Option(help="torch and onnx also write programs, peft writes adapters alone."),
    ] = "safetensors",
) -> None:
    """Write models with their normalisation, class names and clients' own layers; print the files.

    A program of --format torch is read by torch.export.load alone, and takes raw samples.
    """
    from fedstrata.results.export import export
    from fedstrata.results.run import load

    for path in export(load(folder), target, clients or (), format):
        say(path)


@app.command("list", cls=PlainCommand)
def list_command(
    kind: Annotated[
        Literal["algorithms", "datasets", "partitions", "models", "personal"], typer.Argument(metavar="KIND")
    ],
) -> None:
    """List the algorithms, datasets, partitions, models or personal methods that an experiment can name."""
    rows = []
    for name, thing in getattr(fedstrata, kind.upper()).items():
        if kind == "datasets":
            rows.append((name, thing.about, thing.origin))
        else:
            rows.append((name, (thing.__doc__ or "").partition("\n")[0], getattr(thing, "source", "")))
    show_table(("name", "what it is", "source"), rows)


@app.command("scout", cls=PlainCommand)
def scout_command(
    experiment: ExperimentFile = None,
    sets: Sets = None,
    rounds: Annotated[
        int, typer.Option(min=2, help="Rounds of FedAvg to watch; the first tells the sample counts.")
    ] = 3,
    quiet: Quiet = False,
) -> None:
    """Say which layers separate the clients of an experiment, and what kind of skew that suggests.

    Two halves of every client's data are compared, layer by layer. correlation says how well they agree on which
    clients are similar. apart is the size of that pattern, relative to what is each client's own. common is the mean
    cosine of two clients. p is the probability that chance agrees as well; the sentence gives it for all layers.
    """
    from fedstrata.config import load_experiment

    checked = load_experiment(experiment, sets or ())
    from fedstrata.play.scan import scan_experiment
    from fedstrata.report.catalogue import sentence

    # Warnings are printed with --quiet, too: without them the result is misread.
    tell = partial(print, file=sys.stderr)
    choice = scan_experiment(checked, rounds, (lambda line: None) if quiet else tell, warn=tell)
    decision = choice.decision
    said = sentence(decision.kind, decision.layer, decision.values)
    rows = [
        (score.name, f"{score.correlation:.2f}", f"{score.apart:.2f}", f"{score.common:.2f}", f"{score.p:.2g}")
        for score in choice.scores
    ]
    if rows:
        show_table(("layer", "correlation", "apart", "common", "p"), rows, headed=True)
    say(said)
    if choice.layer:
        say(f"LayerCFL compares it with algorithm.layers = {json.dumps(choice.layer)}")
