"""Whether CFL, LayerCFL and AdaCFL with default keys find groups, and keep clients whole that are alike.

    FEDSTRATA_DATA=DATA python -m experiments.papers.defaults --jobs 2

Adds to ``experiments/results/defaults.json`` what it does not hold yet. The seeds, from 100 on, chose nothing: the
rules of the defaults were found with seeds below 10. Of federations with groups: ARI and clusters in the last round,
and the rounds of the splits. Of alike clients: the round of the first split, of those that split.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from experiments.strata.federations import RESULTS, follow, gather, outcomes_of, read, with_keys
from experiments.tools import outcomes
from experiments.tools.outcomes import MISSING, table

FIRST_SEED = 100
PATH = RESULTS / "defaults.json"

IMAGES: dict[str, Any] = {
    "rounds": 45,
    "data": {"clients": 20, "samples": 400, "test": 0.2},
    "partition": {"scheme": "rotation", "groups": 4},
    "local": {"epochs": 1, "batch": 50, "lr": 0.05},
}
DIGITS: dict[str, Any] = {
    "rounds": 30,
    "data": {"name": "digits", "clients": 20, "samples": 64},
    "partition": {"scheme": "iid"},
    "local": {"epochs": 1, "batch": 10, "lr": 0.1},
}
ALL = ("cfl", "layercfl", "adacfl")

GROUPS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "digits, labels of half of the clients permuted": (
        {
            **DIGITS,
            "data": {"name": "digits", "clients": 8, "samples": 60},
            "partition": {"scheme": "concept", "groups": 2},
        },
        ALL,
    ),
    "mnist, four rotations": ({**IMAGES, "data": {**IMAGES["data"], "name": "mnist"}}, ALL),
    "fashion_mnist, four rotations": ({**IMAGES, "data": {**IMAGES["data"], "name": "fashion_mnist"}}, ALL),
    "mnist, five majorities of 0.8": (
        {
            **IMAGES,
            "rounds": 5,
            "data": {"name": "mnist", "clients": 50, "samples": 300, "test": 0.2},
            "partition": {"scheme": "majority", "groups": 5, "share": 0.8},
            "local": {"epochs": 1, "batch": 50, "optimizer": "adam", "lr": 0.01},
        },
        ("adacfl",),
    ),
}
"""Experiments whose clients have groups, and who looks for them."""

ALIKE: dict[str, dict[str, Any]] = {
    "digits, alike": DIGITS,
    "mnist, alike": {
        **IMAGES,
        "rounds": 30,
        "data": {**IMAGES["data"], "name": "mnist"},
        "partition": {"scheme": "iid"},
    },
}
"""Experiments whose clients are dealt samples at random."""


def main() -> None:
    """Compute what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--groups", type=int, default=3, help="federations of each experiment with groups")
    parser.add_argument("--alike", type=int, default=20, help="federations of each experiment without")
    given = parser.parse_args()
    seeds = range(FIRST_SEED, FIRST_SEED + given.groups)
    for name, (keys, algorithms) in GROUPS.items():
        for found in gather(PATH, name, {"keys": keys, "algorithms": list(algorithms)}, grouped, seeds, given.jobs):
            print(name, found, flush=True)
    seeds = range(FIRST_SEED, FIRST_SEED + given.alike)
    for name, keys in ALIKE.items():
        runs = gather(PATH, name, {"keys": keys, "algorithms": list(ALL)}, alike, seeds, given.jobs)
        print(name, {each: sum(each in run["splits"] for run in runs) for each in ALL}, "split", flush=True)


def grouped(name: str, seed: int) -> dict[str, Any]:
    """What each algorithm makes of a federation with groups."""
    keys, algorithms = GROUPS[name]
    return outcomes_of({name: keys}, with_keys({each: {} for each in algorithms}), name, seed)


def alike(name: str, seed: int) -> dict[str, Any]:
    """The round in which each algorithm first splits a federation without groups."""
    steps = follow({**ALIKE[name], "seed": seed}, {each: {"name": each} for each in ALL})
    return {"seed": seed, "splits": {step.name: step.state.round for step in steps if step.split}}


def defaults(algorithm: str) -> str:
    """What one algorithm did with every federation of the study."""
    rows = list[tuple[str, ...]]()
    for name, held in read(outcomes.RESULTS / "defaults.json").items():
        found = [run for run in held["runs"] if algorithm in held["algorithms"]]
        if name in ALIKE:
            splits = sorted(run["splits"][algorithm] for run in found if algorithm in run["splits"])
            told = f"{len(splits)} of {len(found)} split"
            rows.append((_described(name, held["keys"]), told, ", ".join(map(str, splits)) or "-"))
        elif found:
            scores = ", ".join(f"ARI {run[algorithm]['ari']:.2f}" for run in found)
            splits = ["+".join(map(str, run[algorithm]["splits"])) or "-" for run in found]
            rows.append((_described(name, held["keys"]), scores, ", ".join(splits)))
    return table("federation | found | splits in round", rows or [(MISSING, "", "")])


def _described(name: str, keys: Mapping[str, Any]) -> str:
    data = keys["data"]
    return f"{name}: {data['clients']} clients of {data['samples']} samples, {keys['rounds']} rounds"


if __name__ == "__main__":
    main()
