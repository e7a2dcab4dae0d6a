"""What came of a comparison: its runs, the table over seeds, the paired differences, and its files."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedstrata.base.errors import InputError
from fedstrata.base.files import replace_file, root_folder
from fedstrata.base.resources import resource_error
from fedstrata.objective.metric_info import MetricInfo
from fedstrata.records.measures import diverged
from fedstrata.report.comparison.folder import (
    Difference,
    Document,
    JobCount,
    Outcome,
    Row,
    Site,
    SweepChoice,
    read_document,
)
from fedstrata.report.comparison.page import write_comparison_page
from fedstrata.report.comparison.words import (
    choice_text,
    difference_text,
    row_kind,
    scope_text,
    site_answers,
    site_tables,
    table_of,
)
from fedstrata.report.words import capital
from fedstrata.results.plot import plot

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_logger = logging.getLogger(__name__)


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
    """Runs of several algorithms, or of the settings of a sweep, on the same federations.

    Attributes:
        folder: The folder with ``comparison.json``, ``comparison.md`` and ``comparison.html``.
        document: What ``comparison.json`` holds.
    """

    folder: Path
    document: Document

    def __repr__(self) -> str:
        """What was compared, in a line: the outcomes have many pages."""
        algorithms = list(dict.fromkeys(run.algorithm for run in self.runs))
        seeds = sorted({run.seed for run in self.runs})
        return f"Comparison(folder={str(self.folder)!r}, algorithms={algorithms!r}, seeds={seeds!r})"

    @property
    def runs(self) -> tuple[Outcome, ...]:
        """The outcome of each run, also of those that failed."""
        return tuple(replace(run, folder=self.folder / run.folder) for run in self.document.runs)

    @property
    def table(self) -> tuple[Row, ...]:
        """The measures of every algorithm over the seeds, in the order of their first runs."""
        return self.document.table

    @property
    def differences(self) -> tuple[Difference, ...]:
        """The difference of every two algorithms that have a seed in common, in the order of the runs."""
        return self.document.differences

    @property
    def sites(self) -> tuple[Site, ...]:
        """What it says to each client, the least gain first."""
        return self.document.sites

    @property
    def jobs(self) -> JobCount | None:
        """The number of shared jobs since the comparison was begun or resumed; None where the runs shared none."""
        return self.document.jobs

    @property
    def choice(self) -> SweepChoice | None:
        """Which setting of a sweep was chosen, and why; None of a comparison of algorithms."""
        return self.document.sweep

    @property
    def best(self) -> Mapping[str, Any] | None:
        """The keys and values of the chosen setting of a sweep; None where nothing could be chosen."""
        choice = self.choice
        return choice.settings[choice.label] if choice is not None and choice.label is not None else None

    @property
    def metric(self) -> MetricInfo:
        """The metric of all runs."""
        return self.document.metric

    def plot(self, chart: str | None = None) -> Figure:
        """Draw one of the charts of the page of the comparison, as `fedstrata.plot`."""
        return plot(self, chart)

    def to_frame(self) -> Any:
        """The table as a data frame of pandas: a row for each algorithm, a column for each number.

        A measure such as ``acc_client`` has its mean over the seeds under its name, and the standard deviation under
        ``acc_client_spread``.

        Raises:
            InputError: When there is no pandas.
        """
        rows = {row.algorithm: {"seeds": len(row.seeds) - len(row.failed), **_numbers(row)} for row in self.table}
        return _pandas().DataFrame.from_dict(rows, orient="index")

    def to_latex(self) -> str:
        """The table of the page in LaTeX, for the package booktabs.

        Raises:
            InputError: When there is no pandas.
        """
        found = table_of(self.table, self.metric, row_kind(self.document.sweep))
        text: str = _pandas().DataFrame(found.rows, columns=list(found.titles)).to_latex(index=False, escape=True)
        return text

    @property
    def troubles(self) -> list[str]:
        """What failed or diverged in every round, in a line each."""
        failed = [f"{run.algorithm} with seed {run.seed} failed: {run.error}" for run in self.runs if run.error]
        return failed + [line for run in self.runs if _diverged(run) for line in run.warnings]

    @property
    def warnings(self) -> list[str]:
        """What else the reader of the table has to know about the data and about single runs, in a line each."""
        of_runs = (line for run in self.runs if not _diverged(run) for line in run.warnings)
        return [*self.document.warnings, *of_runs]


def _numbers(row: Row) -> dict[str, float | None]:
    """The numbers of a row, by the names of its columns."""
    known = {name: number for name, number in row.figures.items() if number is not None}
    means = {name: number.mean for name, number in known.items()}
    return means | {f"{name}_spread": number.spread for name, number in known.items()}


def _pandas() -> Any:
    try:
        import pandas  # type: ignore[import-untyped]
    except ImportError:
        raise InputError("to_frame, to_latex: expected pandas, found none; pip install pandas") from None
    return pandas


def _diverged(run: Outcome) -> bool:
    """Whether a run finished and diverged in every round."""
    return run.summary is not None and diverged(run.summary)


def load_comparison(folder: Path | str) -> Comparison:
    """Read a finished comparison or sweep from its folder.

    Raises:
        RecordError: When it is no such folder, or of another version.
    """
    return Comparison(Path(folder), read_document(Path(folder)))


def write_comparison(comparison: Comparison) -> Comparison:
    """Write the files of a comparison into its folder, whose lock is held. The page is last and reads the others."""
    folder = root_folder(comparison.folder)
    replace_file(folder / "comparison.json", (comparison.document.model_dump_json(indent=1) + "\n").encode())
    replace_file(folder / "comparison.md", _markdown(comparison).encode())
    write_comparison_page(folder)
    return comparison


def _markdown(comparison: Comparison) -> str:
    """The comparison in Markdown."""
    document = comparison.document
    keys = document.experiment
    metric = document.metric
    found = table_of(document.table, metric, row_kind(document.sweep))
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
        f"{', '.join([*conditions, 'seeds '])}{', '.join(map(str, document.seeds))}.",
        *(f"{question} {' '.join(told)}" for question, told in site_answers(document).items()),
        _table(found.titles, found.rows),
        *([f"Grid: {document.sweep.grid_text}."] if document.sweep and document.sweep.grid else []),
        *([choice_text(document.sweep, metric)] if document.sweep else []),
        f"{capital(metric.name)}: {metric.meaning}; {metric.scale}." if metric.meaning else "",
        "Means over seeds, ± the standard deviation, or the range in brackets. Bytes are of tensors, both ways.",
    ]
    if document.jobs:
        paragraphs.append(
            f"Equal local jobs were done once: {document.jobs}. "
            "The time of a run is its own and its part of what was shared."
        )
    if document.differences:
        paragraphs.append(scope_text(document))
        paragraphs.append("\n".join(f"- {difference_text(each, document)}" for each in document.differences))
    for reference, rows in site_tables(document).items():
        paragraphs.append(f"Clients, each beside {reference}:")
        titles = ["client", *(row.algorithm for row in document.table)]
        paragraphs.append(_table(titles, [(name, *map(str, cells)) for name, cells in rows]))
    return "\n\n".join([*filter(None, paragraphs), *comparison.warnings, *comparison.troubles]) + "\n"


def _table(titles: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    head = list(titles)
    every = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |" for row in every)
