"""What Strata can tell apart: how soon it finds two or more groups, by their sizes, data, skew and network.

    FEDSTRATA_DATA=DATA python -m experiments.strata.power_federations --federations 20 --jobs 2

Adds to ``experiments/results/power_federations.json`` the seeds that it does not hold yet. Of every federation: the
round of the first split, and how many true groups it tears.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.strata.federations import follow, run_study

STRATA = {"strata": {"name": "strata"}}


def case(
    partition: Mapping[str, Any], data: str = "mnist", samples: int = 72, hidden: tuple[int, ...] = (16,)
) -> dict[str, Any]:
    """An experiment of 20 rounds with as many clients as the groups have."""
    return {
        "rounds": 20,
        "data": {"name": data, "clients": sum(partition.get("sizes", [20])), "samples": samples, "test": 0.1},
        "partition": dict(partition),
        "model": {"name": "mlp", "hidden": list(hidden)},
        "local": {"epochs": 1, "batch": 12, "lr": 0.1},
    }


def turned(*sizes: int) -> dict[str, Any]:
    """Groups that turn their images."""
    return {"scheme": "rotation", "sizes": list(sizes)}


def skewed(share: float) -> dict[str, Any]:
    """Four groups of five with more of one class each; the share of a class is 0.1 where there is no skew."""
    return {"scheme": "majority", "groups": 4, "share": share}


MIXED = {**turned(10, 10), "inside": {"scheme": "dirichlet", "alpha": 1.0, "over": "classes"}}
"""Two turned groups, in which every client has its own mix of classes as well."""

SIZES = ((10, 10), (5, 5, 5, 5), (12, 5, 3), (17, 3), (18, 2), (19, 1), (4, 4), (2, 2))

CASES: Mapping[str, Mapping[str, Any]] = {
    **{f"turned groups of {', '.join(map(str, sizes))}": case(turned(*sizes), "digits") for sizes in SIZES},
    **{f"turned groups of {size}, {size}, 144 samples": case(turned(size, size), "digits", 144) for size in (4, 2)},
    "turned groups of 10, 10, own mixes of classes": case(MIXED),
    **{f"a class of {share:.0%}": case(skewed(share)) for share in (0.2, 0.25, 0.3, 0.4)},
    **{f"a class of 25%, {samples} samples": case(skewed(0.25), samples=samples) for samples in (144, 288)},
    **{f"a class of 25%, {depth + 1} layers": case(skewed(0.25), hidden=(16,) * depth) for depth in (3, 7)},
}
"""Experiments; of digits, and of MNIST where classes are skewed, of which digits have too few."""


def main() -> None:
    """Compute what is missing."""
    conditions = {name: {"keys": keys, "algorithms": STRATA} for name, keys in CASES.items()}
    run_study("power_federations", __doc__, conditions, one, federations=20)


def one(name: str, seed: int) -> dict[str, Any]:
    """One federation: the round of the first split, and how many true groups it tears; None where there is none."""
    for step in follow({**CASES[name], "seed": seed}, STRATA):
        if step.split and step.truth is not None:
            groups = [step.state.labels[step.truth == group].unique() for group in step.truth.unique()]
            return {"seed": seed, "round": step.state.round, "torn": sum(len(labels) > 1 for labels in groups)}
    return {"seed": seed, "round": None, "torn": None}


if __name__ == "__main__":
    main()
