"""What came of a comparison: its runs, the table over seeds, the paired differences, and its files."""

from __future__ import annotations

import json
import logging
import os
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from fedstrata.base.files import replace_file, root_folder
from fedstrata.base.resources import resource_error
from fedstrata.objective.metric_info import ACCURACY, MetricInfo
from fedstrata.records.measures import diverged
from fedstrata.report.comparison.folder import Difference, JobCount, Outcome, Row, Statistic, SweepChoice
from fedstrata.report.comparison.page import write_comparison_page
from fedstrata.report.comparison.words import COLUMNS, choice_text, difference_text, row_kind, table_of
from fedstrata.report.summary import stage_cost
from fedstrata.report.words import capital
from fedstrata.results.plot import plot

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_logger = logging.getLogger(__name__)

_DECIMALS = 12
"""The decimals of a difference. Those after them are errors of rounding, by which equal results would differ."""


_OF_A_DIFFERENCE = ("mean", "spread", "margin", "above", "clear")
"""What is computed of a difference, and written down beside it."""


@dataclass(frozen=True)
class RunFailure:
    """Why a run failed, as text. The exception itself would keep the data and the workers in its frames alive.

    Attributes:
        error: Why it failed, in one line.
        traceback: Where it failed.
    """

    error: str
    traceback: str

    @classmethod
    def of(cls, error: Exception) -> RunFailure:
        """Describe an exception; a failure of the machine in the words of `fedstrata.base.resources`."""
        cause = resource_error(error) or error
        line = f"{type(cause).__name__}: {' '.join(str(cause).split())}"
        _logger.debug("this is where the error came from", exc_info=error)
        return cls(line, "".join(traceback.format_exception(error)))


@dataclass(frozen=True, repr=False)
class Comparison:
    """Runs of several algorithms on the same federations.

    Attributes:
        folder: The folder with ``comparison.json``, ``comparison.md`` and ``comparison.html``.
        experiment: The keys that all runs have in common.
        runs: The outcome of each run.
        jobs: The number of shared jobs since the comparison was begun or resumed; None where the runs shared none.
        data_warnings: What looks wrong with the data of the runs, in a line each.
        names: The name of each client, by its id, (n,); empty where the runs are of earlier versions.
        sweep: The choice among the runs, where they are the settings of a sweep.
        metric: The metric of all runs.
    """

    folder: Path
    experiment: Mapping[str, Any]
    runs: tuple[Outcome, ...]
    jobs: JobCount | None = None
    data_warnings: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    sweep: SweepChoice | None = None
    metric: MetricInfo = ACCURACY

    def __repr__(self) -> str:
        """What was compared, in a line: the outcomes have many pages."""
        algorithms = list(dict.fromkeys(run.algorithm for run in self.runs))
        seeds = sorted({run.seed for run in self.runs})
        return f"Comparison(folder={str(self.folder)!r}, algorithms={algorithms!r}, seeds={seeds!r})"

    @cached_property
    def table(self) -> tuple[Row, ...]:
        """The measures of every algorithm over the seeds, in the order of their first runs."""
        attacked = any(run.summary is not None and honest_score(run.summary) is not None for run in self.runs)
        names = dict.fromkeys(run.algorithm for run in self.runs)
        return tuple(
            _row(name, [run for run in self.runs if run.algorithm == name], attacked=attacked) for name in names
        )

    @cached_property
    def differences(self) -> tuple[Difference, ...]:
        """The difference of every two algorithms that have a seed in common, in the order of the runs.

        All runs of a seed have the same clients, data and cohorts.
        """
        finished: dict[str, dict[int, Outcome]] = {}
        for run in self.runs:
            if run.summary is not None:
                finished.setdefault(run.algorithm, {})[run.seed] = run
        found = []
        for one, other in combinations(finished, 2):
            seeds = [seed for seed in finished[one] if seed in finished[other]]
            if seeds:
                pairs = [(finished[one][seed], finished[other][seed]) for seed in seeds]
                found.append(_difference(pairs, self.metric))
        return tuple(found)

    def plot(self, chart: str | None = None) -> Figure:
        """Draw one of the charts of the page of the comparison, as `fedstrata.plot`."""
        return plot(self, chart)

    @property
    def troubles(self) -> list[str]:
        """What failed or diverged in every round, in a line each."""
        failed = [f"{run.algorithm} with seed {run.seed} failed: {run.error}" for run in self.runs if run.error]
        return failed + [line for run in self.runs if _diverged(run) for line in run.warnings]

    @property
    def warnings(self) -> list[str]:
        """What else the reader of the table has to know about the data and about single runs, in a line each."""
        return [*self.data_warnings, *(line for run in self.runs if not _diverged(run) for line in run.warnings)]


def _diverged(run: Outcome) -> bool:
    """Whether a run finished and diverged in every round."""
    return run.summary is not None and diverged(run.summary)


