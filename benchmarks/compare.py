"""A comparison against separate runs of the same algorithms: the ratio of each pair, and what the shared jobs say.

    FEDSTRATA_DATA=DATA python benchmarks/compare.py experiments/strata/late_split.toml

Both sides read and deal the data, train, score and write their records; neither makes pages. The share of the local
jobs that had to be done is the ideal, and the last figure is how far from it the comparison is: 1 is the ideal.
"""

from __future__ import annotations

import argparse
import platform
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import torch

from fedstrata import comparison
from fedstrata.config import choose_all
from fedstrata.play.run import run_experiment


def main() -> None:
    """Print both times, their ratio and the share of jobs for every pair."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=Path, nargs="?", help="by default the one that the library carries")
    parser.add_argument("--algorithms", default="fedavg,cfl,layercfl,hicfl,strata")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--pairs", type=int, default=3)
    given = parser.parse_args()
    names, seeds = given.algorithms.split(","), [int(seed) for seed in given.seeds.split(",")]

    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}")
    print(f"{', '.join(names)} on {given.experiment or 'the default experiment'}, seeds {given.seeds}")
    with TemporaryDirectory() as folder:  # so that neither side pays for loading libraries
        warm = choose_all(given.experiment, names, seeds[:1], [*given.sets, "rounds=1"], Path(folder))
        comparison.compare_experiments(*warm, quiet=True)
    ratios, costs = list[float](), list[float]()
    for _ in range(given.pairs):
        with TemporaryDirectory() as folder:
            experiments, out = choose_all(given.experiment, names, seeds, given.sets, Path(folder, "all"))
            began = perf_counter()
            compared = comparison.compare_experiments(experiments, out, quiet=True)
            between = perf_counter()
            for experiment in experiments:
                run_experiment(experiment, Path(folder, f"{experiment.algorithm.name}-{experiment.seed}"), quiet=True)
            apart = perf_counter() - between
        together = between - began
        assert compared.jobs is not None and not any(run.error for run in compared.runs)
        ratios.append(together / apart)
        costs.append(together / apart / compared.jobs.share)
        print(f"separate runs {apart:.2f} s, comparison {together:.2f} s, ratio {ratios[-1]:.3f}; {compared.jobs}")
    for what, found in (("comparison / separate runs", ratios), ("that / share of distinct jobs", costs)):
        print(f"{what}: median {median(found):.3f}, {min(found):.3f} to {max(found):.3f}")


if __name__ == "__main__":
    main()
