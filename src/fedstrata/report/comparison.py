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
from fedstrata.metric_info import SMALLEST_DIFFERENCE, MetricInfo, metric_of_settings
from fedstrata.records.schema import Count, Round
from fedstrata.report.drawing import (
    Chart,
    Figure,
    axis,
    band,
    clean,
    dash_of,
    figure,
    line,
    metric_axis,
    palette,
    round_axis,
    rounded,
)
from fedstrata.report.reader import read_rounds
from fedstrata.report.references import ALGORITHMS as REFERENCES
from fedstrata.report.template import render_page
from fedstrata.report.words import DASH, capital, data_name, duration, joined, plural, size, slug, warnings

_FILE = "comparison.json"
_MAX_BYTES = 256 * 2**20
"""A larger ``comparison.json`` is not read."""

_MOST_NOTES = 12
"""The warnings of runs that the page repeats."""

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
        lower_than_fedavg: The number of clients that are worse off than with FedAvg and the same seed, by the metric;
            None where that is unknown.
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
    """How much better the metric of one algorithm is than that of another, paired by seed.

    Attributes:
        algorithm: The one whose mean is not worse.
        other: The other one.
        seeds: The seeds that both have.
        values: By how much the one is better than the other, for each of these seeds; negative where it is worse.
        margin: Half the width of the 95 % t-interval of the mean: over the seeds, or over the clients where the seeds
            do not differ. None where it is unknown.
        smallest: The smallest difference that can be seen where the metric is shown.
    """

    algorithm: str
    other: str
    seeds: tuple[int, ...]
    values: tuple[float, ...]
    margin: float | None = None
    smallest: float = SMALLEST_DIFFERENCE

    @cached_property
    def mean(self) -> float:
        """The mean over the seeds."""
        return mean(self.values)

    @cached_property
    def spread(self) -> float | None:
        """The standard deviation (n - 1) of the differences; None for a single seed."""
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def seeds_differ(self) -> bool:
        """Whether the seeds tell how large the noise is: there are several, and their differences are not the same.

        With few test samples, one more that is right is often the whole difference, with one seed as with another.
        """
        return self.spread is not None and self.spread >= self.smallest

    @property
    def above(self) -> int:
        """The number of seeds in which the one is better than the other."""
        return sum(value > 0 for value in self.values)

    @property
    def clear(self) -> bool:
        """Whether the mean is beyond the noise, and not a difference that no reader would see."""
        return self.margin is not None and self.mean > self.margin and self.mean >= self.smallest


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

    @property
    def warnings(self) -> list[str]:
        """What the reader of the table has to know about the run, in a line each."""
        return run_warnings(self.algorithm, self.seed, self.summary)


