"""What the folder of a comparison holds: ``comparison.json``, and the rounds and keys of its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from fedstrata.base.errors import RecordError
from fedstrata.base.files import MOST_BYTES_OF_EXPERIMENT, parse_json, parse_toml, read_file, refuse_links
from fedstrata.objective.metric_info import SMALLEST_DIFFERENCE, MetricInfo
from fedstrata.records.schema import Count, Round, first_problem
from fedstrata.report.differences import LEVEL, Effect, verdict_of
from fedstrata.report.reader import read_rounds
from fedstrata.report.references import has_personal_models
from fedstrata.report.summary import warnings

SAME_TESTS = 0.999
"""The overlap of test samples from on which all seeds have the same ones."""


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
    """

    algorithm: str
    seeds: tuple[int, ...]
    failed: tuple[int, ...]
    figures: Mapping[str, Statistic | None]


@dataclass(frozen=True)
class Difference:
    """How much better the metric of one algorithm is than that of another, paired by seed.

    Attributes:
        algorithm: The one whose mean is not worse.
        other: The other one.
        seeds: The seeds that both have.
        values: By how much the one is better than the other, for each of these seeds; negative where it is worse.
        smallest: The smallest difference that can be seen where the metric is shown.
        effect: The mean with its interval and its test; None where nobody knows how much of it is chance.
        corrected: The p-value, corrected for all differences of the comparison; None without an effect.
        another_start: Whether both trained one model for all clients, so that they differ by their start alone.
    """

    algorithm: str
    other: str
    seeds: tuple[int, ...]
    values: tuple[float, ...]
    smallest: float = SMALLEST_DIFFERENCE
    effect: Effect | None = None
    corrected: float | None = None
    another_start: bool = False

    @property
    def mean(self) -> float:
        """The mean over the seeds."""
        return mean(self.values)

    @property
    def above(self) -> int:
        """The number of seeds in which the one is better than the other."""
        return sum(value > 0 for value in self.values)

    @property
    def clear(self) -> bool:
        """Whether one is better than the other: by more than chance, and by what a reader would see."""
        found = self.corrected is not None and self.corrected < LEVEL and self.mean >= self.smallest
        return found and not self.another_start


@dataclass(frozen=True)
class SiteDifference:
    """How much better one client is served by an algorithm than by a reference.

    Attributes:
        algorithm: The algorithm.
        reference: Training alone, or one model for all.
        effect: The difference with its interval and its test; None where nobody knows how much of it is chance.
        corrected: The p-value, corrected for all clients and algorithms of the table; None without an effect.
    """

    algorithm: str
    reference: str
    effect: Effect | None
    corrected: float | None

    @property
    def verdict(self) -> Literal["better", "worse", "unclear"]:
        """Whether the client is better or worse off, by more than chance."""
        return verdict_of(self.effect, self.corrected)


@dataclass(frozen=True)
class Site:
    """What a comparison says to one client.

    Attributes:
        client: The id of the client.
        values: Its metric by algorithm, the mean over the seeds; None where no run has it.
        differences: How much better each algorithm serves it than the references do.
        fewest: The least test samples of one of its classes with any seed; None where there are no classes.
    """

    client: int
    values: Mapping[str, float | None]
    differences: tuple[SiteDifference, ...]
    fewest: int | None

    @property
    def effects(self) -> list[Effect]:
        """The differences whose chance is known."""
        return [each.effect for each in self.differences if each.effect is not None]


@dataclass(frozen=True)
class Outcome:
    """What came of one run.

    Attributes:
        algorithm: The name of the algorithm in the table.
        seed: The seed of the run.
        folder: The folder of its records; in ``comparison.json`` relative to that of the comparison.
        summary: The content of its ``summary.json``; None for a run that failed.
        clients: The metric of each client at the end, on its own test samples; without those of unknown score.
        one_model: Whether it trained one model for all clients and nothing else: FedAvg, or an algorithm that looked
            for groups and never had more than one.
        error: Why it failed, in one line.
        traceback: Where it failed.
    """

    algorithm: str
    seed: int
    folder: Path
    summary: Mapping[str, Any] | None = None
    clients: Mapping[int, float] | None = None
    one_model: bool = False
    error: str = ""
    traceback: str = ""

    @property
    def warnings(self) -> list[str]:
        """What the reader of the table has to know about the run, in a line each; nothing of one that failed."""
        return [f"{self.algorithm} with seed {self.seed}: {line}" for line in warnings(self.summary or {})]


def attackers_of(summary: Mapping[str, Any] | None) -> tuple[int, ...]:
    """Return the clients that attack in a run, by its summary; none where they are not known."""
    attack = (summary or {}).get("attack")
    ids = attack.get("clients") if isinstance(attack, Mapping) else None
    return tuple(client for client in ids if isinstance(client, int)) if isinstance(ids, list) else ()


@dataclass(frozen=True)
class JobCount:
    """A number of local jobs: what a client does for one task.

    Attributes:
        asked: The jobs that all algorithms asked for.
        trained: The jobs that had to be done, equal ones once.
    """

    asked: Count
    trained: Count

    @property
    def share(self) -> float:
        """The share of the jobs that had to be done; 1 while none was asked for."""
        return self.trained / self.asked if self.asked else 1.0

    def __add__(self, other: JobCount) -> JobCount:
        """The jobs of both."""
        return JobCount(self.asked + other.asked, self.trained + other.trained)

    def __str__(self) -> str:
        """The numbers in words."""
        return f"trained {self.trained:,} of {self.asked:,} jobs; {100 * self.share:.0f} %"


