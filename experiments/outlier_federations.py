"""One or two clients that differ from all others: how often Strata finds them, and what else it does.

    FEDSTRATA_DATA=DATA python experiments/outlier_federations.py --federations 5 --jobs 2

Adds to ``experiments/results/outlier_federations.json`` the seeds that it does not hold yet. Of every federation: the
agreement of the clusters with the true groups after the last round (adjusted Rand index), the number of clusters, the
rounds of the splits, and the accuracy, also of FedAvg and of the true groups.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from federations import gather

import fedstrata

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

PATH = Path(__file__).parent / "results" / "outlier_federations.json"


def main() -> None:
    """Compute what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--federations", type=int, default=5, help="of each case")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=PATH, help="where the results are kept")
    given = parser.parse_args()
    for name, keys in CASES.items():
        gather(given.out, name, {"keys": keys}, partial(one, CASES, ALGORITHMS), range(given.federations), given.jobs)


def one(
    cases: Mapping[str, Mapping[str, Any]], algorithms: Mapping[str, Mapping[str, Any]], name: str, seed: int
) -> dict[str, Any]:
    """One federation under each algorithm.

    Args:
        cases: The experiments, by name.
        algorithms: The keys of each algorithm, by its name.
        name: The name of the federation.
        seed: The seed.
    """
    found: dict[str, Any] = {"seed": seed}
    with TemporaryDirectory() as folder:
        for algorithm, keys in algorithms.items():
            experiment = {**cases[name], "seed": seed, "algorithm": {"name": algorithm, **keys}}
            found[algorithm] = outcome(fedstrata.run(experiment, Path(folder) / algorithm, quiet=True))
    return found


def outcome(run: fedstrata.Run) -> dict[str, Any]:
    """What is kept of a run."""
    splits = [each["round"] for each in run.rounds if any(event["kind"] == "split" for event in each["events"])]
    return {**{key: run.summary[key] for key in ("acc_client", "ari", "clusters")}, "splits": splits}


if __name__ == "__main__":
    main()