def run_warnings(algorithm: str, seed: int, summary: Mapping[str, Any] | None) -> list[str]:
    """Return the warnings of a run, in a line each; none for a run that failed."""
    return [f"{algorithm} with seed {seed}: {line}" for line in warnings(summary or {})]


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
        value: Its metric on validation data, the mean over the clients and over the seeds.
        why: Why it was chosen, or why none was, in a sentence or two.
    """

    label: str | None
    value: float | None
    why: str


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
        metric: The metric of all runs; None in older files.
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
    metric: MetricInfo | None = None

    @property
    def measured(self) -> MetricInfo:
        """The metric of all runs, also of an older file, whose experiment names it."""
        return self.metric or metric_of_settings(self.experiment)

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


def choice_text(choice: SweepChoice, metric: MetricInfo) -> str:
    """Return the choice of a sweep in words."""
    if choice.label is None or choice.value is None:
        return choice.why
    value = metric.text(choice.value)
    return f"Chosen: {choice.label}, with {value}. {choice.why} The table has test data."


def _with_spread(number: Statistic) -> str:
    """Return a fraction with its standard deviation."""
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


COLUMNS = ("acc_client", "acc_worst", "clusters", "ari", "rounds_to_partition", "bytes", "seconds")
"""The measures of every table, in the order of its columns."""

_COSTS_AND_CLUSTERS: Mapping[str, Column] = {
    "clusters": Column("clusters", "Number of clusters at the end.", _with_range),
    "ari": Column("ARI", "Agreement with the ground truth: 1 is the same partition, 0 is chance.", _with_spread),
    "rounds_to_partition": Column("partition in round", "First round with the final clusters.", _with_range),
    "bytes": Column("bytes", "Tensors sent to the clients and back; less is better.", lambda number: size(number.mean)),
    "seconds": Column("time", "Wall-clock time of a run; less is better.", lambda number: duration(number.mean)),
}
"""The columns that are the same for every metric."""


def _columns(rows: Sequence[Row], metric: MetricInfo) -> Mapping[str, Column]:
    """Return the columns of a table, by the name of their measure."""

    def show(number: Statistic) -> str:
        return metric.text(number.mean, number.spread)

    mean_text = f"{capital(metric.name)}, the mean over the clients; {metric.scale}."
    worst_text = f"{capital(metric.name)} of the worst client; {metric.scale}."
    columns = {
        "acc_client": Column(metric.name, mean_text, show),
        "acc_worst": Column("worst client", worst_text, show),
        **_COSTS_AND_CLUSTERS,
    }
    if any("rounds_to_target" in row.figures for row in rows):
        target_text = (
            f"First round in which the mean {metric.name} is as good as probe.target; fewer is better. A dash: "
        )
        columns["rounds_to_target"] = Column("rounds to target", f"{target_text}some seed never had it.", _with_range)
    return columns


def titles(rows: Sequence[Row], metric: MetricInfo) -> Mapping[str, str]:
    """Return the headings of a table, and what the numbers under each of them mean."""
    return {
        "algorithm": "",
        "seeds": "Number of finished runs.",
        **{column.title: column.text for column in _columns(rows, metric).values()},
        "clients worse than fedavg": f"Clients whose {metric.name} is {metric.worse} than with FedAvg and the same "
        "seed; 0 is best.",
    }


def cells(row: Row, metric: MetricInfo) -> tuple[str, ...]:
    """Return the texts of a row, under the `titles` of its table."""
    seeds = f"{len(row.seeds) - len(row.failed)}" + (f", {len(row.failed)} failed" if row.failed else "")
    numbers = [(row.figures[key], column) for key, column in _columns([row], metric).items()]
    lower = DASH if row.lower_than_fedavg is None else f"{row.lower_than_fedavg} of {row.clients}"
    return (
        row.algorithm,
        seeds,
        *(DASH if number is None else column.show(number) for number, column in numbers),
        lower,
    )


def difference_text(difference: Difference, metric: MetricInfo) -> str:
    """Return a difference in words."""
    return f"{difference.algorithm} {_relation(difference, metric)}"


def _relation(difference: Difference, metric: MetricInfo) -> str:
    """Return what a difference says about its first algorithm."""
    other = difference.other
    count = len(difference.seeds)
    if not any(difference.values):
        return f"equals {other} in {count} of {plural(count, 'seed')}"
    where = f"in {difference.above} of {count} seeds" if count > 1 else f"with seed {difference.seeds[0]}"
    verb = "is better than" if difference.clear else "cannot be told from"
    gain = metric.gain_text(difference.mean, difference.spread)
    return f"{verb} {other}: {gain} {metric.better} {where}; {_noise_text(difference, metric)}"


def _noise_text(difference: Difference, metric: MetricInfo) -> str:
    """Return how a difference compares with the noise, in words."""
    if difference.margin is None:
        return "the noise of a single seed is unknown"
    source = "seeds"
    if len(difference.seeds) == 1:
        source = "clients of one seed; other seeds may differ"
    elif not difference.seeds_differ:
        source = "clients, as all seeds have the same difference"
    size_text = "more than" if difference.clear else "not more than"
    return f"{size_text} the noise, {metric.gain_text(difference.margin)} (95 %, over {source})"


def result_text(rows: Sequence[Row], differences: Sequence[Difference], metric: MetricInfo) -> str:
    """Return which algorithm is the best in words, or that none is beyond the noise."""
    known = [(row.algorithm, number) for row in rows if (number := row.figures["acc_client"]) is not None]
    ranked = sorted(known, key=lambda pair: -metric.quality(pair[1].mean))
    if not ranked:
        return "No run of this comparison is finished."
    first, number = ranked[0]
    value = f"{metric.name} {metric.text(number.mean, number.spread)}"
    if len(ranked) == 1:
        return f"{first}: {value}."
    second, _ = ranked[1]
    clearly_worse = {each.other for each in differences if each.algorithm == first and each.clear}
    level = [name for name, _ in ranked[1:] if name not in clearly_worse]
    if level:
        verb = "is" if len(level) == 1 else "are"
        texts = [
            f"No algorithm of {len(ranked)} is clearly the best: {first} has {value}, and {joined(level)} {verb} "
            "within the noise."
        ]
    else:
        texts = [f"{first} is the best of {len(ranked)} algorithms: {value}, the {metric.best}."]
    for each in differences:
        if {each.algorithm, each.other} == {first, second}:
            texts.append(f"{difference_text(each, metric)}.")
    return " ".join(texts)


def answers(document: Document) -> list[tuple[str, list[str]]]:
    """Return what a reader who knows no statistics asks, with the answers: what grouping gained, and where to look."""
    metric = document.measured
    names = [row.algorithm for row in document.table]
    gained = [
        text
        for name, words in REFERENCES.items()
        if name in names and (text := _against(name, words, names, document.differences))
    ]
    worse = [
        f"{row.algorithm}: {row.lower_than_fedavg} of {row.clients}"
        for row in document.table
        if row.lower_than_fedavg and row.algorithm not in REFERENCES
    ]
    found = [("What did grouping gain?", gained)]
    if any(row.lower_than_fedavg is not None for row in document.table):
        counted = f"Clients whose {metric.name} is {metric.worse} than with one model for all (fedavg): "
        text = f"{counted}{'; '.join(worse)}." if worse else f"{counted}none, with any of the algorithms."
        found.append(("Which clients to look at?", [text, "The page of each run below names them."]))
    found.append(
        ("What are the groups, and why?", ["Each run has a page that says so; the table of runs below leads to it."])
    )
    return [(question, texts) for question, texts in found if texts]


def _against(name: str, words: str, names: Sequence[str], differences: Sequence[Difference]) -> str:
    """Say which algorithms are clearly better and worse than a reference."""
    clear = [each for each in differences if each.clear and name in (each.algorithm, each.other)]
    better = [each.algorithm for each in clear if each.other == name]
    worse = [each.other for each in clear if each.algorithm == name]
    others = [other for other in names if other != name and other not in (*better, *worse)]
    parts = [f"clearly better: {joined(better)}"] if better else []
    parts += [f"clearly worse: {joined(worse)}"] if worse else []
    parts += [f"no clear difference: {joined(others)}"] if others else []
    return f"Compared with {words}: {'; '.join(parts)}." if parts else ""


def _same_curves(algorithms: Mapping[str, Sequence[RunRounds]]) -> str:
    """Say which algorithms have the same values in every round, so that one curve hides another; else empty."""
    found: dict[tuple[tuple[float | None, ...], ...], list[str]] = {}
    for name, runs in algorithms.items():
        found.setdefault(tuple(tuple(each.acc_client for each in run) for run in runs), []).append(name)
    same = [joined(names) for names in found.values() if len(names) > 1]
    return f"Equal in every round, so that their curves lie on each other: {'; '.join(same)}." if same else ""


class PairCell(NamedTuple):
    """How much better the algorithm of a row is than that of a column.

    Attributes:
        difference: The difference; a dash where there is none.
        spread: Its standard deviation; empty where there is one seed.
        seeds: In how many seeds the row is better.
        clear: "better" or "worse" where the difference is beyond the noise, otherwise empty.
    """

    difference: str
    spread: str
    seeds: str
    clear: str


def pair_table(rows: Sequence[Row], differences: Sequence[Difference], metric: MetricInfo) -> list[list[PairCell]]:
    """Return the difference of every algorithm to each other one, (rows, rows)."""
    cells_of: dict[tuple[str, str], PairCell] = {}
    for each in differences:
        count = len(each.seeds)
        size_text = metric.gain_text(each.mean)
        spread = "" if each.spread is None else f"± {metric.gain_text(each.spread)}"
        worse = sum(value < 0 for value in each.values)
        plus, minus = ("+", "\N{MINUS SIGN}") if each.mean else ("", "")
        better_text, worse_text = ("better", "worse") if each.clear else ("", "")
        cells_of[each.algorithm, each.other] = PairCell(
            plus + size_text, spread, f"{each.above} of {count}", better_text
        )
        cells_of[each.other, each.algorithm] = PairCell(minus + size_text, spread, f"{worse} of {count}", worse_text)
    names = [row.algorithm for row in rows]
    return [[cells_of.get((row, column), PairCell(DASH, "", "", "")) for column in names] for row in names]


# The charts and the page.


class Style(NamedTuple):
    """How an algorithm is drawn on the whole page: neighbours differ in their dash too."""

    colour: str
    dash: str


SHARED_SECONDS = (
    "Work that several runs need alike, such as the rounds before their first splits, is done once: each of these runs "
    "counts an equal part of its time. A run on its own would take longer, and the times of all runs add up to what "
    "the comparison took for training and deciding."
)
"""How seconds of shared work are counted."""

_RoundMeasure = Callable[[Round], float | None]


def comparison_charts(
    algorithms: Mapping[str, Sequence[RunRounds]], styles: Mapping[str, Style], metric: MetricInfo
) -> list[Chart]:
    """Draw the metric over rounds, over bytes and over seconds, and the number of clusters over rounds.

    Args:
        algorithms: The rounds of each run, by algorithm.
        styles: How each algorithm is drawn.
        metric: The metric of the runs.
    """
    drawn = [(name, runs, styles[name]) for name, runs in algorithms.items() if min(map(len, runs))]
    if not drawn:
        return []
    scores = [_traces(*each, _score) for each in drawn]
    counts = [_traces(*each, lambda one: one.clusters, shape="hv") for each in drawn]
    by_bytes = [_cost_traces(*each, _bytes, "%{x:.4~s}B", metric) for each in drawn]
    by_seconds = [_cost_traces(*each, lambda one: one.seconds, "%{x:.4~g} s", metric) for each in drawn]
    rounds = round_axis(max((_common_rounds(runs) for _, runs, _ in drawn), key=len))
    vertical = metric_axis(metric)
    clusters = axis("clusters", rangemode="tozero", hoverformat=".3~g")
    bytes_axis = axis("bytes so far", rangemode="tozero", tickformat=".3~s", ticksuffix="B")
    seconds_axis = axis("seconds so far", rangemode="tozero", tickformat=",.4~g", ticksuffix=" s")
    end = "up" if metric.larger_is_better else "down"
    point = f"One point per round, at the mean over the seeds. A curve further {end} and to the left is better."
    bytes_text = f"{point} Tensors only, both ways; an absent client counts on the way down."
    seconds_text = f"{point} {SHARED_SECONDS}"
    name = slug(metric.name)
    title = capital(metric.name)
    closest = {"hovermode": "closest", "hoverdistance": -1}
    bytes_figure = _figure(by_bytes, xaxis=bytes_axis, yaxis=vertical, **closest)
    seconds_figure = _figure(by_seconds, xaxis=seconds_axis, yaxis=vertical, **closest)
    return [
        Chart(name, f"{title} over rounds", f"{capital(metric.scale)}.", _figure(scores, xaxis=rounds, yaxis=vertical)),
        Chart("clusters", "Number of clusters", "", _figure(counts, xaxis=rounds, yaxis=clusters)),
        Chart(f"{name}-by-bytes", f"{title} over bytes", bytes_text, bytes_figure),
        Chart(f"{name}-by-seconds", f"{title} over seconds", seconds_text, seconds_figure),
    ]


def _figure(algorithms: Sequence[list[Figure]], **layout: Any) -> Figure:
    """Draw all bands under all lines. The page has one legend for all charts."""
    bands = [trace for traces in algorithms for trace in traces[:-1]]
    lines = [traces[-1] for traces in algorithms]
    margin = {"l": 52, "r": 16, "t": 12, "b": 44}
    return figure([*bands, *lines], 340, margin=margin, showlegend=False, **layout)


def _score(each: Round) -> float | None:
    return each.acc_client


def _bytes(each: Round) -> float:
    return each.bytes_down + each.bytes_up


def _common_rounds(runs: Sequence[RunRounds]) -> RunRounds:
    """Return the rounds of the shortest run, which all seeds have."""
    return min(runs, key=len)


def _cost_traces(
    name: str, runs: Sequence[RunRounds], style: Style, cost: _RoundMeasure, cost_text: str, metric: MetricInfo
) -> list[Figure]:
    """Draw the metric of an algorithm over what it has cost so far."""
    total = _values(runs, cost).cumsum(axis=1).mean(axis=0)
    value = f"{clean(metric.name)} %{{y:{metric.hover_format}}}"
    point = f"{clean(name)}, round %{{customdata}}<br>{value} after {cost_text}"
    hover = {"customdata": [each.round for each in _common_rounds(runs)], "hovertemplate": f"{point}<extra></extra>"}
    return _traces(name, runs, style, _score, hover, x=rounded(total, 6))


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
    styles = {row.algorithm: Style(palette(place), dash_of(place)) for place, row in enumerate(rows)}
    metric = document.measured
    charts = comparison_charts(folder.runs, styles, metric)
    algorithms = {name: keys for name, keys in folder.algorithms.items() if keys}
    return render_page(
        "comparison.html",
        charts,
        document=document,
        title=f"{plural(len(rows), 'setting' if document.sweep else 'algorithm')} on "
        f"{data_name(document.setting('data', 'name'))}",
        sentence=result_text(rows, document.differences, metric),
        answers=answers(document),
        shared_seconds=SHARED_SECONDS,
        same_curves=_same_curves(folder.runs),
        facts=_facts(document),
        notes=[*map(capital, document.warnings), *folder.notes, *_notes_of_runs(document.runs)],
        charts=charts,
        styles=styles,
        titles=titles(rows, metric),
        table=[cells(row, metric) for row in rows],
        names=[row.algorithm for row in rows],
        pairs=pair_table(rows, document.differences, metric),
        differences=[difference_text(each, metric) for each in document.differences],
        metric=metric,
        choice="" if document.sweep is None else choice_text(document.sweep, metric),
        page_of=lambda run: quote(f"{Path(run.folder).as_posix()}/report.html"),
        command=_command(document),
        experiment=tomli_w.dumps({**document.experiment, "algorithms": algorithms}),
    )


def _notes_of_runs(runs: Sequence[RunEntry]) -> list[str]:
    """Return the warnings of the runs, and how many more there are where they are many."""
    found = [line for run in runs for line in run.warnings]
    more = len(found) - _MOST_NOTES
    return found if more <= 1 else [*found[:_MOST_NOTES], f"There are {more:,} more such warnings on pages of runs."]


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
