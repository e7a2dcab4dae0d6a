"""The page of a comparison: the records of several runs in, one HTML file out that needs nothing else."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import nan
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import tomli_w
from numpy import float64
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from fedstrata.errors import RecordError
from fedstrata.files import MOST_BYTES_OF_EXPERIMENT, parse_json, parse_toml, read_file, refuse_links, replace_file
from fedstrata.folder_lock import folder_lock
from fedstrata.limits import Share
from fedstrata.records.schema import Count, Round
from fedstrata.report.drawing import Chart, Figure, axis, band, clean, figure, line, palette, round_axis, rounded
from fedstrata.report.reader import read_rounds
from fedstrata.report.template import render_page
from fedstrata.report.words import DASH, capital, duration, joined, plural, size

_FILE = "comparison.json"
_MAX_BYTES = 256 * 2**20
"""A larger ``comparison.json`` is not read."""

SMALLEST_DIFFERENCE = 0.0005
"""A smaller difference of accuracies is shown as 0.000, so it makes no winner."""

RunRounds = tuple[Round, ...]
"""The rounds of one run."""

# What `comparison.json` holds.


@dataclass(frozen=True)
class Statistic:
    """A number over the seeds.

    Attributes:
        mean: The mean over the seeds that have it.
        spread: The standard deviation (n - 1); None for a single seed.
        least: The smallest of all.
        most: The largest of all.
    """

    mean: float
    spread: float | None
    least: float
    most: float


@dataclass(frozen=True)
class Row:
    """A row of the table: one algorithm.

    Attributes:
        algorithm: The name of the algorithm.
        seeds: The seeds that it was run with.
        failed: The seeds with which it failed.
        figures: The measures by their names; None where no seed has the measure.
        lower_than_fedavg: The number of clients whose accuracy is lower than with FedAvg and the same seed; None where
            that is unknown.
        clients: The number of clients that were compared so.
    """

    algorithm: str
    seeds: tuple[int, ...]
    failed: tuple[int, ...]
    figures: Mapping[str, Statistic | None]
    lower_than_fedavg: int | None
    clients: int


@dataclass(frozen=True)
class Difference:
    """How much higher the accuracy of one algorithm is than that of another, paired by seed.

    Attributes:
        algorithm: The one whose mean is not lower.
        other: The other one.
        seeds: The seeds that both have.
        values: The accuracy of the one minus that of the other, for each of these seeds.
        margin: Half the width of the 95 % t-interval of the mean: over the seeds, or over the clients where there is
            one seed. None where it is unknown.
    """

    algorithm: str
    other: str
    seeds: tuple[int, ...]
    values: tuple[float, ...]
    margin: float | None = None

    @cached_property
    def mean(self) -> float:
        """The mean over the seeds."""
        return mean(self.values)

    @cached_property
    def spread(self) -> float | None:
        """The standard deviation (n - 1) of the differences; None for a single seed."""
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def above(self) -> int:
        """The number of seeds in which the one is above the other."""
        return sum(value > 0 for value in self.values)

    @property
    def clear(self) -> bool:
        """Whether the mean is beyond the noise, and not a difference that no reader would see."""
        return self.margin is not None and self.mean > self.margin and self.mean >= SMALLEST_DIFFERENCE


@dataclass(frozen=True)
class RunEntry:
    """One run.

    Attributes:
        algorithm: The name of the algorithm.
        seed: The seed of the run.
        folder: The path of the run folder, relative to the folder of the comparison.
        summary: The summary; None for a run that failed.
        error: Why the run failed, in one line.
    """

    algorithm: str
    seed: int
    folder: str
    summary: Mapping[str, Any] | None
    error: str


class Jobs(BaseModel):
    """The local jobs that the runs needed, and those that had to be trained because no run had done them before."""

    asked: Count
    trained: Count
    share: Share

    def __str__(self) -> str:
        """Return the jobs that had to be trained."""
        return f"{self.trained:,} of {self.asked:,} ({100 * self.share:.0f} %)"


class LeftOut(BaseModel):
    """A run that is left out, and why."""

    folder: str
    why: str


@dataclass(frozen=True)
class SweepChoice:
    """Which setting of a sweep was chosen.

    Attributes:
        label: The label of the setting; None where none could be chosen.
        value: Its mean accuracy on validation data, over the seeds.
        why: Why it was chosen, or why none was, in a sentence or two.
    """

    label: str | None
    value: float | None
    why: str

    @property
    def text(self) -> str:
        """Return the choice in words."""
        if self.label is None or self.value is None:
            return self.why
        return f"Chosen: {self.label}, with {self.value:.3f}. {self.why} The table has the accuracy on test data."


class Document(BaseModel):
    """``comparison.json``.

    Attributes:
        experiment: The keys that all runs have in common.
        jobs: The jobs that the runs shared; None when they shared none.
        runs: The runs in the order in which they were given.
        left_out: The runs that could not be read.
        table: A row for each algorithm.
        differences: The differences of all pairs of algorithms that have a seed in common.
        warnings: What looks wrong with the data of the runs.
        sweep: The choice among the runs, where they are the settings of a sweep.
    """

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    experiment: dict[str, Any]
    jobs: Jobs | None
    runs: tuple[RunEntry, ...]
    left_out: tuple[LeftOut, ...]
    table: tuple[Row, ...]
    differences: tuple[Difference, ...]
    warnings: tuple[str, ...] = ()
    sweep: SweepChoice | None = None

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of all runs."""
        return tuple(dict.fromkeys(run.seed for run in self.runs))

    def setting(self, table: str, key: str) -> str:
        """Return a key of the experiment as text; empty where it is not set."""
        keys = self.experiment.get(table)
        return str(keys.get(key, "")) if isinstance(keys, Mapping) else ""


