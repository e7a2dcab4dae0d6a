"""Make the small run folders that the report's pages are tested with: one of every algorithm that groups clients.

    python -m experiments.tools.small_runs [NAME...]

Twelve clients (or a few more) whose handwritten digits are turned, a few rounds, the records alone: no models, no
checkpoints, no page. Everything but seconds and versions comes out the same again.
"""

from __future__ import annotations

import argparse
import copy
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fedstrata as fs

OUT = Path(__file__).parents[2] / "tests" / "report" / "runs"
LEFT_OUT = ("models", "checkpoint", "report.html")
BASE: dict[str, Any] = {
    "seed": 0,
    "rounds": 8,
    "data": {"name": "digits", "clients": 12, "samples": 64, "test": 0.25},
    "partition": {"scheme": "rotation", "groups": 4},
    "local": {"epochs": 1, "batch": 10, "lr": 0.1},
}
MANY = {"data": {"clients": 20}}
TWENTY = {"data": {"clients": 24, "samples": 40}, "partition": {"groups": 2}}
JOINS = {
    "events": {"join": [{"round": 5, "clients": [2, 11]}], "change": [{"round": 7, "client": 4, "takes_data_of": 9}]}
}
RUNS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "adacfl": (
        "adacfl",
        {"layers": "all", "precluster": False, "cut": 0.68, "epsilon": 1.3, "round": 3},
        JOINS,
    ),
    "centralized": ("centralized", {}, {"rounds": 3}),
    "cfl": ("cfl", {"eps1": 0.5, "eps2": 0.5, "gamma": 0.5, "min_split": 4}, {}),
    "ditto": ("ditto", {}, {"rounds": 4}),
    "fedavg": ("fedavg", {}, {}),
    "fedclust": ("fedclust", {"cut": 0.42}, {}),
    "fedtsdp": ("fedtsdp", {"threshold": 0.55, "radius1": 0.1, "shrink": 0.8}, {"data": {"public": 60}}),
    "fesem": ("fesem", {"k": 4}, {}),
    "fl_hc": ("fl_hc", {"round": 3, "cut": 0.65}, {}),
    "flis": ("flis", {"cut": 72.0}, {"data": {"public": 60}}),
    "hicfl": ("hicfl", {"epsilon": 0.5, "rho": 1.0}, {"rounds": 10}),
    "ifca": ("ifca", {"k": 4}, {"rounds": 10}),
    "layercfl": (
        "layercfl",
        {"layers": "linear1", "eps1": 0.5, "eps2": 0.4, "gamma": 0.5, "min_split": 3},
        {"cohort": {"dropout": 0.2}, "probe": {"gap": ["dcos", "l2"]}},
    ),
    "oracle": ("oracle", {}, {"rounds": 3}),
    "pacfl": ("pacfl", {}, {}),
    "random_groups": ("random_groups", {"groups": 12}, {**TWENTY, "rounds": 3}),
    "strata": ("strata", {}, {**MANY, "partition": {"groups": None, "sizes": [10, 5, 5]}}),
}
"""Folder -> algorithm, its keys, and what else differs from the base."""


def main() -> None:
    """Make the folders that are named, by default all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(RUNS)}")
    parser.add_argument("--out", type=Path, default=OUT, help="the folder of the folders")
    given = parser.parse_args()
    for name in given.names or RUNS:
        make(name, given.out / name)
        print(given.out / name, flush=True)


def make(name: str, out: Path) -> None:
    """Run one of them, and keep its records."""
    algorithm, keys, changes = RUNS[name]
    experiment = merged(merged(BASE, changes), {"algorithm": {"name": algorithm, **keys}, "engine": {"name": "loop"}})
    with TemporaryDirectory() as scratch:
        folder = fs.run(experiment, Path(scratch) / name, quiet=True).folder
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(folder, out, ignore=lambda _, found: [each for each in found if each in LEFT_OUT])


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """An experiment with some keys changed, or left out where they are None; tables go on below."""
    found = copy.deepcopy(dict(base))
    for key, value in changes.items():
        found[key] = merged(found.get(key, {}), value) if isinstance(value, Mapping) else value
    return {key: value for key, value in found.items() if value is not None}


if __name__ == "__main__":
    main()
