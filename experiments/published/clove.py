"""CLoVE on the federations of its paper's grid, beside IFCA and Strata: five kinds of groups, MNIST and Fashion-MNIST.

    FEDSTRATA_DATA=DATA python -m experiments.published.clove

Adds to ``experiments/results/clove.json`` what it does not hold yet, one algorithm after the other. So a run can be
stopped and called again. Bhatia et al., "CLoVE: personalized federated learning through clustering of loss vector
embeddings", ICML 2026.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import fedstrata
from experiments.strata.federations import gather, read, runs_of
from experiments.tools import outcomes
from experiments.tools.outcomes import listed, spread, table
from fedstrata.partition.grouped import FeatureSkew
from fedstrata.partition.scheme import PARTITIONS, Allocation, Pool

DATA = ("mnist", "fashion_mnist")
SEEDS = (1, 2, 3)

ROUNDS = 15
"""The paper has 100. The groups settle in fewer."""


class LabelSwaps(FeatureSkew):
    """Let group g swap the labels 2g and 2g + 1, and the labels 2g + 2 and 2g + 5, all modulo the number of classes.

    No two groups share a swap. The paper says that two swaps are unique to each group, and not which ones.
    """

    source = "Bhatia et al., ICML 2026, concept shift"
    groups_differ_by = "swapped labels"

    def most_groups(self, classes: int) -> tuple[int, str]:
        """Return the largest number of groups, and the reason."""
        return classes // 2, "half of the number of classes"

    def allocate(self, pool: Pool) -> Allocation:
        """Allocate the samples of a pool."""
        allocation, group = self.allocate_unchanged(pool)
        relabel = np.tile(np.arange(pool.classes), (len(group), 1))
        for client, own in enumerate(group):
            for one, other in ((0, 1), (2, 5)):
                pair = np.array([2 * own + one, 2 * own + other]) % pool.classes
                relabel[client, pair] = pair[::-1]
        return replace(allocation, relabel=relabel)


def _federation(clients: int, samples: int, **partition: Any) -> dict[str, Any]:
    """What a kind of groups changes in the experiment."""
    return {"data": {"clients": clients, "samples": samples}, "partition": partition}


FEDERATIONS: dict[str, tuple[int, dict[str, Any]]] = {
    "two classes each": (
        5,
        _federation(25, 500, scheme="label_groups", labels=[[2 * g, 2 * g + 1] for g in range(5)]),
    ),
    "four classes each, two shared with each neighbour": (
        5,
        _federation(25, 500, scheme="label_groups", labels=[[(2 * g + i) % 10 for i in range(4)] for g in range(5)]),
    ),
    # A third of the samples is uniform over all ten classes, so the class of the group has 2/3 + 1/30.
    "one class dominant": (10, _federation(50, 500, scheme="majority", groups=10, share=0.7)),
    "four rotations": (4, _federation(40, 500, scheme="rotation", groups=4)),
    "two swapped labels each": (
        5,
        _federation(25, 1000, scheme="label_swaps", groups=5),
    ),
}
"""The true number of groups of each kind, and what it changes: label skew 1, 2 and 4, feature skew, concept shift."""

METHODS = {"CLoVE": "clove", "CLoVE, k unknown": "clove", "Strata": "strata", "IFCA": "ifca"}
K_UNKNOWN = {"CLoVE, k unknown": {"k": "auto"}, "Strata": {}}
"""The keys of the methods that are not told the true number of groups."""

RUNS: dict[str, dict[str, Any]] = {
    f"{method}: {data}, {kind}": {
        "rounds": ROUNDS,
        "data": {"name": data, "test": "own", **changes["data"]},
        "partition": changes["partition"],
        # Two 5 x 5 convolutions of 6 and 16 channels, one linear layer.
        "model": {"name": "cifar_cnn"},
        "local": {"epochs": 1, "batch": 100, "optimizer": "adam", "lr": 0.01},
        "engine": {"name": "loop"},
        "algorithm": {"name": algorithm, **K_UNKNOWN.get(method, {"k": groups})},
    }
    for method, algorithm in METHODS.items()
    for data in DATA
    for kind, (groups, changes) in FEDERATIONS.items()
}
"""The experiment of each method on each federation."""


def main() -> None:
    """Compute what is missing: all seeds of an algorithm on a data set before the next ones."""
    for method, data, last in product(METHODS, DATA, SEEDS):
        for kind in FEDERATIONS:
            name = f"{method}: {data}, {kind}"
            gather(outcomes.RESULTS / "clove.json", name, {"keys": RUNS[name]}, one, range(SEEDS[0], last + 1), jobs=1)


def one(name: str, seed: int) -> dict[str, Any]:
    """One algorithm on one federation."""
    # Here and not above: whoever makes the tables has the library's own partitions alone.
    PARTITIONS.register("label_swaps", LabelSwaps)
    with TemporaryDirectory() as folder:
        run = fedstrata.run({**RUNS[name], "seed": seed}, Path(folder) / "run", quiet=True)
        return {
            "seed": seed,
            **{key: run.summary[key] for key in ("acc_client", "acc_worst", "ari")},
            "ari_by_round": [round(record["ari"], 4) for record in run.rounds],
            "settled": [each["round"] for each in run.rounds if any(e["kind"] == "settled" for e in each["events"])],
        }


def groups_found(data: str = "mnist") -> str:
    """Each method on each kind of groups of a data set: agreement, since when it is exact, and accuracy."""
    held = read(outcomes.RESULTS / "clove.json")
    rows = list[tuple[str, ...]]()
    for kind, (groups, _) in FEDERATIONS.items():
        for method in METHODS:
            found = runs_of(held, f"{method}: {data}, {kind}")
            cells = (listed(found, lambda run: run["ari"]), listed(found, _exact_since), spread(found, "acc_client"))
            rows.append((f"{groups}: {kind}", method, *cells))
    return table(f"groups | algorithm | ARI after {ROUNDS} rounds | exact from round | accuracy", rows)


def _exact_since(run: dict[str, Any]) -> int | None:
    """The first round from which the groups are the true ones to the end; None where they are others at the end."""
    wrong = [place for place, ari in enumerate(run["ari_by_round"], start=1) if ari < 1]
    since = max(wrong, default=0) + 1
    return since if since <= ROUNDS else None


if __name__ == "__main__":
    main()
