"""What an exhibit is: the runs that it needs, what it measures in them, and how the paper's claim is judged.

An exhibit is a table, a figure or a headline number of a paper. To add one, append an `Exhibit` to the list in the
file of its paper. The paper's claim is written as statements that are true or false of the measured quantities, so that
a verdict follows from the quantities alone.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from typing import Any

from .run_folder import RunFolder

HERE = Path(__file__).parent

Quantities = Mapping[str, float | None]
"""What one seed came to, by the name of the quantity; None where there is no such number, such as a round without a
split."""

HOLDS = "holds"
IN_PART = "holds in part"
DOES_NOT_HOLD = "does not hold here"
NOT_COMPARABLE = "not comparable yet"
CANNOT_BE_RUN = "cannot be run"
NOT_RUN = "not run yet"


@dataclass(frozen=True)
class Setting:
    """One run of an exhibit, up to its seed: an experiment file of this folder and what differs from it.

    Attributes:
        experiment: The name of the file, without its ending.
        sets: The differences, as ``fedstrata run --set`` takes them.
    """

    experiment: str
    sets: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """The experiment file."""
        return HERE / f"{self.experiment}.toml"

    @property
    def name(self) -> str:
        """A name for the folder of its runs. It differs as soon as the file or the differences do."""
        keys = [tomllib.loads(self.path.read_text()), *self.sets]
        digest = hashlib.sha256(json.dumps(keys, sort_keys=True).encode()).hexdigest()[:8]
        # Of "algorithm.epsilon=0.5" the words "epsilon_0.5".
        pairs = (text.split("=", 1) for text in self.sets)
        words = [re.sub(r"[^\w.]+", "_", f"{key.rsplit('.', 1)[-1]} {value}").strip("_") for key, value in pairs]
        return "-".join([self.experiment, *words])[:100] + f"-{digest}"

    def but(self, *sets: str) -> Setting:
        """This setting with further differences."""
        return Setting(self.experiment, (*self.sets, *sets))


@dataclass(frozen=True)
class Measured:
    """The quantities of an exhibit over its seeds.

    Attributes:
        seeds: The seeds, ascending.
        values: Of each quantity, one value for each seed.
    """

    seeds: tuple[int, ...]
    values: Mapping[str, tuple[float | None, ...]]

    @classmethod
    def of(cls, by_seed: Mapping[int, Quantities]) -> Measured:
        """The quantities of several seeds; one that a seed lacks is None."""
        seeds = tuple(sorted(by_seed))
        names = dict.fromkeys(name for seed in seeds for name in by_seed[seed])
        return cls(seeds, {name: tuple(by_seed[seed].get(name) for seed in seeds) for name in names})

    def mean(self, name: str) -> float | None:
        """The mean over the seeds; None where a seed has no number."""
        known = self._known(name)
        return None if known is None else sum(known) / len(known)

    def spread(self, name: str) -> float | None:
        """The standard deviation over the seeds; None where a seed has no number, or there is one seed."""
        known = self._known(name)
        if known is None or len(known) < 2:
            return None
        mean = sum(known) / len(known)
        return sqrt(sum((value - mean) ** 2 for value in known) / (len(known) - 1))

    def below(self, name: str, bound: float) -> bool:
        """Whether a quantity is below a bound in the mean, and for two of three seeds."""
        return self._mostly([name], lambda value: value < bound)

    def above(self, name: str, bound: float) -> bool:
        """Whether a quantity is above a bound in the mean, and for two of three seeds."""
        return self._mostly([name], lambda value: value > bound)

    def less(self, one: str, other: str, by: float = 0.0) -> bool:
        """Whether one quantity is lower than another by more than `by`, in the mean and for two of three seeds.

        A negative `by` allows it to be higher by less than that. A seed without one of the numbers counts against it.
        """
        return self._mostly([one, other], lambda value, reference: value < reference - by)

    def earlier(self, one: str, other: str) -> bool:
        """Whether one round comes before another, for two of three seeds; a round that never comes is after all."""
        nothing = (None,) * len(self.seeds)
        seeds = zip(self.values.get(one, nothing), self.values.get(other, nothing), strict=True)
        sooner = [first is not None and (second is None or first < second) for first, second in seeds]
        return bool(sooner) and 3 * sum(sooner) >= 2 * len(sooner)

    def resolved(self, name: str) -> bool:
        """Whether a quantity is above 0 by more than its standard error over the seeds, of which one is not enough."""
        mean, spread = self.mean(name), self.spread(name)
        return mean is not None and spread is not None and mean > spread / sqrt(len(self.seeds))

    def _mostly(self, names: Sequence[str], holds: Callable[..., bool]) -> bool:
        """Whether something holds of the means, and for two thirds of the seeds at least."""
        means = [self.mean(name) for name in names]
        if None in means or not self.seeds:
            return False
        seeds = zip(*(self.values[name] for name in names), strict=True)
        return holds(*means) and 3 * sum(holds(*row) for row in seeds) >= 2 * len(self.seeds)

    def _known(self, name: str) -> list[float] | None:
        values = self.values.get(name, ())
        known = [value for value in values if value is not None]
        return known if known and len(known) == len(values) else None


@dataclass(frozen=True)
class Verdict:
    """What became of a claim.

    Attributes:
        kind: One of the constants above.
        why: One sentence.
        conditions: Whether each condition of the claim holds.
    """

    kind: str
    why: str
    conditions: Mapping[str, bool] = field(default_factory=dict)


def no_obstacle(measured: Measured) -> str:
    """Nothing stands in the way of a comparison."""
    return ""


@dataclass(frozen=True)
class Exhibit:
    """An exhibit of a paper.

    Attributes:
        id: Its name: the letter of the paper, and the figure (F), table (T) or headline (H).
        paper: The algorithm that the paper is about.
        claim: What the paper says, with its figures.
        settings: The runs, by a name that `measure` knows them by; none where a formula or a clock is enough.
        measure: From the finished runs of one seed to the quantities.
        conditions: From the quantities to the conditions of the claim, each with whether it holds.
        published: The paper's own figures, by the names of the quantities.
        reduction: What is smaller than in the paper; empty where nothing is.
        obstacle: Says why the quantities cannot be held against the paper; empty where they can.
        remark: What explains the outcome, found out by looking at the runs.
        adapted: What was fitted by looking at outcomes, as a condition that fails: such a claim holds in part at best.
        waits: Why it cannot be run yet, or at all. It has no settings then.
        impossible: Whether it cannot be run here at all, such as on data that are not public or not on this machine.
        hours: What it takes for three seeds, on two cores.
        shown: The quantities that the page shows; all if empty.
    """

    id: str
    paper: str
    claim: str
    settings: Mapping[str, Setting] = field(default_factory=dict)
    measure: Callable[[Mapping[str, RunFolder]], Quantities] | None = None
    conditions: Callable[[Measured], Mapping[str, bool]] | None = None
    published: Quantities = field(default_factory=dict)
    reduction: str = ""
    obstacle: Callable[[Measured], str] = no_obstacle
    remark: str = ""
    adapted: str = ""
    waits: str = ""
    impossible: bool = False
    hours: float = 0.0
    shown: Sequence[str] = ()

    def verdict(self, measured: Measured) -> Verdict:
        """What became of the claim, from the quantities."""
        if self.conditions is None:
            return Verdict(CANNOT_BE_RUN if self.impossible else NOT_RUN, self.waits)
        conditions = dict(self.conditions(measured))
        if self.adapted:
            conditions[self.adapted] = False
        return judged(conditions, self.obstacle(measured))

    def experiments(self) -> list[str]:
        """The names of its experiment files."""
        return sorted({setting.experiment for setting in self.settings.values()})


def judged(conditions: Mapping[str, bool], obstacle: str = "") -> Verdict:
    """The verdict on a claim, from its conditions; an obstacle leaves it open."""
    if obstacle:
        return Verdict(NOT_COMPARABLE, obstacle, conditions)
    failed = [condition for condition, holds in conditions.items() if not holds]
    if not failed:
        return Verdict(
            HOLDS,
            f"So it is here: {'; '.join(conditions)}." if len(conditions) < 3 else "Every condition of the claim does.",
            conditions,
        )
    why = f"Not so here: {'; '.join(failed)}."
    return Verdict(IN_PART if len(failed) < len(conditions) else DOES_NOT_HOLD, why, conditions)


def describe(setting: Setting) -> dict[str, Any]:
    """A setting as a result names it."""
    return {"experiment": f"{setting.experiment}.toml", "sets": list(setting.sets)}
