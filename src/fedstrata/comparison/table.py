"""What a comparison says: for every algorithm, its measures over the seeds."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from fedstrata.records import worse_off
from fedstrata.report.words import DASH, duration, size

REFERENCE = "fedavg"
"""The algorithm with which clients may have been better off."""


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
    """

    algorithm: str
    seed: int
    folder: Path
    summary: Mapping[str, Any] | None = None
    clients: Mapping[int, float] | None = None
    error: str = ""
    traceback: str = ""


@dataclass(frozen=True)
class Failure:
    """Why a run failed, in words: the exception would keep alive whatever its frames hold, the data and the workers.

    Attributes:
        error: in one line.
        traceback: where.
    """

    error: str
    traceback: str

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """What an exception says."""
        line = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return cls(line, "".join(traceback.format_exception(error)))


@dataclass(frozen=True)
class Figure:
    """A number over seeds.

    Attributes:
        mean: over the seeds that have it.
        spread: standard deviation (n - 1); None for a single seed.
        least: of all.
        most: of all.
    """

    mean: float
    spread: float | None
    least: float
    most: float


@dataclass(frozen=True)
class Row:
    """One algorithm.

    Attributes:
        algorithm: what it is called.
        seeds: that it was run with.
        failed: those of them with which it failed.
        figures: by the name of the measure; None where no seed has it.
        worse_off: clients that were better off with FedAvg and the same seed; None where that is not known.
        clients: that were compared so.
    """

    algorithm: str
    seeds: tuple[int, ...]
    failed: tuple[int, ...]
    figures: Mapping[str, Figure | None]
    worse_off: int | None
    clients: int


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
        figures={key: _figure(map(read, summaries)) for key, (_, read, _) in MEASURES.items()},
        worse_off=sum(worse_off(own, others) for own, others in pairs) if pairs else None,
        clients=sum(len(own) for own, _ in pairs),
    )


def _figure(values: Iterable[float | None]) -> Figure | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Figure(mean(known), stdev(known) if len(known) > 1 else None, min(known), max(known))


def _share(figure: Figure) -> str:
    """A fraction with its standard deviation."""
    return f"{figure.mean:.3f}" + ("" if figure.spread is None else f" ± {figure.spread:.3f}")


def _count(figure: Figure) -> str:
    """A number of things with its range."""
    if figure.least == figure.most:
        return f"{figure.mean:.0f}"
    return f"{figure.mean:.1f} ({figure.least:.0f} to {figure.most:.0f})"


MEASURES: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], float | None], Callable[[Figure], str]]] = {
    "acc_client": ("accuracy", lambda summary: summary["acc_client"], _share),
    "acc_worst": ("worst client", lambda summary: summary["acc_worst"], _share),
    "clusters": ("clusters", lambda summary: summary["clusters"], _count),
    "ari": ("ARI", lambda summary: summary["ari"], _share),
    "rounds_to_partition": ("partition in round", lambda summary: summary["rounds_to_partition"], _count),
    "bytes": ("bytes", lambda summary: summary["bytes_down"] + summary["bytes_up"], lambda figure: size(figure.mean)),
    "seconds": ("time", lambda summary: summary["seconds"], lambda figure: duration(figure.mean)),
}
"""Name -> title, how it is read from a summary, and how it is shown."""

TITLES = ("algorithm", "seeds", *(title for title, _, _ in MEASURES.values()), "worse off than with fedavg")


def cells(row: Row) -> tuple[str, ...]:
    """A row as it is shown, under `TITLES`."""
    finished = len(row.seeds) - len(row.failed)
    seeds = f"{finished}" + (f", {len(row.failed)} failed" if row.failed else "")
    shown = ((row.figures[key], show) for key, (_, _, show) in MEASURES.items())
    losers = DASH if row.worse_off is None else f"{row.worse_off} of {row.clients}"
    return row.algorithm, seeds, *(DASH if figure is None else show(figure) for figure, show in shown), losers


def markdown(table: Sequence[Row]) -> str:
    """The table in Markdown."""
    lines = [TITLES, ("---",) * len(TITLES), *map(cells, table)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
