"""Try thresholds of CFL and LayerCFL on the federations that are compared, with a seed that no table uses.

    FEDSTRATA_DATA=DATA python -m experiments.papers.tuning [fashion_rotation ...]

Writes ``experiments/results/tuning_<federation>.json``, of which ``docs/evidence/comparisons.md`` shows every trial.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SEED = 10
EXPERIMENTS = Path(__file__).parents[1]

Pairs = tuple[tuple[float, float], ...]

TRIED: dict[str, dict[str, Pairs]] = {
    "fashion_rotation": {
        "cfl": ((0.3, 0.75), (0.3, 0.9), (0.2, 0.65), (0.2, 0.75), (0.4, 0.6), (0.4, 0.75), (0.5, 0.75)),
        "layercfl": (
            *((0.3, 0.3), (0.3, 0.36), (0.2, 0.25), (0.2, 0.3)),
            *((0.4, 0.25), (0.4, 0.3), (0.5, 0.3), (0.4, 0.2), (0.5, 0.25), (0.5, 0.2)),
        ),
    },
    "fashion_majority": {
        "cfl": ((0.2, 0.5), (0.2, 0.6), (0.3, 0.6), (0.4, 0.6)),
        "layercfl": ((0.2, 0.4), (0.2, 0.5), (0.3, 0.5), (0.4, 0.5)),
    },
    "fashion_dirichlet": {
        "cfl": ((0.25, 0.8), (0.25, 1.1), (0.4, 0.8), (0.4, 1.1), (0.4, 0.6), (0.6, 0.6), (0.6, 0.8)),
        "layercfl": ((0.25, 0.7), (0.25, 0.9), (0.4, 0.7), (0.4, 0.9), (0.4, 0.5), (0.6, 0.5), (0.6, 0.7)),
    },
    "usc_had": {
        "cfl": ((0.3, 0.7), (0.3, 0.9), (0.2, 0.7), (0.2, 0.8), (0.4, 0.7), (0.4, 0.9)),
        "layercfl": ((0.3, 0.7), (0.3, 0.9), (0.2, 0.7), (0.2, 0.8), (0.4, 0.7), (0.4, 0.9)),
    },
}
"""The pairs (eps1, eps2) that were tried, by federation and algorithm. They lie between the norm of the mean update and
the largest norm of an update of FedAvg; where the best pair was at the edge, more were tried beyond it."""


def main() -> None:
    """Try the pairs of the federations that are named, or of all."""
    for name in sys.argv[1:] or TRIED:
        command = [
            sys.executable,
            "-m",
            "experiments.strata.study",
            str(EXPERIMENTS / "strata" / f"compare_{name}.toml"),
        ]
        out = EXPERIMENTS / "results" / f"tuning_{name}.json"
        tried = ["--seeds", str(SEED), "--variants", ",".join(variants(name)), "--out", str(out)]
        subprocess.run([*command, *tried, "--together"], check=True)


def variants(name: str) -> list[str]:
    """What is run on a federation: FedAvg, and both algorithms with each pair."""
    found = ["fedavg"]
    for algorithm, pairs in TRIED[name].items():
        found += [f"{algorithm}+algorithm.eps1={eps1}+algorithm.eps2={eps2}" for eps1, eps2 in pairs]
    return found


if __name__ == "__main__":
    main()
