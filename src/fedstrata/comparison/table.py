"""What a comparison says: for every algorithm, its measures over the seeds."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from fedstrata.records import count_lower
from fedstrata.report.comparison import COLUMNS, TITLES, Row, Statistic, cells
from fedstrata.resources import resource_error

REFERENCE = "fedavg"
"""The algorithm with which clients may have been better off."""


class Who(NamedTuple):
    """Which run it is.

    Attributes:
        seed: of the run; runs of one seed are on the same federation.
        algorithm: by name.
    """

    seed: int
    algorithm: str


@dataclass(frozen=True)
class Outcome:
    """What came of one run.

    Attributes:
        algorithm: what it is called in the table.
        seed: of the run.
        folder: where its records are.
        summary: as in ``summary.json``; None for a run that failed.
        clients: accuracy of each at the end, on its own test samples.
        error: why it failed, in one line.
        traceback: where it failed.
        resumable: Whether the machine failed and not the run, which can be resumed once the cause is gone.
    """

    algorithm: str
    seed: int
    folder: Path
    summary: Mapping[str, Any] | None = None
    clients: Mapping[int, float] | None = None
    error: str = ""
    traceback: str = ""
    resumable: bool = False


@dataclass(frozen=True)
class Failure:
    """Why a run failed, in words: the exception would keep alive whatever its frames hold, the data and the workers.

    Attributes:
        error: in one line.
        traceback: where.
        resumable: Whether the machine failed and not the run.
    """

    error: str
    traceback: str
    resumable: bool

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """What an exception says; the machine's failures in the words of `fedstrata.resources`."""
        known = resource_error(error)
        told = known or error
        line = f"{type(told).__name__}: {' '.join(str(told).split())}"
        return cls(line, "".join(traceback.format_exception(error)), resumable=known is not None)


def rows(outcomes: Sequence[Outcome]) -> tuple[Row, ...]:
    """A row for each algorithm, in the order of their first runs."""
    reference = {outcome.seed: outcome.clients for outcome in outcomes if outcome.algorithm == REFERENCE}
    return tuple(
        _row(name, [outcome for outcome in outcomes if outcome.algorithm == name], reference)
        for name in dict.fromkeys(outcome.algorithm for outcome in outcomes)
    )


def _row(name: str, runs: Sequence[Outcome], reference: Mapping[int, Mapping[int, float] | None]) -> Row:
    summaries = [run.summary for run in runs if run.summary is not None]
    pairs = [
        (run.clients, others)
        for run in runs
        if name != REFERENCE and run.clients is not None and (others := reference.get(run.seed)) is not None
    ]
    return Row(
        algorithm=name,
        seeds=tuple(run.seed for run in runs),
        failed=tuple(run.seed for run in runs if run.summary is None),
        figures={key: _figure(measured(summary, key) for summary in summaries) for key in COLUMNS},
        lower_than_fedavg=sum(count_lower(own, others) for own, others in pairs) if pairs else None,
        clients=sum(len(own) for own, _ in pairs),
    )


def measured(summary: Mapping[str, Any], key: str) -> float | None:
    """What a summary says of a column of the table."""
    value: float | None = summary["bytes_down"] + summary["bytes_up"] if key == "bytes" else summary[key]
    return value


def _figure(values: Iterable[float | None]) -> Statistic | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Statistic(mean(known), stdev(known) if len(known) > 1 else None, min(known), max(known))


def markdown(table: Sequence[Row]) -> str:
    """The table in Markdown."""
    lines = [TITLES, ("---",) * len(TITLES), *map(cells, table)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
