"""What the folder of a comparison says, as frozen data."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import mean, stdev
from typing import Any

from fedstrata.report.records import Round


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


@dataclass(frozen=True)
class Difference:
    """How far one algorithm is above another in accuracy, paired by seed.

    Attributes:
        algorithm: the one whose mean is not below the other's.
        other: the other one.
        seeds: that both have.
        values: accuracy of the one less that of the other, for each of these seeds.
    """

    algorithm: str
    other: str
    seeds: tuple[int, ...]
    values: tuple[float, ...]

    @cached_property
    def mean(self) -> float:
        """Over the seeds."""
        return mean(self.values)

    @cached_property
    def spread(self) -> float | None:
        """Standard deviation (n - 1) of the differences; None for a single seed."""
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def above(self) -> int:
        """The number of seeds in which the one is above the other."""
        return sum(value > 0 for value in self.values)

    @property
    def larger(self) -> bool | None:
        """Whether the mean is larger than the spread; None where a spread cannot be known."""
        return None if self.spread is None else self.mean > self.spread


@dataclass(frozen=True)
class Course:
    """The rounds of one algorithm.

    Attributes:
        algorithm: what it is called.
        runs: the rounds of each of its runs, one run per seed.
    """

    algorithm: str
    runs: tuple[tuple[Round, ...], ...]

    @property
    def rounds(self) -> tuple[Round, ...]:
        """Those of the shortest run: so far all seeds are known."""
        return min(self.runs, key=len, default=())


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        algorithm: what it is called.
        seed: of the run.
        folder: where its records are, from the folder of the comparison.
        summary: None for a run that failed.
        error: why it failed, in one line.
    """

    algorithm: str
    seed: int
    folder: str
    summary: Mapping[str, Any] | None
    error: str


@dataclass(frozen=True)
class Compared:
    """The folder of a comparison.

    Attributes:
        experiment: the keys that all runs have in common.
        methods: the keys of each algorithm, as far as they are known.
        runs: in the order in which they were given.
        rows: one for each algorithm.
        differences: of all pairs of algorithms that have a seed in common.
        courses: of the algorithms whose rounds can be read.
        shared: how many local jobs were done once for several runs, in words; None when the runs were made apart.
        notes: what was left out and why, in sentences.
    """

    experiment: Mapping[str, Any]
    methods: Mapping[str, Mapping[str, Any]]
    runs: tuple[Run, ...]
    rows: tuple[Row, ...]
    differences: tuple[Difference, ...]
    courses: tuple[Course, ...]
    shared: str | None
    notes: tuple[str, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of all runs."""
        return tuple(dict.fromkeys(run.seed for run in self.runs))