# The folder of a comparison.


class ComparisonFolder(NamedTuple):
    """What the folder of a comparison and those of its runs hold.

    Attributes:
        document: The content of ``comparison.json``.
        algorithms: The keys of each algorithm, as far as they are known.
        runs: The rounds of the finished runs of each algorithm, as far as they can be read.
        notes: What was left out and why, in sentences.
    """

    document: Document
    algorithms: Mapping[str, Mapping[str, Any]]
    runs: Mapping[str, Sequence[RunRounds]]
    notes: tuple[str, ...]


def read_comparison(folder: Path) -> ComparisonFolder:
    """Read what the page needs from the folder of a comparison and from those of its runs.

    A run whose rounds or keys cannot be read is left out of the charts, and noted.

    Raises:
        RecordError: When the folder holds no ``comparison.json``, or one of another version.
    """
    path = folder / _FILE
    damaged = f"{path} is damaged or of another version"
    try:
        refuse_links(folder, [_FILE])
        raw = read_file(path, _MAX_BYTES)
        parse_json(raw)  # refuses what no JSON reader accepts, such as infinity
        document = Document.model_validate_json(raw)
    except FileNotFoundError:
        raise RecordError(f"{folder} holds no {_FILE}; name the folder of a finished `fedstrata compare`") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise RecordError(f"{damaged} ({place}: {first['msg'].lower()}); compare the runs again") from None
    except ValueError as error:
        raise RecordError(f"{damaged} ({error}); compare the runs again") from None
    notes = [f"{entry.folder} is left out: {entry.why}" for entry in document.left_out]
    algorithms = _read_algorithms(folder, document.runs, notes)
    runs = _read_runs(folder, document.runs, notes)
    return ComparisonFolder(document, algorithms, runs, tuple(notes))


def _read_algorithms(folder: Path, runs: Sequence[RunEntry], notes: list[str]) -> dict[str, Mapping[str, Any]]:
    """Return the keys of each algorithm, from the experiment of its first run that can be read."""
    found: dict[str, Mapping[str, Any]] = {}
    for run in runs:
        try:
            settings = parse_toml(read_file(folder / run.folder / "experiment.toml", MOST_BYTES_OF_EXPERIMENT))
            keys = {key: value for key, value in settings["algorithm"].items() if key != "name"}
            found.setdefault(run.algorithm, keys)
        except (OSError, ValueError, KeyError, AttributeError, RecordError):
            continue
    for name in dict.fromkeys(run.algorithm for run in runs if run.algorithm not in found):
        notes.append(f"No experiment.toml of {name} can be read, so this page is without its keys.")
    return found


