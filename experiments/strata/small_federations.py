"""Clients of few samples: how often Strata finds their groups, and what that is worth.

    FEDSTRATA_DATA=DATA python -m experiments.strata.small_federations --federations 5 --jobs 2

Adds to ``experiments/results/small_federations.json`` the seeds that it does not hold yet. What is kept of a federation
is as in ``outlier_federations.py``. IFCA knows the number of groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from experiments.strata.federations import outcomes_of, run_study, with_keys
from experiments.strata.outlier_federations import SCHEMES, case

ALGORITHMS: Mapping[str, Mapping[str, Any]] = {
    "fedavg": {},
    "oracle": {},
    "ifca": {"k": 2, "init": "restart"},
    "strata": {},
}
"""The keys of the algorithms, by name."""

CASES: Mapping[str, Mapping[str, Any]] = {
    f"{sizes[0]} and {sizes[1]}, {SCHEMES[scheme]}, {images} images": case(sizes, scheme, images)
    for sizes, scheme, images in (
        ((10, 10), "rotation", 40),
        ((10, 10), "concept", 40),
        ((10, 10), "rotation", 24),
        ((10, 10), "concept", 24),
        ((3, 3), "rotation", 80),
        ((3, 3), "concept", 80),
        ((6, 6), "rotation", 40),
        ((6, 6), "concept", 40),
    )
}
"""Experiments, by what they are."""


def main() -> None:
    """Compute what is missing."""
    conditions = {name: {"keys": keys, "algorithms": ALGORITHMS} for name, keys in CASES.items()}
    run_study(
        "small_federations", __doc__, conditions, partial(outcomes_of, CASES, with_keys(ALGORITHMS)), federations=5
    )


if __name__ == "__main__":
    main()
