"""NIID-Bench as the baseline of Flower publishes it: one model of ten clients, on the common test set of the data.

    FEDSTRATA_DATA=DATA python -m experiments.published.niid_bench --seeds 3 --jobs 2

Adds to ``experiments/results/niid_bench.json`` what it does not hold yet, all cells of a seed before the next seed. So
a run can be stopped and called again. Li, Diao, Chen, He, "Federated learning on non-IID data silos: an experimental
study", ICDE 2022: all ten clients in each of 50 rounds, 10 local epochs, batch 64, SGD .01 with momentum .9 and weight
decay 1e-5, images of CIFAR-10 cropped and flipped; the number is the best accuracy of all rounds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import product
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import fedstrata
from experiments.strata.federations import read, runs_of, write
from experiments.tools import outcomes
from experiments.tools.outcomes import MISSING, table
from fedstrata.data import load_dataset
from fedstrata.partition.ungrouped import dirichlet

CLIENTS = 10
ROUNDS = 50

Ints = NDArray[np.int64]
Divide = Callable[[Ints, np.random.Generator], tuple[Ints, ...]]
"""Divides samples of these classes, (samples,), over the clients: the positions of each client's."""


@dataclass(frozen=True)
class Cell:
    """A cell of the published table.

    Attributes:
        data: The data set.
        division: How it is divided, by its name in `DIVISIONS`.
        algorithm: The table of the algorithm.
        published: The published accuracy in percent, and its standard deviation over three seeds where there is one.
    """

    data: str
    division: str
    published: tuple[float, float | None]
    algorithm: str = "fedavg"

    @property
    def name(self) -> str:
        """Return its name in the results."""
        return f"{self.data}, {self.division}, {self.algorithm}"


CELLS = (
    Cell("fashion_mnist", "Dirichlet(0.5)", (88.09, 0.29)),
    Cell("fashion_mnist", "Dirichlet(0.5)", (88.15, None), "fedprox"),
    Cell("fashion_mnist", "IID", (89.23, 0.45)),
    Cell("fashion_mnist", "two labels", (78.10, 2.51)),
    Cell("fashion_mnist", "three labels", (82.43, 1.52)),
    Cell("mnist", "Dirichlet(0.5)", (98.89, 0.07)),
    Cell("mnist", "two labels", (96.86, 0.30)),
    Cell("cifar10", "Dirichlet(0.5)", (62.47, 0.43)),
    Cell("cifar10", "IID", (71.32, 0.33)),
)

ALGORITHMS: dict[str, dict[str, Any]] = {"fedavg": {"name": "fedavg"}, "fedprox": {"name": "fedprox", "mu": 0.01}}


class Network(nn.Module):
    """Two 5 x 5 convolutions of 6 and 16 channels, and layers of 120 and 84 units.

    Args:
        shape: The shape of an image.
        classes: The number of classes.
    """

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        """Make the layers."""
        super().__init__()
        channels, side, _ = shape
        left = ((side - 4) // 2 - 4) // 2
        self.layers = nn.Sequential(
            *(nn.Conv2d(channels, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(16 * left**2, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes)),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits, (samples, classes)."""
        logits: torch.Tensor = self.layers(images)
        return logits


def by_labels(count: int) -> Divide:
    """Give every client some classes, one of them its own number, and divide a class equally over those who have it."""

    def divide(labels: Ints, rng: np.random.Generator) -> tuple[Ints, ...]:
        classes = int(labels.max()) + 1
        owned = [
            {client % classes, *rng.permutation(np.delete(np.arange(classes), client % classes))[: count - 1].tolist()}
            for client in range(CLIENTS)
        ]
        parts: list[list[Ints]] = [[] for _ in owned]
        for label in range(classes):
            owners = [client for client, own in enumerate(owned) if label in own]
            samples = rng.permutation(np.flatnonzero(labels == label))
            for client, part in zip(owners, np.array_split(samples, len(owners)), strict=True):
                parts[client].append(part)
        return tuple(np.concatenate(part) for part in parts)

    return divide


DIVISIONS: dict[str, Divide] = {
    "IID": lambda labels, rng: tuple(np.array_split(rng.permutation(len(labels)), CLIENTS)),
    "Dirichlet(0.5)": lambda labels, rng: dirichlet(labels, CLIENTS, 0.5, rng),
    "two labels": by_labels(2),
    "three labels": by_labels(3),
}


def one(name: str, seed: int) -> dict[str, Any]:
    """One run of a cell."""
    cell = next(cell for cell in CELLS if cell.name == name)
    train, test = (load_dataset(cell.data, split=split) for split in ("train", "test"))
    parts = DIVISIONS[cell.division](train.labels.numpy(), np.random.default_rng(seed))
    common = (test.inputs, test.labels)
    clients = [((train.inputs[part], train.labels[part]), common) for part in map(torch.from_numpy, parts)]
    keys = {
        "seed": seed,
        "rounds": ROUNDS,
        "local": {"epochs": 10, "batch": 64, "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-5}
        | ({"transform": "crop_flip"} if cell.data == "cifar10" else {}),
        "engine": {"name": "loop"},
        "algorithm": ALGORITHMS[cell.algorithm],
    }
    with TemporaryDirectory() as folder:
        run = fedstrata.run(keys, Path(folder) / "run", clients=clients, model=Network, quiet=True)
        accuracies = [round(record["acc_client"], 6) for record in run.rounds]
    return {"seed": seed, "best": max(accuracies), "accuracies": accuracies}


def repeated() -> str:
    """The runs here beside each published cell, in percent."""
    held = read(outcomes.RESULTS / "niid_bench.json")
    rows = list[tuple[str, ...]]()
    for cell in CELLS:
        best = [100 * run["best"] for run in runs_of(held, cell.name)]
        mean, deviation = cell.published
        published = f"{mean:.2f}" if deviation is None else f"{mean:.2f} ± {deviation:.2f}"
        seeds = ", ".join(f"{value:.2f}" for value in best) or MISSING
        apart = f"{np.mean(best) - mean:+.2f}" if best else MISSING
        rows.append((f"{cell.name}: {published}", seeds, apart))
    return table("published, % | here, by seed | difference of the means", rows)


def main() -> None:
    """Compute what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="how many of each cell")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    given = parser.parse_args()
    cells = {cell.name: cell for cell in CELLS}
    file = outcomes.RESULTS / "niid_bench.json"
    known = {cell.name: read(file).get(cell.name, {"rounds": ROUNDS, "runs": []}) for cell in CELLS}
    missing = [
        (cell.name, seed)
        for seed, cell in product(range(given.seeds), CELLS)
        if seed not in (run["seed"] for run in known[cell.name]["runs"])
    ]
    with ProcessPoolExecutor(given.jobs) as pool:
        tasks = {pool.submit(one, name, seed): name for name, seed in missing}
        for count, task in enumerate(as_completed(tasks), start=1):
            name = tasks[task]
            known[name]["runs"] = sorted([*known[name]["runs"], task.result()], key=itemgetter("seed"))
            write(file, name, known[name])
            best, published = 100 * task.result()["best"], cells[name].published[0]
            print(f"{name}: {best:.2f} %, published {published:.2f} %; {count} of {len(missing)}", flush=True)


if __name__ == "__main__":
    main()