def _row(name: str, runs: Sequence[Outcome], *, attacked: bool) -> Row:
    """The measures of one algorithm.

    Args:
        name: The name of the algorithm.
        runs: Its runs.
        attacked: Whether clients attack, so that the honest ones have a measure of their own.
    """
    summaries = [run.summary for run in runs if run.summary is not None]
    figures = {key: _over_seeds(value_of(summary, key) for summary in summaries) for key in COLUMNS}
    if attacked:
        figures["acc_honest"] = _over_seeds(map(honest_score, summaries))
    failed = tuple(run.seed for run in runs if run.summary is None)
    return Row(name, tuple(run.seed for run in runs), failed, figures)


def value_of(summary: Mapping[str, Any], key: str) -> float | None:
    """The value of a column of the table in a summary. Bytes and seconds are with those of the personal stage."""
    value: float | None
    if key in ("bytes", "seconds"):
        names = ("bytes_down", "bytes_up") if key == "bytes" else ("seconds",)
        value = sum(summary[name] + (stage_cost(summary, name) or 0) for name in names)
    else:
        value = summary[key]
    return value


def honest_score(summary: Mapping[str, Any]) -> float | None:
    """The mean metric of the clients that do not attack; None where none attack, or it is unknown."""
    found = summary.get("attack")
    value = found.get("acc_honest") if isinstance(found, Mapping) else None
    return float(value) if isinstance(value, int | float) else None


def _over_seeds(values: Iterable[float | None]) -> Statistic | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Statistic(mean(known), stdev(known) if len(known) > 1 else None, min(known), max(known))


def _difference(pairs: Sequence[tuple[Outcome, Outcome]], metric: MetricInfo) -> Difference:
    """The difference of two algorithms, with the one of the better mean first.

    Args:
        pairs: A run of each of them, for every seed that both have.
        metric: What they are compared by.
    """
    values = tuple(round(metric.gain(_score(one), _score(other)), _DECIMALS) for one, other in pairs)
    if mean(values) < 0:
        return _difference([(other, one) for one, other in pairs], metric)
    one, other = pairs[0]
    smallest = metric.smallest_gain(*(mean(map(_score, runs)) for runs in zip(*pairs, strict=True)))
    return Difference(one.algorithm, other.algorithm, tuple(run.seed for run, _ in pairs), values, smallest)


def _score(run: Outcome) -> float:
    """The mean metric over the clients of a finished run."""
    assert run.summary is not None
    return float(run.summary["acc_client"])


def write_comparison(comparison: Comparison) -> Comparison:
    """Write the files of a comparison into its folder, whose lock is held. The page is last and reads the others."""
    folder = comparison.folder
    jobs = comparison.jobs
    content = {
        "experiment": comparison.experiment,
        "metric": asdict(comparison.metric),
        "warnings": comparison.data_warnings,
        "clients": comparison.names,
        "jobs": jobs and {**asdict(jobs), "share": jobs.share},
        "runs": [{**asdict(run), "folder": os.path.relpath(run.folder, folder)} for run in comparison.runs],
        "table": [asdict(row) for row in comparison.table],
        "differences": [
            {**asdict(each), **{name: getattr(each, name) for name in _OF_A_DIFFERENCE}}
            for each in comparison.differences
        ],
    }
    if comparison.sweep is not None:
        content["sweep"] = asdict(comparison.sweep)
    root_folder(folder)
    replace_file(folder / "comparison.json", (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())
    replace_file(folder / "comparison.md", _markdown(comparison).encode())
    write_comparison_page(folder)
    return comparison


def _markdown(comparison: Comparison) -> str:
    """The comparison in Markdown."""
    keys = comparison.experiment
    seeds = dict.fromkeys(str(run.seed) for run in comparison.runs)
    metric = comparison.metric
    found = table_of(comparison.table, metric, row_kind(comparison.sweep))
    table = [tuple(found.titles), ("---",) * len(found.titles), *found.rows]
    # Those in which the runs of a sweep differ are not known.
    values = {
        "{} clients": keys["data"].get("clients"),
        "partition {}": keys.get("partition", {}).get("scheme"),
        "network {}": keys.get("model", {}).get("name"),
        "{} rounds": keys.get("rounds"),
    }
    conditions = [text.format(value) for text, value in values.items() if value is not None]
    paragraphs = [
        f"# Comparison on {keys['data']['name']}",
        f"{', '.join([*conditions, 'seeds '])}{', '.join(seeds)}.",
        "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |" for row in table),
        *([f"Grid: {comparison.sweep.grid_text}."] if comparison.sweep and comparison.sweep.grid else []),
        *([choice_text(comparison.sweep, metric)] if comparison.sweep else []),
        f"{capital(metric.name)}: {metric.meaning}; {metric.scale}." if metric.meaning else "",
        "Means over seeds, ± the standard deviation, or the range in brackets. Bytes are of tensors, both ways.",
    ]
    if comparison.jobs:
        paragraphs.append(
            f"Equal local jobs were done once: {comparison.jobs}. "
            "The time of a run is its own and its part of what was shared."
        )
    if comparison.differences:
        paragraphs.append(f"Differences in {metric.name} between runs of the same seed, ± their standard deviation:")
        paragraphs.append("\n".join(f"- {difference_text(each, metric)}" for each in comparison.differences))
    return "\n\n".join([*filter(None, paragraphs), *comparison.warnings, *comparison.troubles]) + "\n"
