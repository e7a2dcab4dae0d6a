"""How often a comparison over seeds says "A is better than B": where the methods are equally good, and where not.

    FEDSTRATA_DATA=DATA python -m experiments.trust.null_comparisons --comparisons 400

Adds to ``experiments/results/null_comparisons.json`` the comparisons that it does not hold yet, so it can be stopped
and called again, and prints the table of all that it holds. With ``--comparisons 0`` it only prints the table.

Of each comparison it keeps the mean accuracy of the clients for every method and seed, and the overlap of the test rows
of its seeds. Whether the sentence appears is never kept. `judged` says it when the table is made.

Studies:

- ``alike_resplit``: Each comparison draws a new table of two overlapping normal classes, with 60 rows for each of six
  clients. Every seed splits the same rows anew. The methods are FedAvg inside two groups of clients. Each method has
  groups of its own, drawn at random with the table and the same for all seeds. So neither is better in expectation.
  But the rows of one table favour one of them a little, and the seeds repeat this.
- ``natural``: FedAvg and local training on the heart disease data of two hospitals, Cleveland and Hungary, of which
  neither gains from the other. Every seed splits the same patients anew. The true difference is not known, so the table
  has the mean over all comparisons and counts both directions.
- ``another_start``: FedAvg against itself with another first model and other batches. Every seed draws other digits for
  the clients. The difference is 0 in expectation.

In the first and the last, the same comparisons have a third method that is truly worse: each client trains on fewer of
its rows. They say how much power goes with the error. The true difference is the mean over all comparisons and seeds.

The splits, the algorithms and the engines are those of the library. Nothing is recorded, so that a run takes a fraction
of a second.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import combinations
from pathlib import Path
from statistics import mean
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from pydantic.dataclasses import dataclass as validated_dataclass

from experiments import heart
from experiments.heart_tables import wilson
from experiments.strata.federations import RESULTS, gather, read, runs_of
from experiments.tools import outcomes
from experiments.tools.outcomes import MISSING, table
from fedstrata import core
from fedstrata.algorithms.baselines import Local
from fedstrata.algorithms.keys import STRICT
from fedstrata.build.build import build_run
from fedstrata.build.run_setup import RunSetup
from fedstrata.config import load_experiment
from fedstrata.data.memory import Clients, keep
from fedstrata.engine.device import one_thread
from fedstrata.engine.shared_work import LocalStores
from fedstrata.play.rounds import Rules, answer_plans, play_rounds, timed_reply
from fedstrata.report.comparison.folder import Difference
from fedstrata.report.differences import over_seeds

PATH = RESULTS / "null_comparisons.json"

DECIMALS = 6
"""The decimals of what is kept. One more right sample of one client changes an accuracy by far more."""


def judged(values: Sequence[float], overlap: float) -> bool:
    """Whether a comparison says that one method is better than the other, whichever it is.

    Args:
        values: The difference of the two methods for each seed.
        overlap: The share of test rows that two seeds have in common.
    """
    # The method whose mean is not worse comes first.
    sign = -1 if mean(values) < 0 else 1
    effect = over_seeds(values, overlap)
    signed = tuple(sign * value for value in values)
    # There is one comparison, so that its p-value is not corrected for others.
    corrected = None if effect is None else effect.p
    return Difference("one", "other", tuple(range(len(values))), signed, effect=effect, corrected=corrected).clear


# The methods.


@validated_dataclass(frozen=True, config=STRICT)
class GivenGroups(core.Algorithm[core.State]):
    """FedAvg inside groups that are given.

    Attributes:
        groups: The group of each client, (n,), in 0..k-1.
        rows: The number of training rows that each client uses; 0 is all.
        start: The number of the first model and of the random numbers of the batches.
    """

    source: ClassVar[str] = "baseline: groups that are given"

    groups: tuple[int, ...]
    rows: int = 0
    start: int = 0

    def init(self, problem: core.Problem) -> core.State:
        """A cluster for each group, all from the same first model."""
        own = replace(problem, fresh=lambda number: problem.fresh(number + self.start))
        return core.fixed_clusters(own, torch.tensor(self.groups), max(self.groups) + 1, "groups_given")

    def plan(self, problem: core.Problem, state: core.State, cohort: torch.Tensor) -> core.Plan:
        """Everyone trains the model of its group on the rows that it may use."""
        plan = core.fedavg_plan(replace(problem, seed=problem.seed + self.start), state, cohort)
        if not self.rows:
            return plan
        task = replace(plan.tasks[core.TRAIN], max_samples=torch.full((len(cohort),), self.rows))
        return replace(plan, tasks={core.TRAIN: task})


Methods = Mapping[str, core.Algorithm[Any]]
"""The methods of a comparison by name."""

CLIENTS, ROWS, FEATURES = 6, 60, 8
"""The size of a table that is drawn: clients, rows of each client, and features."""

DIGIT_CLIENTS = 10
"""The clients of the digits, with 60 training rows and 20 test rows each."""

FEW_ROWS, FEW_DIGITS = 12, 40
"""The training rows of each client of the worse methods, of 45 and of 60. They cost about three points of accuracy."""

ANOTHER = 1_000_000
"""The other start. No seed is as large."""


def grouped(number: int) -> Methods:
    """FedAvg inside two random groups of three clients, and inside two others."""
    rng = np.random.default_rng([number, 1])
    groups, others = random_groups(rng), random_groups(rng)
    while others in (groups, tuple(1 - group for group in groups)):
        others = random_groups(rng)
    return {
        "one": GivenGroups(groups),
        "other": GivenGroups(others),
        "worse": GivenGroups(others, rows=FEW_ROWS),
    }


def random_groups(rng: np.random.Generator) -> tuple[int, ...]:
    """Two equal groups of the clients of a table, (n,)."""
    return tuple((rng.permutation(CLIENTS) % 2).tolist())


def started(number: int) -> Methods:
    """FedAvg, and FedAvg from another first model with other batches."""
    everyone = (0,) * DIGIT_CLIENTS
    return {
        "one": GivenGroups(everyone),
        "other": GivenGroups(everyone, start=ANOTHER),
        "worse": GivenGroups(everyone, start=ANOTHER, rows=FEW_DIGITS),
    }


def federated_or_not(number: int) -> Methods:
    """FedAvg, and each hospital alone."""
    return {"one": GivenGroups((0,) * len(ALIKE_HOSPITALS)), "other": Local()}


# The data.

ALIKE_HOSPITALS = ("Cleveland", "Hungary")
"""Switzerland and VA have patients of whom nearly all are ill, so that each hospital alone is better there."""


def drawn(number: int) -> Clients:
    """Clients whose rows are of two normal classes; the best classifier is right with 78 % of them."""
    rng = np.random.default_rng([number, 0])
    labels = rng.integers(2, size=(CLIENTS, ROWS))
    # The classes are 2 * 0.77 standard deviations apart, and Phi(0.77) is 0.78.
    centres = 0.77 * (2 * labels - 1) / FEATURES**0.5
    inputs = rng.normal(size=(CLIENTS, ROWS, FEATURES)) + centres[..., None]
    return list(zip(inputs.astype(np.float32), labels, strict=True))


@cache
def hospitals() -> Clients:
    """The complete rows of two hospitals. The library standardises them by the training rows of a seed."""
    known = heart.read(Path(os.environ["FEDSTRATA_DATA"]) / heart.FOLDER)
    whole = {name: heart.complete(patients) for name, patients in known.items() if name in ALIKE_HOSPITALS}
    inputs = heart.one_hot([patients.features for patients in whole.values()])
    return {
        name: (rows.astype(np.float32), patients.disease)
        for (name, patients), rows in zip(whole.items(), inputs, strict=True)
    }


# The studies.


@dataclass(frozen=True)
class Study:
    """What is compared.

    Attributes:
        keys: The experiment without algorithm and seed.
        seeds: The seeds of a comparison. Comparison i has those from ``i * seeds`` on.
        methods: A function from the number of a comparison to its methods.
        clients: A function from the number of a comparison to the data of its clients; None where the keys name them.
    """

    keys: Mapping[str, Any]
    seeds: int
    methods: Callable[[int], Methods]
    clients: Callable[[int], Clients] | None = None

    @property
    def conditions(self) -> dict[str, Any]:
        """What the results depend on, as far as JSON can hold it."""
        methods = {name: repr(method) for name, method in self.methods(0).items()}
        return {"keys": self.keys, "seeds": self.seeds, "methods of comparison 0": methods}


STUDIES: Mapping[str, Study] = {
    "alike_resplit": Study(
        keys={
            "rounds": 4,
            "data": {"test": 0.25},
            "model": {"name": "logistic"},
            "local": {"epochs": 1, "batch": 0, "lr": 1.0},
            "engine": {"name": "batched"},
        },
        seeds=10,
        methods=grouped,
        clients=drawn,
    ),
    "natural": Study(
        keys={
            "rounds": 5,
            "data": {"test": 0.34},
            "model": {"name": "logistic"},
            "local": {"epochs": 1, "batch": 32, "lr": 0.3},
            "engine": {"name": "loop"},
        },
        seeds=5,
        methods=federated_or_not,
        clients=lambda number: hospitals(),
    ),
    "another_start": Study(
        keys={
            "rounds": 5,
            "data": {"name": "digits", "clients": DIGIT_CLIENTS, "samples": 60, "test": 0.25},
            "model": {"name": "mlp", "hidden": [32]},
            "local": {"epochs": 1, "batch": 20, "optimizer": "adam", "lr": 0.02},
            "engine": {"name": "batched"},
        },
        seeds=5,
        methods=started,
    ),
}


def compared(name: str, number: int) -> dict[str, Any]:
    """One comparison of a study: the scores of each method over the seeds, and the overlap of their test rows.

    Args:
        name: The name of the study.
        number: The number of the comparison. The results have it as their seed.
    """
    study = STUDIES[name]
    methods = study.methods(number)
    keys = {**study.keys, "algorithm": {"name": "fedavg"}}
    if study.clients is not None:
        keys["data"] = {**keys["data"], "name": keep(study.clients(number))}
    # The positions of all test rows in the data, for each seed.
    tests = list[set[int]]()
    scores: dict[str, list[float]] = {method: [] for method in methods}
    with one_thread():
        for seed in range(number * study.seeds, (number + 1) * study.seeds):
            setup = build_run(load_experiment({**keys, "seed": seed}))
            tests.append({row for client in setup.everyone.tolist() for row in setup.client_data.test(client).tolist()})
            for method, algorithm in methods.items():
                scores[method].append(round(score(setup, algorithm, study.keys["rounds"]), DECIMALS))
    return {"seed": number, "overlap": round(overlap(tests), DECIMALS), "scores": scores}


def score(setup: RunSetup, algorithm: core.Algorithm[Any], rounds: int) -> float:
    """Play a run, and return the mean over the clients of their accuracy at the end."""
    problem = setup.server.problem
    # Each method has local stores of its own.
    clients = LocalStores(setup.clients)
    steps = play_rounds(
        replace(Rules.of(setup), algorithm=algorithm),
        algorithm.init(problem),
        stop=lambda state: state.round >= rounds,
        observe=lambda played: None,
    )
    state = answer_plans(steps, partial(timed_reply, clients))
    everyone = setup.everyone
    evaluations = algorithm.evaluations(problem, state, everyone)
    last = core.Plan(rounds + 1, problem.seed, everyone[:0], state.models, evaluations=evaluations)
    return float(clients.run(last).scores[core.CLIENT].values.mean())


def overlap(tests: Sequence[set[int]]) -> float:
    """The mean, over the pairs of seeds, of the share of test rows of the one that are test rows of the other."""
    return mean(len(one & other) / len(one) for one, other in combinations(tests, 2))


# The table.


class Shown(NamedTuple):
    """A row of the table.

    Attributes:
        study: The name of the study.
        title: What is compared.
        other: The method that "one" is compared with.
        seeds: The number of seeds that are judged, the first ones of each comparison.
    """

    study: str
    title: str
    other: str
    seeds: int


SHOWN = (
    Shown("alike_resplit", "equally good, the same rows split anew", "other", 5),
    Shown("alike_resplit", "equally good, the same rows split anew", "other", 10),
    Shown("another_start", "equally good, other rows", "other", 5),
    Shown("alike_resplit", "worse, the same rows split anew", "worse", 5),
    Shown("alike_resplit", "worse, the same rows split anew", "worse", 10),
    Shown("another_start", "worse, other rows", "worse", 5),
    Shown("natural", "FedAvg and local training in two hospitals", "other", 5),
)


def null_comparisons(path: Path | None = None) -> str:
    """How often the sentence appears in each study, with its 95 % interval of Wilson, and the mean difference."""
    held = read(path or outcomes.RESULTS / PATH.name)
    return table(
        "what is compared | seeds | overlap | comparisons | the sentence appears | first better | second better "
        "| mean difference",
        [row(shown, runs_of(held, shown.study)) for shown in SHOWN],
    )


def row(shown: Shown, runs: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The cells of a row from the comparisons of its study."""
    means, overlaps, signs = list[float](), list[float](), list[int]()
    for run in runs:
        pairs = zip(run["scores"]["one"], run["scores"][shown.other], strict=True)
        values = [round(one - other, DECIMALS) for one, other in pairs][: shown.seeds]
        means.append(mean(values))
        overlaps.append(run["overlap"])
        signs.append((1 if mean(values) > 0 else -1) if judged(values, run["overlap"]) else 0)
    count = len(signs)
    if not count:
        return (shown.title, f"{shown.seeds}", *[MISSING] * 6)
    said = count - signs.count(0)
    low, high = wilson(said / count, count)
    return (
        shown.title,
        f"{shown.seeds}",
        f"{mean(overlaps):.2f}",
        f"{count}",
        f"{said / count:.3f} ({low:.3f} to {high:.3f})",
        f"{signs.count(1)}",
        f"{signs.count(-1)}",
        f"{mean(means):+.4f}",
    )


def main() -> None:
    """Compute what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comparisons", type=int, default=400, help="of each study")
    parser.add_argument("--studies", default=",".join(STUDIES), help="comma-separated")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=PATH, help="where the results are kept")
    given = parser.parse_args()
    for name in given.studies.split(",") if given.comparisons else ():
        gather(given.out, name, STUDIES[name].conditions, compared, range(given.comparisons), given.jobs)
    print(null_comparisons(given.out))


if __name__ == "__main__":
    main()
