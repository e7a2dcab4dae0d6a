"""New clients without labels: whether they are placed where their labels would place them.

    FEDSTRATA_DATA=DATA python -m experiments.trust.unlabelled_newcomers --jobs 1

Adds to ``experiments/results/unlabelled_newcomers.json`` what it does not hold yet. Twenty clients in four groups train
for 12 rounds with Strata. Then come 200 newcomers, 50 of each group, whose images no client has. Of every run: the
clusters and their agreement with the true groups (adjusted Rand index); of its newcomers, how many are placed by inputs
as by the loss on their labelled data, how many otherwise, and how many are refused; and how many would be placed as by
labels if the model with the lowest mean entropy of its predictions decided. The features, the levels and all else were
fixed on seed 0, which is no part of the results.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

import fedstrata
from experiments.strata.federations import RESULTS, gather, read, runs_of
from experiments.tools import outcomes
from fedstrata.base.errors import RecordError
from fedstrata.build.build import build_run
from fedstrata.config import load_experiment
from fedstrata.engine.device import one_thread
from fedstrata.partition.grouped import LabelSkew, client_quotas

SEEDS = range(1, 3)
GROUPS = 4
NEWCOMERS = 200
IMAGES = 500

SETS = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "emnist_letters": "EMNIST Letters", "cifar10": "CIFAR-10"}
"""The titles of the data sets, by name."""

PARTITIONS: Mapping[str, Mapping[str, Any]] = {
    "rotation": {"scheme": "rotation", "groups": GROUPS},
    "majority 0.8": {"scheme": "majority", "groups": GROUPS, "share": 0.8},
    "concept": {"scheme": "concept", "groups": GROUPS},
}

CASES: Mapping[str, Mapping[str, Any]] = {
    f"{title}, {kind}": {
        "rounds": 12,
        "data": {"name": name, "clients": 20, "samples": IMAGES, "test": 0.2},
        "partition": partition,
        "model": {"name": "mlp", "hidden": [64]},
        "local": {"epochs": 1, "batch": 50, "lr": 0.05},
        "algorithm": {"name": "strata"},
        "records": {"inputs": True},
    }
    for name, title in SETS.items()
    for kind, partition in PARTITIONS.items()
}
"""Experiments, by what they are."""


def write_newcomers(experiment: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the data of newcomers, which are of the true groups in turn.

    Args:
        experiment: The keys of the run.
        folder: Where the files go.

    Returns:
        The file of each newcomer.
    """
    loaded = load_experiment(experiment)
    held = build_run(loaded).client_data
    dataset, scheme = held.dataset, loaded.scheme
    free = np.flatnonzero((held.owner < 0).numpy())
    labels = dataset.labels.numpy()
    by_class = [free[labels[free] == number] for number in range(dataset.classes)]
    rng = np.random.default_rng(loaded.seed)
    paths = []
    for newcomer in range(NEWCOMERS):
        group = newcomer % GROUPS
        if isinstance(scheme, LabelSkew):
            counts = client_quotas(scheme.mixes(dataset.classes), IMAGES)[group]
            parts = [rng.choice(rows, count, replace=False) for rows, count in zip(by_class, counts, strict=True)]
            chosen = np.concatenate(parts)
        else:
            chosen = rng.choice(free, IMAGES, replace=False)
        x, y = dataset.gather(torch.from_numpy(chosen)).contiguous().numpy(), labels[chosen]
        if experiment["partition"]["scheme"] == "rotation":
            x = np.rot90(x, group, axes=(2, 3)).copy()
        if experiment["partition"]["scheme"] == "concept":
            y = (y + group * (dataset.classes // GROUPS)) % dataset.classes
        paths.append(folder / f"{newcomer}.npz")
        np.savez(paths[-1], x=x, y=y)
    return paths


def most_confident(run: fedstrata.Run, paths: list[Path]) -> list[int]:
    """The cluster of each newcomer whose model has the lowest mean entropy on its inputs."""
    nodes = [node.id for node in run.tree if node.split is None]
    models = [run.cluster_model(node) for node in nodes]
    found = []
    for path in paths:
        x = np.load(path)["x"]
        entropies = [
            float(torch.distributions.Categorical(logits=model.outputs(x)).entropy().mean()) for model in models
        ]
        found.append(nodes[int(np.argmin(entropies))])
    return found


def outcome(name: str, seed: int) -> dict[str, Any]:
    """One run, and where its newcomers are placed."""
    experiment = {**CASES[name], "seed": seed}
    with TemporaryDirectory() as folder, one_thread():
        run = fedstrata.run(experiment, Path(folder) / "run", quiet=True)
        paths = write_newcomers(experiment, Path(folder))
        by_labels = [each["cluster"] for each in fedstrata.assign(run.folder, paths)]
        try:
            by_inputs = [each["cluster"] for each in fedstrata.assign(run.folder, paths, unlabelled=True)]
        except RecordError:
            by_inputs = [None] * len(paths)
        by_confidence = most_confident(run, paths)
    truth = run.summary["truth"]
    group_of = {node.id: truth[node.members[0]] for node in run.tree if node.split is None and node.members}
    return {
        "seed": seed,
        **{key: run.summary[key] for key in ("clusters", "ari", "acc_client")},
        "labels_right": sum(group_of[node] == at % GROUPS for at, node in enumerate(by_labels)),
        "alike": sum(one == other for one, other in zip(by_inputs, by_labels, strict=True)),
        "refused": by_inputs.count(None),
        "confident_alike": sum(one == other for one, other in zip(by_confidence, by_labels, strict=True)),
    }


def newcomers() -> str:
    """The table of the documentation: the counts of both seeds."""
    held = read(outcomes.RESULTS / "unlabelled_newcomers.json")
    rows = []
    for case in CASES:
        runs = runs_of(held, case)
        shares = [
            " / ".join(f"{100 * run[key] / NEWCOMERS:.1f} %" for run in runs)
            for key in ("labels_right", "alike", "refused", "confident_alike")
        ]
        clusters = " / ".join(str(run["clusters"]) for run in runs)
        rows.append((case, clusters, *shares) if runs else (case, outcomes.MISSING))
    titles = "federation | clusters | right by labels | by inputs as by labels | refused | most confident as by labels"
    return outcomes.table(titles, rows)


def main() -> None:
    """Compute what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS / "unlabelled_newcomers.json")
    given = parser.parse_args()
    for case, keys in CASES.items():
        conditions = {"keys": keys, "newcomers": NEWCOMERS}
        gather(given.out, case, conditions, outcome, SEEDS, given.jobs)


if __name__ == "__main__":
    main()
