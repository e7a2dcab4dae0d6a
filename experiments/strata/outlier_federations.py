"""One or two clients that differ from all others: how often Strata finds them, and what else it does.

    FEDSTRATA_DATA=DATA python -m experiments.strata.outlier_federations --federations 5 --jobs 2

Adds to ``experiments/results/outlier_federations.json`` the seeds that it does not hold yet. Of every federation: the
agreement of the clusters with the true groups after the last round (adjusted Rand index), the number of clusters, the
rounds of the splits, and the accuracy, also of FedAvg and of the true groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import product
from typing import Any

from experiments.strata.federations import outcomes_of, run_study, with_keys

SIZES = ((19, 1), (18, 2))
SCHEMES = {"concept": "another mapping of labels", "rotation": "turned images"}
SAMPLES = (100, 200, 400)
ALGORITHMS: Mapping[str, Mapping[str, Any]] = {"fedavg": {}, "oracle": {}, "strata": {}}
"""The keys of the algorithms, by name."""


def case(sizes: tuple[int, ...], scheme: str, samples: int) -> dict[str, Any]:
    """An experiment of 30 rounds."""
    return {
        "rounds": 30,
        "data": {"name": "mnist", "clients": sum(sizes), "samples": samples},
        "partition": {"scheme": scheme, "sizes": list(sizes)},
        "model": {"name": "mlp", "hidden": [32]},
        "local": {"epochs": 1, "batch": 50, "lr": 0.05},
        "engine": {"name": "batched"},
    }


CASES: Mapping[str, Mapping[str, Any]] = {
    f"{sizes[0]} and {sizes[1]}, {SCHEMES[scheme]}, {samples} images": case(sizes, scheme, samples)
    for sizes, scheme, samples in product(SIZES, SCHEMES, SAMPLES)
}
"""Experiments, by what they are."""


def main() -> None:
    """Compute what is missing."""
    conditions = {name: {"keys": keys} for name, keys in CASES.items()}
    run_study(
        "outlier_federations", __doc__, conditions, partial(outcomes_of, CASES, with_keys(ALGORITHMS)), federations=5
    )


if __name__ == "__main__":
    main()