def _read_runs(folder: Path, runs: Sequence[RunEntry], notes: list[str]) -> dict[str, list[RunRounds]]:
    """Return the rounds of the finished runs, by algorithm."""
    found: dict[str, list[RunRounds]] = {}
    for run in runs:
        if run.summary is None:
            continue
        place = folder / run.folder
        name = f"{run.algorithm} with seed {run.seed}"
        own_notes: list[str] = []
        try:
            rounds = read_rounds(place, own_notes)
            if [each.round for each in rounds] != list(range(1, len(rounds) + 1)):
                raise RecordError(f"{place / 'rounds.jsonl'} lacks a round; restore it or run again")
        except RecordError as error:
            # The page is the same, however the folder was named.
            notes.append(f"The charts are without {name}: {str(error).replace(str(place), run.folder)}")
            continue
        notes += [f"{name}: {note}" for note in own_notes]
        found.setdefault(run.algorithm, []).append(rounds)
    return found


# The words of a comparison, on its page, in its Markdown and on a terminal.


def _with_spread(number: Statistic | Difference) -> str:
    """Return a fraction, or the difference of two, with its standard deviation."""
    return f"{number.mean:.3f}" + ("" if number.spread is None else f" ± {number.spread:.3f}")


def _with_range(number: Statistic) -> str:
    """Return a count with its range."""
    if number.least == number.most:
        return f"{number.mean:.0f}"
    return f"{number.mean:.1f} ({number.least:.0f} to {number.most:.0f})"


class Column(NamedTuple):
    """A column of the table.

    Attributes:
        title: Its heading.
        text: What the number means, with its unit and which values are good.
        show: Makes the text of a cell.
    """

    title: str
    text: str
    show: Callable[[Statistic], str]


COLUMNS: Mapping[str, Column] = {
    "acc_client": Column("accuracy", "Mean accuracy of the clients, from 0 to 1; higher is better.", _with_spread),
    "acc_worst": Column("worst client", "Lowest accuracy of a client, from 0 to 1; higher is better.", _with_spread),
    "clusters": Column("clusters", "Number of clusters at the end.", _with_range),
    "ari": Column("ARI", "Agreement with the ground truth: 1 is the same partition, 0 is chance.", _with_spread),
    "rounds_to_partition": Column("partition in round", "First round with the final clusters.", _with_range),
    "bytes": Column("bytes", "Tensors sent to the clients and back; less is better.", lambda number: size(number.mean)),
    "seconds": Column("time", "Wall-clock time of a run; less is better.", lambda number: duration(number.mean)),
}
"""The columns of every table, by the name of their measure."""

TARGET_COLUMN = Column(
    "rounds to target",
    "First round with the mean accuracy of probe.target; fewer is better. A dash: some seed never had it.",
    _with_range,
)
"""The column of the measure ``rounds_to_target``, in tables of runs with one and the same target."""


def _columns(rows: Sequence[Row]) -> Mapping[str, Column]:
    """Return the columns of a table."""
    has_target = any("rounds_to_target" in row.figures for row in rows)
    return {**COLUMNS, "rounds_to_target": TARGET_COLUMN} if has_target else COLUMNS


def titles(rows: Sequence[Row]) -> Mapping[str, str]:
    """Return the headings of a table, and what the numbers under each of them mean."""
    return {
        "algorithm": "",
        "seeds": "Number of finished runs.",
        **{column.title: column.text for column in _columns(rows).values()},
        "clients below fedavg": "Clients whose accuracy is lower than with FedAvg and the same seed; 0 is best.",
    }


