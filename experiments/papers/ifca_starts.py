"""How often random starts of IFCA collapse, and what helps: four rotations, by kind of start.

    FEDSTRATA_DATA=DATA python -m experiments.papers.ifca_starts --jobs 2

Adds to ``experiments/results/ifca_starts.json`` what it does not hold yet. A start has collapsed if the groups of the
last round are not the true ones.
"""

from __future__ import annotations

from statistics import mean
from typing import Any

from experiments.papers.defaults import DIGITS, IMAGES
from experiments.strata.federations import outcomes_of, read, run_study
from experiments.tools import outcomes
from experiments.tools.outcomes import MISSING, table

ROTATED: dict[str, Any] = {"rounds": 20, "partition": IMAGES["partition"]}
GROUPS: int = IMAGES["partition"]["groups"]

CASES: dict[str, dict[str, Any]] = {
    "digits": {**DIGITS, **ROTATED},
    "mnist": {**IMAGES, **ROTATED, "data": {**IMAGES["data"], "name": "mnist"}},
}

METHODS: dict[str, dict[str, Any]] = {
    title: {"algorithm": {"name": "ifca", **keys}}
    for title, keys in {
        "random": {"k": 4, "init": "random"},
        "restart": {"k": 4, "init": "restart"},
        "warm, 5 rounds": {"k": 4, "init": "warm", "warm_rounds": 5},
        "random, 8 models": {"k": 8, "init": "random"},
    }.items()
}


def main() -> None:
    """Compute what is missing."""
    conditions = {name: {"keys": keys, "methods": METHODS} for name, keys in CASES.items()}
    run_study("ifca_starts", __doc__, conditions, one, federations=10)
    print(starts())


def one(name: str, seed: int) -> dict[str, Any]:
    """One federation with each kind of start."""
    return outcomes_of(CASES, METHODS, name, seed)


def starts() -> str:
    """In how many federations each kind of start ended with other groups than the true ones."""
    rows = list[tuple[str, ...]]()
    for name, held in read(outcomes.RESULTS / "ifca_starts.json").items():
        for method, keys in held["methods"].items():
            found = [run[method] for run in held["runs"]]
            collapsed = sum(run["ari"] < 1 for run in found)
            ari, accuracy = (f"{mean(run[each] for run in found):.2f}" for each in ("ari", "acc_client"))
            # More models than groups may divide true groups and yet mix none: ARI says nothing of a collapse.
            told = f"{collapsed} of {len(found)}" if keys["algorithm"]["k"] == GROUPS else "-"
            rows.append((name, method, told, ari, accuracy))
    return table("data | `init` | collapsed | mean ARI | mean accuracy", rows or [(MISSING, "", "", "", "")])


if __name__ == "__main__":
    main()