@dataclass(frozen=True)
class SweepChoice:
    """Which setting of a sweep was chosen.

    Attributes:
        label: The label of the setting; None where none could be chosen.
        value: Its metric on validation data, the mean over the clients and over the seeds.
        why: Why it was chosen, or why none was, in a sentence or two.
        grid: The values of each key that the settings vary, as texts of TOML.
        settings: The value of each of these keys, by the label of the setting and the name of the key.
    """

    label: str | None
    value: float | None
    why: str
    grid: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def grid_text(self) -> str:
        """The grid in one line; empty where none is chosen from."""
        return "; ".join(f"{key} = {', '.join(values)}" for key, values in self.grid.items())


class Document(BaseModel):
    """``comparison.json``.

    Attributes:
        experiment: The keys that all runs have in common.
        jobs: The jobs that the runs shared; None when they shared none.
        runs: The runs in the order in which they were given.
        table: A row for each algorithm.
        differences: The differences of all pairs of algorithms that have a seed in common.
        metric: The metric of all runs.
        clients: The name of each client, by its id, (n,).
        warnings: What looks wrong with the data of the runs.
        same_clients: Whether all seeds have the same clients, whose samples each seed divides into training and test.
        overlap: The share of test units, such as samples or recordings, that two seeds have in common; None where there
            is one seed.
        folds: The number of folds of a cross-validation; None where each seed draws its test samples.
        sites: What it says to each client, the least gain first; empty where seeds have other clients, or where
            there is no reference.
        sweep: The choice among the runs, where they are the settings of a sweep.
    """

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    experiment: dict[str, Any]
    jobs: JobCount | None = None
    runs: tuple[Outcome, ...]
    table: tuple[Row, ...]
    differences: tuple[Difference, ...]
    metric: MetricInfo
    clients: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    same_clients: bool = False
    overlap: float | None = None
    folds: int | None = None
    sites: tuple[Site, ...] = ()
    sweep: SweepChoice | None = None

    @property
    def attackers(self) -> dict[int, tuple[int, ...]]:
        """The clients that attack, by seed; without seeds of which they are not known."""
        by_seed = dict[int, tuple[int, ...]]()
        for run in self.runs:
            if attackers := attackers_of(run.summary):
                by_seed.setdefault(run.seed, attackers)
        return by_seed

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of all runs."""
        return tuple(dict.fromkeys(run.seed for run in self.runs))

    def setting(self, table: str, key: str) -> str:
        """Return a key of the experiment as text; empty where it is not set."""
        keys = self.experiment.get(table)
        return str(keys.get(key, "")) if isinstance(keys, Mapping) else ""


_FILE = "comparison.json"


_MAX_BYTES = 256 * 2**20
"""A larger ``comparison.json`` is not read."""


RunRounds = tuple[Round, ...]
"""The rounds of one run."""


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
    document = read_document(folder)
    notes = list[str]()
    algorithms = _read_algorithms(folder, document, notes)
    runs = _read_runs(folder, document.runs, notes)
    return ComparisonFolder(document, algorithms, runs, tuple(notes))


def read_document(folder: Path) -> Document:
    """Read ``comparison.json`` in the folder of a comparison.

    Raises:
        RecordError: When there is none, or one of another version.
    """
    path = folder / _FILE
    damaged = f"{path} is damaged or of another version"
    try:
        refuse_links(folder, [_FILE])
        raw = read_file(path, _MAX_BYTES)
        parse_json(raw)  # refuses what no JSON reader accepts, such as infinity
        return Document.model_validate_json(raw)
    except FileNotFoundError:
        raise RecordError(f"{folder} holds no {_FILE}; name the folder of a finished `fedstrata compare`") from None
    except ValidationError as error:
        raise RecordError(f"{damaged} ({first_problem(error)}); compare the runs again") from None
    except ValueError as error:
        raise RecordError(f"{damaged} ({error}); compare the runs again") from None


def _read_algorithms(folder: Path, document: Document, notes: list[str]) -> dict[str, Mapping[str, Any]]:
    """Return the table of each algorithm, from the experiment of its first run that can be read.

    It has the algorithm's own name where its runs are called otherwise, and personal models that not all runs have.
    """
    found: dict[str, Mapping[str, Any]] = {}
    runs = document.runs
    for run in runs:
        try:
            settings = parse_toml(read_file(folder / run.folder / "experiment.toml", MOST_BYTES_OF_EXPERIMENT))
            keys = dict(settings["algorithm"])
            if "personal" not in document.experiment and has_personal_models(settings):
                keys["personal"] = settings["personal"]
            elif keys.get("name") == run.algorithm:
                del keys["name"]
            found.setdefault(run.algorithm, keys)
        except (OSError, ValueError, KeyError, AttributeError, RecordError):
            continue
    for name in dict.fromkeys(run.algorithm for run in runs if run.algorithm not in found):
        notes.append(f"No experiment.toml of {name} can be read, so this page is without its keys.")
    return found


def _read_runs(folder: Path, runs: Sequence[Outcome], notes: list[str]) -> dict[str, list[RunRounds]]:
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
        except RecordError as error:
            # The page is the same, however the folder was named.
            notes.append(f"The charts are without {name}: {str(error).replace(str(place), str(run.folder))}")
            continue
        notes += [f"{name}: {note}" for note in own_notes]
        found.setdefault(run.algorithm, []).append(rounds)
    return found