def cells(row: Row) -> tuple[str, ...]:
    """Return the texts of a row, under the `titles` of its table."""
    seeds = f"{len(row.seeds) - len(row.failed)}" + (f", {len(row.failed)} failed" if row.failed else "")
    numbers = [(row.figures[key], column) for key, column in _columns([row]).items()]
    lower = DASH if row.lower_than_fedavg is None else f"{row.lower_than_fedavg} of {row.clients}"
    return (
        row.algorithm,
        seeds,
        *(DASH if number is None else column.show(number) for number, column in numbers),
        lower,
    )


def difference_text(difference: Difference) -> str:
    """Return a difference in words."""
    return f"{difference.algorithm} {_relation(difference)}"


def _relation(difference: Difference) -> str:
    """Return what a difference says about its first algorithm."""
    other = difference.other
    count = len(difference.seeds)
    if not any(difference.values):
        return f"equals {other} in {count} of {plural(count, 'seed')}"
    where = f"in {difference.above} of {count} seeds" if count > 1 else f"with seed {difference.seeds[0]}"
    verb = "is above" if difference.clear else "cannot be told from"
    return f"{verb} {other}: {_with_spread(difference)} higher {where}; {_noise_text(difference)}"


def _noise_text(difference: Difference) -> str:
    """Return how a difference compares with the noise, in words."""
    if difference.margin is None:
        return "the noise of a single seed is unknown"
    source = "seeds" if len(difference.seeds) > 1 else "clients of one seed; other seeds may differ"
    size_text = "more than" if difference.clear else "not more than"
    return f"{size_text} the noise, {difference.margin:.3f} (95 %, over {source})"


def result_text(rows: Sequence[Row], differences: Sequence[Difference]) -> str:
    """Return which algorithm has the highest accuracy in words, or that none has beyond the noise."""
    known = [(row.algorithm, number) for row in rows if (number := row.figures["acc_client"]) is not None]
    ranked = sorted(known, key=lambda pair: -pair[1].mean)
    if not ranked:
        return "No run of this comparison is finished."
    first, number = ranked[0]
    if len(ranked) == 1:
        return f"{first} has an accuracy of {_with_spread(number)}."
    second, _ = ranked[1]
    clearly_below = {each.other for each in differences if each.algorithm == first and each.clear}
    level = [name for name, _ in ranked[1:] if name not in clearly_below]
    if level:
        verb = "is" if len(level) == 1 else "are"
        texts = [
            f"No algorithm of {len(ranked)} is clearly the most accurate: {first} has {_with_spread(number)}, and "
            f"{joined(level)} {verb} within the noise."
        ]
    else:
        texts = [f"{first} has the highest accuracy of {len(ranked)} algorithms: {_with_spread(number)}."]
    for each in differences:
        if {each.algorithm, each.other} == {first, second}:
            texts.append(f"{difference_text(each)}.")
    return " ".join(texts)


class PairCell(NamedTuple):
    """How much more accurate the algorithm of a row is than that of a column.

    Attributes:
        difference: The difference with its standard deviation; a dash where there is none.
        seeds: In how many seeds the row is above.
        clear: "above" or "below" where the difference is beyond the noise, otherwise empty.
    """

    difference: str
    seeds: str
    clear: str


def pair_table(rows: Sequence[Row], differences: Sequence[Difference]) -> list[list[PairCell]]:
    """Return the difference of every algorithm to each other one, (rows, rows)."""
    cells_of: dict[tuple[str, str], PairCell] = {}
    for each in differences:
        count = len(each.seeds)
        size_text = _with_spread(each)
        below = sum(value < 0 for value in each.values)
        plus, minus = ("+", "\N{MINUS SIGN}") if each.mean else ("", "")
        above_text, below_text = ("above", "below") if each.clear else ("", "")
        cells_of[each.algorithm, each.other] = PairCell(plus + size_text, f"{each.above} of {count}", above_text)
        cells_of[each.other, each.algorithm] = PairCell(minus + size_text, f"{below} of {count}", below_text)
    names = [row.algorithm for row in rows]
    return [[cells_of.get((row, column), PairCell(DASH, "", "")) for column in names] for row in names]


