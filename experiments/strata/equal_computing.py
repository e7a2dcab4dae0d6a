"""Rivals of Strata with personal models, with as many rounds as the same computing buys.

    FEDSTRATA_DATA=DATA python -m experiments.strata.equal_computing --seeds 0,1,2,3,4 --jobs 2

Runs on the federations of the championship, and adds to ``experiments/results/equal_computing/<federation>.json``. The
work of a client is counted as there: an epoch of training on its own data, and a third of one for each pass by which it
compares models. Strata with personal models takes less than twice FedAvg's, so each rival has the rounds that twice
FedAvg's work buys it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.strata import championship

RESULTS = Path(__file__).parents[1] / "results" / "equal_computing"

BUDGET = 2.0
"""The work of each rival as a multiple of FedAvg's."""

RIVALS: Mapping[str, tuple[float, float]] = {
    "fedavg": (1.0, 0.0),
    "fedavg_best": (1.0, 8.5),
    "finetune_3": (1.0, 3.0),
    "finetune_10": (1.0, 10.0),
    "ifca": (1.0, 0.0),
}
"""The work of a round in epochs, and that after the last round, by method of the championship. IFCA also compares its
models in each round."""


def rounds_of(federation: str, method: str) -> int:
    """The rounds that the work buys a method on a federation."""
    keys = championship.experiment_keys(federation, method, seed=0)
    each, after = RIVALS[method]
    if method == "ifca":
        each += keys["algorithm"]["k"] / 3
    return int((BUDGET * keys["rounds"] * keys["local"]["epochs"] - after) / each)


def with_rounds(federation: str) -> dict[str, dict[str, Any]]:
    """The methods of a federation, by their names here."""
    return {
        f"{method}, equal computing": {
            **championship.method_keys(federation, method),
            "rounds": rounds_of(federation, method),
        }
        for method in RIVALS
    }


def main() -> None:
    """Run what is missing, and keep the results of a federation and seed as soon as they are there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--federations", default=",".join(championship.FEDERATIONS), help="comma-separated")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder of the results")
    given = parser.parse_args()
    succeeded = True
    for federation in given.federations.split(","):
        championship.METHODS.update(with_rounds(federation))
        matches = [(federation, int(seed)) for seed in given.seeds.split(",")]
        methods = list(with_rounds(federation))
        succeeded &= championship.run_matches(matches, methods, [], given.out, given.jobs)
    sys.exit(not succeeded)


if __name__ == "__main__":
    main()
