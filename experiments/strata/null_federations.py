"""Wrong splits on federations whose clients are all alike: how often each algorithm splits them by round 50.

    FEDSTRATA_DATA=DATA python -m experiments.strata.null_federations --federations 400 --jobs 2
    FEDSTRATA_DATA=DATA python -m experiments.strata.null_federations --study null_papers --federations 40

Adds to ``experiments/results/<study>.json`` the seeds that it does not hold yet, so it can be stopped, and
called again with more. Of every federation: the rounds in which algorithms first split it, and each trial of Strata at
the smallest alpha as [round, p, level].
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from experiments.strata.federations import RESULTS, follow, gather

ALPHAS = (0.01, 0.05, 0.2)

STRATA: Mapping[str, Mapping[str, Any]] = {f"strata {alpha}": {"name": "strata", "alpha": alpha} for alpha in ALPHAS}

RIVALS: Mapping[str, Mapping[str, Any]] = {
    # Those of the authors' own program, which has no Theorem 1.
    "cfl, published": {
        "name": "cfl",
        "eps1": 0.4,
        "eps2": 1.6,
        "gamma": 0.0,
        "linkage": "complete",
        "first": 21,
        "min_split": 3,
    },
    # The paper has none for other data sets than its own: those that find rotations of MNIST.
    "layercfl, as for MNIST": {
        "name": "experiments.papers.variants:RetryingLayerCFL",
        "eps1": 0.25,
        "eps2": 0.25,
        "gamma": 0.5,
        "min_split": 3,
    },
    "hicfl, mean": {"name": "experiments.papers.variants:MeanOfMembers"},
    "adacfl, published": {"name": "adacfl", "cut": 1.4, "epsilon": 1.8},
}

PAPERS: Mapping[str, Mapping[str, Any]] = {
    "cfl": {"name": "cfl"},
    "layercfl": {"name": "layercfl"},
    "layercfl, linear": {"name": "layercfl", "layers": "first_linear"},
    "adacfl": {"name": "adacfl"},
    "hicfl": {"name": "hicfl"},
    "cfl, stability": {"name": "experiments.papers.variants:StableCFL"},
}
"""The papers' algorithms with default keys."""

STUDIES = {"null_strata": STRATA, "null_rivals": RIVALS, "null_papers": PAPERS}
"""The algorithms of each study, by the name of its file of results."""

DIGITS: dict[str, Any] = {
    "rounds": 50,
    "data": {"name": "digits", "clients": 20, "samples": 72, "test": 0.1},
    "model": {"name": "mlp", "hidden": [32]},
    "local": {"epochs": 1, "batch": 12, "lr": 0.1},
}
MNIST = {**DIGITS, "model": {"name": "mlp", "hidden": [16]}}

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "equal": DIGITS,
    "memorised": {**DIGITS, "local": {"epochs": 2, "batch": 12, "lr": 0.5}},
    "few": {**DIGITS, "data": {**DIGITS["data"], "clients": 8, "samples": 160}},
    "four": {**DIGITS, "data": {**DIGITS["data"], "clients": 4, "samples": 320}},
    # Digits are too few for clients with ten times as many as others.
    "sizes": {
        **MNIST,
        "data": {"name": "mnist", "clients": 20, "samples": 300, "test": 0.1},
        "partition": {"scheme": "quantity", "alpha": 3.0},
        "local": {"epochs": 1, "batch": 20, "lr": 0.1},
    },
    "participation": {
        **MNIST,
        "data": {"name": "mnist", "clients": 40, "samples": 72, "test": 0.1},
        "cohort": {"fraction": 0.3},
    },
    "few_dropout": {
        **DIGITS,
        "data": {**DIGITS["data"], "clients": 8, "samples": 160},
        "model": {"name": "experiments.strata.networks:dropout_mlp"},
    },
    "few_participation": {
        **DIGITS,
        "data": {**DIGITS["data"], "clients": 12, "samples": 120},
        "cohort": {"fraction": 0.5},
    },
    "few_silent": {
        **DIGITS,
        "data": {**DIGITS["data"], "clients": 12, "samples": 120},
        "local": {"epochs": 2, "batch": 12, "lr": 0.5},
        "cohort": {"dropout": 0.3},
    },
    "few_dropout_memorised": {
        **DIGITS,
        "data": {**DIGITS["data"], "clients": 8, "samples": 160},
        "model": {"name": "experiments.strata.networks:dropout_mlp"},
        "local": {"epochs": 2, "batch": 12, "lr": 0.5},
    },
    "few_participation_memorised": {
        **DIGITS,
        "data": {**DIGITS["data"], "clients": 12, "samples": 120},
        "local": {"epochs": 2, "batch": 12, "lr": 0.5},
        "cohort": {"fraction": 0.5},
    },
    # Halves of 18 and of 22 samples.
    "small": {**DIGITS, "data": {**DIGITS["data"], "samples": 36}},
    "few_small": {**DIGITS, "data": {**DIGITS["data"], "clients": 8, "samples": 45}},
    "small_memorised": {
        **DIGITS,
        "data": {**DIGITS["data"], "samples": 36},
        "local": {"epochs": 2, "batch": 12, "lr": 0.5},
    },
    "dropout": {**DIGITS, "model": {"name": "experiments.strata.networks:dropout_mlp"}},
    "cnn": {
        "rounds": 50,
        "data": {"name": "cifar10", "clients": 20, "samples": 200, "test": 0.1},
        "local": {"epochs": 1, "batch": 50, "lr": 0.05},
    },
}
"""Experiments; their clients are dealt samples at random."""

FEDERATIONS = {"cnn": 40}
"""Federations at most, where one takes long."""


def main() -> None:
    """Compute what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--federations", type=int, default=400, help="of each setting")
    parser.add_argument("--settings", default=",".join(SETTINGS), help="comma-separated")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--study", choices=STUDIES, default="null_strata", help="whose algorithms are followed")
    parser.add_argument("--out", type=Path, help="where the results are kept")
    given = parser.parse_args()
    followed = STUDIES[given.study]
    path = given.out or RESULTS / f"{given.study}.json"
    for name in given.settings.split(","):
        seeds = range(min(given.federations, FEDERATIONS.get(name, given.federations)))
        conditions = {"keys": SETTINGS[name], "algorithms": followed}
        runs = gather(path, name, conditions, partial(one, followed), seeds, given.jobs)
        for called in followed:
            print(f"  {called}: split {sum(called in run['splits'] for run in runs)} of {len(runs)}", flush=True)


def one(followed: Mapping[str, Mapping[str, Any]], setting: str, seed: int) -> dict[str, Any]:
    """One federation: who splits it, and when, and the tests of it."""
    splits, trials = dict[str, int](), list[list[float]]()
    for step in follow({**SETTINGS[setting], "seed": seed}, followed):
        if step.split:
            splits[step.name] = step.state.round
        verdict = step.state.tree[0].decision
        is_new = verdict is not None and verdict.values.get("round") == step.state.round
        if step.name == f"strata {min(ALPHAS)}" and verdict is not None and is_new:
            trials.append([step.state.round, *(float(f"{verdict.values[key]:.3g}") for key in ("p", "level"))])
    return {"seed": seed, "splits": splits, "trials": trials}


if __name__ == "__main__":
    main()