# The charts and the page.


class Style(NamedTuple):
    """How an algorithm is drawn on the whole page: neighbours differ in their dash too."""

    colour: str
    dash: str


_RoundMeasure = Callable[[Round], float | None]


def comparison_charts(algorithms: Mapping[str, Sequence[RunRounds]], styles: Mapping[str, Style]) -> list[Chart]:
    """Draw accuracy over rounds, over bytes and over seconds, and the number of clusters over rounds.

    Args:
        algorithms: The rounds of each run, by algorithm.
        styles: How each algorithm is drawn.
    """
    drawn = [(name, runs, styles[name]) for name, runs in algorithms.items() if min(map(len, runs))]
    if not drawn:
        return []
    accuracies = [_traces(*each, _accuracy) for each in drawn]
    counts = [_traces(*each, lambda one: one.clusters, shape="hv") for each in drawn]
    by_bytes = [_cost_traces(*each, lambda one: one.bytes_down + one.bytes_up, "%{x:.4~s}B") for each in drawn]
    by_seconds = [_cost_traces(*each, lambda one: one.seconds, "%{x:.4~g} s") for each in drawn]
    rounds = round_axis(max((_common_rounds(runs) for _, runs, _ in drawn), key=len))
    accuracy = axis("accuracy", hoverformat=".3f")
    clusters = axis("clusters", rangemode="tozero", hoverformat=".3~g")
    bytes_axis = axis("bytes so far", rangemode="tozero", tickformat=".3~s", ticksuffix="B")
    seconds_axis = axis("seconds so far", rangemode="tozero", tickformat=",.4~g", ticksuffix=" s")
    point = "One point per round, at the mean over the seeds. A curve further up and to the left is better."
    bytes_text = f"{point} Tensors only, both ways; an absent client counts on the way down."
    seconds_text = f"{point} The time of a run is its own and its part of shared work."
    closest = {"hovermode": "closest", "hoverdistance": -1}
    bytes_figure = _figure(by_bytes, xaxis=bytes_axis, yaxis=accuracy, **closest)
    seconds_figure = _figure(by_seconds, xaxis=seconds_axis, yaxis=accuracy, **closest)
    return [
        Chart("accuracy", "Accuracy over rounds", "", _figure(accuracies, xaxis=rounds, yaxis=accuracy)),
        Chart("clusters", "Number of clusters", "", _figure(counts, xaxis=rounds, yaxis=clusters)),
        Chart("accuracy-by-bytes", "Accuracy over bytes", bytes_text, bytes_figure),
        Chart("accuracy-by-seconds", "Accuracy over seconds", seconds_text, seconds_figure),
    ]


def _figure(algorithms: Sequence[list[Figure]], **layout: Any) -> Figure:
    """Draw all bands under all lines. The page has one legend for all charts."""
    bands = [trace for traces in algorithms for trace in traces[:-1]]
    lines = [traces[-1] for traces in algorithms]
    margin = {"l": 52, "r": 16, "t": 12, "b": 44}
    return figure([*bands, *lines], 340, margin=margin, showlegend=False, **layout)


def _accuracy(each: Round) -> float | None:
    return each.acc_client


def _common_rounds(runs: Sequence[RunRounds]) -> RunRounds:
    """Return the rounds of the shortest run, which all seeds have."""
    return min(runs, key=len)


def _cost_traces(
    name: str, runs: Sequence[RunRounds], style: Style, cost: _RoundMeasure, cost_text: str
) -> list[Figure]:
    """Draw the accuracy of an algorithm over what it has cost so far."""
    total = _values(runs, cost).cumsum(axis=1).mean(axis=0)
    point = f"{clean(name)}, round %{{customdata}}<br>accuracy %{{y:.3f}} after {cost_text}"
    hover = {"customdata": [each.round for each in _common_rounds(runs)], "hovertemplate": f"{point}<extra></extra>"}
    return _traces(name, runs, style, _accuracy, hover, x=rounded(total, 6))


