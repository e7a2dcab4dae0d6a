"""The validation of answers and of new models, and the checks of updates, beside the round they belong to.

    python benchmarks/checks.py                                    # an MLP on digits, and a CNN
    FEDSTRATA_DATA=DATA python benchmarks/checks.py --jobs mnist,cifar10
    python benchmarks/checks.py --jobs digits --rounds 30

Each round of an ordinary run is timed as it is, and without the time that these took: processor time of one thread,
which other programs do not lengthen. The ratio of the two is what they cost. The CNN and VGG11 train on noise of
CIFAR-10's shape: what they learn does not matter here.
"""

from __future__ import annotations

import argparse
import platform
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from images import noise

from fedstrata.config import load_experiment
from fedstrata.play import recorder
from fedstrata.play import rounds as loop
from fedstrata.play.run import run_experiment
from fedstrata.uploads import validation
from fedstrata.uploads.checks.update_checks import Checks

CLIENTS = 20
COMMON: dict[str, Any] = {"partition": {"scheme": "iid"}, "engine": {"name": "loop"}}
JOBS: dict[str, dict[str, Any]] = {
    "digits": {
        "data": {"name": "digits", "clients": CLIENTS, "samples": 64, "test": 0.2},
        "model": {"name": "mlp", "hidden": [64]},
        "local": {"epochs": 1, "batch": 10, "lr": 0.1},
    },
    # Attacks are measured with these two (experiments/trust/tolerated_attacks.py).
    "mnist": {
        "data": {"name": "mnist", "clients": CLIENTS, "samples": 400, "test": 0.5},
        "partition": {"scheme": "rotation", "groups": 4},
        "model": {"name": "mlp", "hidden": [32]},
        "local": {"epochs": 1, "batch": 20, "lr": 0.1},
    },
    "mnist_cnn": {
        "data": {"name": "mnist", "clients": CLIENTS, "samples": 400, "test": 0.5},
        "partition": {"scheme": "rotation", "groups": 4},
        "model": {"name": "mnist_cnn"},
        "local": {"epochs": 1, "batch": 20, "lr": 0.1},
    },
    "cifar10": {
        "data": {"name": "cifar10", "clients": CLIENTS, "samples": 1000, "test": 0.5},
        "partition": {"scheme": "rotation", "groups": 4},
        "model": {"name": "mlp", "hidden": [32]},
        "local": {"epochs": 1, "batch": 20, "lr": 0.1},
    },
    "cnn": {
        "data": {"clients": CLIENTS, "samples": 100, "test": 0.2},
        "model": {"name": "cifar_cnn"},
        "local": {"epochs": 1, "batch": 50, "lr": 0.01},
    },
    "vgg11": {
        "data": {"clients": CLIENTS, "samples": 20, "test": 0.2},
        "model": {"name": "vgg11"},
        "local": {"epochs": 1, "batch": 20, "lr": 0.01},
    },
}


def main() -> None:
    """Print the cost for each job and algorithm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", default="digits,cnn", help=f"of {', '.join(JOBS)}")
    parser.add_argument("--algorithms", default="fedavg,strata")
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    print(
        f"{platform.processor() or platform.machine()}, torch {torch.__version__}, {CLIENTS} clients, the loop engine"
    )
    for job in given.jobs.split(","):
        for algorithm in given.algorithms.split(","):
            found = cost(job, algorithm, given.rounds)
            ratios = found.ratios()
            validation_ms, updates_ms = (
                1000 * median(spent[round] for round in found.began) for spent in (found.validation, found.updates)
            )
            print(
                f"{job:>7}, {algorithm:>6}: round with checks / without them: median {median(ratios):.5f}, "
                f"{min(ratios):.5f} to {max(ratios):.5f}; validation {validation_ms:.2f} ms, "
                f"checks of updates {updates_ms:.2f} ms a round",
                flush=True,
            )


@dataclass
class RoundTimes:
    """Processor times by round, in seconds.

    Attributes:
        began: When each round's validation begins.
        validation: What the round spends on validation.
        updates: What it spends on the checks of updates.
    """

    began: dict[int, float] = field(default_factory=dict)
    validation: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    updates: dict[int, float] = field(default_factory=lambda: defaultdict(float))

    def ratios(self) -> list[float]:
        """The ratio of every round to the same without both. A round here is from one validation to the next."""
        found = list[float]()
        for round in self.began:
            if round + 1 in self.began:
                seconds = self.began[round + 1] - self.began[round]
                found.append(seconds / (seconds - self.validation[round] - self.updates[round]))
        return found


def cost(job: str, algorithm: str, rounds: int) -> RoundTimes:
    """What each round of a job spends on checks."""
    with TemporaryDirectory() as folder:
        tables = {**COMMON, **JOBS[job], "rounds": rounds, "algorithm": {"name": algorithm}}
        if "name" not in tables["data"]:
            tables["data"] = {**tables["data"], "name": str(_noise(Path(folder), tables["data"]))}
        with _timed() as times:
            run_experiment(load_experiment(tables), Path(folder) / "run", quiet=True)
    return times


def _noise(folder: Path, data: dict[str, Any]) -> Path:
    """A file of enough noise for all clients."""
    dataset, path = noise(int(1.5 * data["clients"] * data["samples"])), folder / "noise.npz"
    np.savez(path, x=dataset.inputs.numpy(), y=dataset.labels.numpy())
    return path


@contextmanager
def _timed() -> Iterator[RoundTimes]:
    """What the rounds of runs inside it spend on checks."""
    times = RoundTimes()
    round = 0
    valid_answers = validation.ValidAnswers.of_report

    def clocked(check: Callable[..., Any], spent: dict[int, float]) -> Callable[..., Any]:
        def run(*given: Any, **named: Any) -> Any:
            start = process_time()
            found = check(*given, **named)
            spent[round] += process_time() - start
            return found

        return run

    def of_report(step: validation.ValidAnswers, plan: Any, report: Any) -> Any:
        nonlocal round
        round = plan.round
        times.began[round] = process_time()
        return clocked(valid_answers, times.validation)(step, plan, report)

    def decide(algorithm: Any, *given: Any) -> Any:
        """As it is, but for the time of the algorithm itself."""

        def update(*inputs: Any) -> Any:
            start = process_time()
            found = algorithm.update(*inputs)
            times.validation[round] -= process_time() - start
            return found

        return clocked(validation.decide, times.validation)(SimpleNamespace(update=update), *given)

    def in_validation(name: str) -> Callable[..., Any]:
        return clocked(getattr(validation, name), times.validation)

    watched: list[tuple[ModuleType | type, str, Callable[..., Any]]] = [
        (validation.ValidAnswers, "of_report", of_report),
        (loop, "decide", decide),
        (recorder, "divergence_of_loss", in_validation("divergence_of_loss")),
        (Checks, "counted", clocked(Checks.counted, times.updates)),
    ]
    before = [getattr(module, name) for module, name, _ in watched]
    try:
        for module, name, check in watched:
            setattr(module, name, check)
        yield times
    finally:
        for (module, name, _), check in zip(watched, before, strict=True):
            setattr(module, name, check)


if __name__ == "__main__":
    main()
