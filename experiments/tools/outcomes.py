"""What the tables need of the results: runs by variant, and cells of numbers over their seeds.

A result is one run of `study.py`. A number that has not been measured yet is said to be so, and never guessed.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from scipy.stats import t as student_t

RESULTS = Path(__file__).parents[1] / "results"
MISSING = "not measured yet"
Result = dict[str, Any]


def every(experiment: str) -> list[Result]:
    """All results of an experiment, by seed; none while it has not been run."""
    path = RESULTS / f"{experiment}.json"
    return list(_by_seed(path.read_text())) if path.exists() else []


@lru_cache(maxsize=8)
def _by_seed(text: str) -> list[Result]:
    """Results as a file has them, by seed. A table asks for those of one file again and again."""
    known: list[Result] = json.loads(text)
    return sorted(known, key=lambda result: int(result["seed"]))


def results(experiment: str, variant: str) -> list[Result]:
    """The results of one variant of an experiment, by seed; none while it has not been run."""
    return [result for result in every(experiment) if result["variant"] == variant]


def beside(experiment: str, variant: str, other: str) -> list[Result]:
    """The results of another algorithm where data and rounds were changed as for a variant."""
    _, *changes = variant.split("+")
    conditions = [change for change in changes if not change.startswith("algorithm.")]
    return results(experiment, "+".join([other, *conditions]))


def average(runs: Sequence[Result], key: str) -> str:
    """A mean over seeds."""
    values = [run[key] for run in runs if run[key] is not None]
    return f"{mean(values):.3f}" if values else MISSING


def spread(runs: Sequence[Result], key: str) -> str:
    """A mean over seeds with its standard deviation; one seed has none."""
    values = [run[key] for run in runs if run[key] is not None]
    if not values:
        return MISSING
    return f"{mean(values):.3f} ± {stdev(values):.3f}" if len(values) > 1 else f"{values[0]:.3f}"


@dataclass(frozen=True)
class Difference:
    """The mean of the differences between two methods on the same seeds.

    Attributes:
        mean: Over the seeds.
        low: The lower end of its 95 % t-interval; minus infinity for one seed.
        high: The upper end; infinity for one seed.
        seeds: How many there were.
    """

    mean: float
    low: float
    high: float
    seeds: int

    def __str__(self) -> str:
        """With sign and interval, for instance ``+0.020 (-0.001 to +0.041)``."""
        if self.seeds < 2:
            return f"{self.mean:+.3f} (one seed)"
        return f"{self.mean:+.3f} ({self.low:+.3f} to {self.high:+.3f})"

    @property
    def direction(self) -> str:
        """Whether the interval lies on one side of zero."""
        if self.low > 0:
            return "higher"
        return "lower" if self.high < 0 else "not resolved"


def paired(runs: Sequence[Result], others: Sequence[Result], key: str = "acc_client") -> Difference | None:
    """What some runs have more than others of the same seeds; None where they share no seed."""
    there = {run["seed"]: run[key] for run in others if run[key] is not None}
    gaps = [run[key] - there[run["seed"]] for run in runs if run["seed"] in there and run[key] is not None]
    if not gaps:
        return None
    if len(gaps) == 1:
        return Difference(gaps[0], -math.inf, math.inf, 1)
    standard_error = stdev(gaps) / math.sqrt(len(gaps))
    half = float(student_t.ppf(0.975, df=len(gaps) - 1)) * standard_error
    return Difference(mean(gaps), mean(gaps) - half, mean(gaps) + half, len(gaps))


def difference(runs: Sequence[Result], others: Sequence[Result], key: str = "acc_client") -> str:
    """The paired difference as a cell."""
    found = paired(runs, others, key)
    return MISSING if found is None else str(found)


def acted(runs: Sequence[Result]) -> str:
    """In how many runs a clustered method did anything else than FedAvg."""
    return f"{sum(_acted(run) for run in runs)} of {len(runs)}" if runs else MISSING


def _acted(run: Result) -> bool:
    """Whether there was more than one cluster after some round, or FedTSDP shared fewer layers than there are."""
    shared = [value for value in run["curves"].get("shared_layers", []) if value is not None]
    # The number of shared layers starts at all of them, and every trigger takes 2 % away.
    fewer = bool(shared) and min(shared) < math.ceil(max(shared))
    return max(run["curves"]["clusters"]) > 1 or fewer


def listed(runs: Sequence[Result], read: Callable[[Result], Any]) -> str:
    """One value per seed; a dash where there is none."""
    return ", ".join(_shown(read(run)) for run in runs) or MISSING


def counted(values: Iterable[int]) -> str:
    """How often each number occurs, the smallest first: ``1 in 9, 3 in 1``; a number alone if there is no other."""
    times = Counter(values)
    if not times:
        return MISSING
    return ", ".join(f"{value} in {times[value]}" for value in sorted(times)) if len(times) > 1 else str(min(times))


def lower_than(runs: Sequence[Result], others: Sequence[Result]) -> str:
    """The number of clients whose accuracy is lower than in the other runs of the same seeds, of those compared."""
    found = of = 0
    there = {run["seed"]: run["clients"] for run in others if "clients" in run}
    for run in runs:
        if run["seed"] in there and "clients" in run:
            reference = _by_id(there[run["seed"]])
            found += sum(value < reference[client] for client, value in _by_id(run["clients"]).items())
            of += len(reference)
    return f"{found} of {of}" if of else MISSING


def table(head: str, rows: Iterable[tuple[str, ...]]) -> str:
    """A table in Markdown; a cell may hold several columns already."""
    columns = head.count("|") + 1
    lines = [f"| {head} |", "|" + " --- |" * columns, *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines) + "\n"


def _by_id(clients: dict[str, float]) -> dict[int, float]:
    return {int(client): accuracy for client, accuracy in clients.items()}


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