def _traces(
    name: str,
    runs: Sequence[RunRounds],
    style: Style,
    measure: _RoundMeasure,
    hover: Mapping[str, Any] | None = None,
    **places: Any,
) -> list[Figure]:
    """Draw the mean over the seeds and, before it, the band from the lowest to the highest of several seeds."""
    values = _values(runs, measure)
    rounds = _common_rounds(runs)
    middle = line(rounds, values.mean(axis=0), name, style.colour, dash=style.dash, **places, **(hover or {}))
    if len(values) < 2:
        return [middle]
    return [*band(rounds, values.min(axis=0), values.max(axis=0), name, style.colour, **places), middle]


def _values(runs: Sequence[RunRounds], measure: _RoundMeasure) -> NDArray[float64]:
    """Return a measure of each seed in each round that all seeds have, (seeds, rounds); nan where it is unknown."""
    known = len(_common_rounds(runs))
    found = [[measure(each) for each in run[:known]] for run in runs]
    return np.array([[nan if value is None else value for value in run] for run in found], dtype=float64)


def build_comparison(folder: Path) -> Path:
    """Write ``comparison.html`` into the folder of a comparison, from the records there and in its run folders alone.

    The same records give the same bytes.

    Returns:
        The path of the page.

    Raises:
        RecordError: When the folder is not that of a comparison, or another process works in it.
    """
    read_comparison(folder)  # so that no lock is made in a folder of something else
    with folder_lock(folder):
        return write_comparison_page(folder)


def write_comparison_page(folder: Path) -> Path:
    """Write the page as `build_comparison`, for a caller that has the lock of the folder."""
    page = folder / "comparison.html"
    replace_file(page, _render(read_comparison(folder)).encode())
    return page


def _render(folder: ComparisonFolder) -> str:
    """Return the page as text."""
    document = folder.document
    rows = document.table
    dashes = ("solid", "dash", "dot")
    styles = {row.algorithm: Style(palette(place), dashes[place % len(dashes)]) for place, row in enumerate(rows)}
    charts = comparison_charts(folder.runs, styles)
    algorithms = {name: keys for name, keys in folder.algorithms.items() if keys}
    return render_page(
        "comparison.html",
        charts,
        document=document,
        title=f"{plural(len(rows), 'setting' if document.sweep else 'algorithm')} on "
        f"{document.setting('data', 'name')}",
        sentence=result_text(rows, document.differences),
        facts=_facts(document),
        notes=[*map(capital, document.warnings), *folder.notes],
        charts=charts,
        styles=styles,
        titles=titles(rows),
        table=[cells(row) for row in rows],
        names=[row.algorithm for row in rows],
        pairs=pair_table(rows, document.differences),
        differences=[difference_text(each) for each in document.differences],
        page_of=lambda run: quote(f"{Path(run.folder).as_posix()}/report.html"),
        command=_command(document),
        experiment=tomli_w.dumps({**document.experiment, "algorithms": algorithms}),
    )


def _facts(document: Document) -> list[tuple[str, str]]:
    """Return the experiment in a few names."""
    found = [
        ("clients", document.setting("data", "clients")),
        ("partition", document.setting("partition", "scheme")),
        ("model", document.setting("model", "name")),
        ("rounds", str(document.experiment.get("rounds", ""))),
        ("seeds", ", ".join(map(str, document.seeds))),
    ]
    return [(name, value) for name, value in found if value]


def _command(document: Document) -> str:
    """Return the command that makes the comparison again."""
    if document.sweep is not None:
        return "fedstrata sweep experiment.toml --grid KEY=VALUE,VALUE --out again"
    if document.jobs is None:
        given = [run.folder for run in document.runs]
    else:
        seeds = ",".join(map(str, document.seeds))
        names = ",".join(row.algorithm for row in document.table)
        given = ["experiment.toml", "--algorithms", names, "--seeds", seeds]
    return shlex.join(["fedstrata", "compare", *given, "--out", "again"])
