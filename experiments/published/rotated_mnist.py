"""IFCA on rotated MNIST, as its paper and that of CFL-GP publish it.

    FEDSTRATA_DATA=DATA python -m experiments.published.rotated_mnist --seeds 5

Adds to ``experiments/results/rotated_mnist.json`` what it does not hold yet. So a run can be stopped and called again.

* IFCA: Ghosh, Chung, Yin, Ramchandran, "An efficient framework for clustered federated learning", NeurIPS 2020. All
  images of MNIST are there in each of four rotations, and dealt to 1,200 clients of 200; the authors' code makes ten
  steps with all images of a client a round. Here a client's test images are its part of its rotation's test images.
* CFL-GP: Kim, Kim, de Veciana, "Clustered federated learning via gradient-based partitioning", ICML 2024. The 70,000
  images are cut into eight parts, one for each angle, and these into 16 clients each; 70 % of a client's images are for
  training. A round is one step with one batch. The last number of the authors' notebook is measured before its
  twentieth step, so there are 19 here. Their clients choose a model by its accuracy on a batch; ours by its loss on all
  training images, as the paper of IFCA has it.

Both have a network of 784, 200 and 10 units, steps of 0.1, and pixels from 0 to 1 that are not centred.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from sklearn.metrics import adjusted_rand_score
from torch.nn.functional import affine_grid, grid_sample

import fedstrata
from experiments.strata.federations import gather, read
from experiments.tools.outcomes import RESULTS, listed, spread, table
from fedstrata.data import load_dataset

FILE = RESULTS / "rotated_mnist.json"

Samples = tuple[torch.Tensor, torch.Tensor]
Client = tuple[Samples, Samples]


@dataclass(frozen=True)
class Table:
    """A published number, and how it comes about.

    Attributes:
        angles: The rotations in degrees; each is a group of clients.
        keys: What the experiment has beside network and step size.
        published: The mean accuracy of the clients.
    """

    angles: tuple[int, ...]
    keys: dict[str, Any]
    published: float


IFCA = {"name": "ifca", "k": 4}
FOUR = (0, 90, 180, 270)
EIGHT = (0, 15, 90, 105, 180, 195, 270, 275)
ONE_BATCH = {"steps": 1, "batch": 100}

TABLES = {
    "IFCA's paper, IFCA": Table(FOUR, {"rounds": 30, "local": {"steps": 10, "batch": 200}, "algorithm": IFCA}, 0.903),
    "CFL-GP's paper, IFCA": Table(EIGHT, {"rounds": 19, "local": ONE_BATCH, "algorithm": IFCA}, 0.615),
    "CFL-GP's paper, FedAvg": Table(EIGHT, {"rounds": 19, "local": ONE_BATCH, "algorithm": {"name": "fedavg"}}, 0.3425),
}


def rotated(images: torch.Tensor, degrees: float) -> torch.Tensor:
    """Images, (samples, 1, side, side), turned counterclockwise about their centre, each pixel by its nearest one."""
    if degrees % 90 == 0:
        return images.rot90(int(degrees) // 90, dims=(2, 3))
    angle = torch.deg2rad(torch.tensor(float(degrees)))
    turn = torch.tensor([[angle.cos(), -angle.sin(), 0.0], [angle.sin(), angle.cos(), 0.0]])
    grid = affine_grid(turn.expand(len(images), 2, 3), list(images.shape), align_corners=False)
    return grid_sample(images, grid, mode="nearest", align_corners=False)


def images_of(split: str) -> Samples:
    """The images of a file, between 0 and 1, and their classes."""
    file = load_dataset("mnist", split=split)
    return file.inputs / 255, file.labels


def ifcas_clients(angles: tuple[int, ...], seed: int) -> Iterator[Client]:
    """All images in each rotation, dealt at random to 300 clients."""
    generator = torch.Generator().manual_seed(seed)
    (images, labels), (test_images, test_labels) = images_of("train"), images_of("test")
    for degrees in angles:
        dealt = torch.randperm(len(labels), generator=generator).chunk(300)
        tested = torch.arange(len(test_labels)).tensor_split(300)
        for own, measured in zip(dealt, tested, strict=True):
            yield (
                (rotated(images[own], degrees), labels[own]),
                (rotated(test_images[measured], degrees), test_labels[measured]),
            )


def cflgps_clients(angles: tuple[int, ...], seed: int) -> Iterator[Client]:
    """The images of both files in their order, a part for each angle, and 16 clients in each part."""
    generator = torch.Generator().manual_seed(seed)
    inputs, labels = map(torch.cat, zip(images_of("train"), images_of("test"), strict=True))
    parts = torch.arange(len(labels)).tensor_split(16 * len(angles))
    for place, own in enumerate(parts):
        own = own[torch.randperm(len(own), generator=generator)]
        images = rotated(inputs[own], angles[place // 16])
        trained = int(0.7 * len(own))
        yield (images[:trained], labels[own[:trained]]), (images[trained:], labels[own[trained:]])


def network() -> torch.nn.Module:
    """784, 200 and 10 units."""
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 200), torch.nn.ReLU(), torch.nn.Linear(200, 10))


def one(name: str, seed: int) -> dict[str, Any]:
    """One run."""
    asked = TABLES[name]
    clients = list((ifcas_clients if asked.angles == FOUR else cflgps_clients)(asked.angles, seed))
    keys = asked.keys | {
        "seed": seed,
        "data": {"scale": False},
        "local": asked.keys["local"] | {"lr": 0.1},
        "engine": {"name": "loop"},
    }
    with TemporaryDirectory() as folder:
        run = fedstrata.run(keys, Path(folder) / "run", clients=clients, model=network, quiet=True)
        groups = [place * len(asked.angles) // len(clients) for place in range(len(clients))]
        return {
            "seed": seed,
            "accuracies": [round(record["acc_client"], 4) for record in run.rounds],
            "ari": round(float(adjusted_rand_score(groups, list(run.labels.values()))), 4),
            "models": len(set(run.labels.values())),
        }


def repeated() -> str:
    """The runs here beside each published number."""
    rows = list[tuple[str, ...]]()
    for name, asked in TABLES.items():
        found = read(FILE).get(name, {"runs": []})["runs"]
        last = [{"accuracy": run["accuracies"][-1]} for run in found]
        each = (listed(last, lambda run: run["accuracy"]), spread(last, "accuracy"))
        groups = (listed(found, lambda run: run["models"]), listed(found, lambda run: run["ari"]))
        rows.append((f"{name}: {asked.published}", *each, *groups))
    return table("published | here, by seed | mean | models in use | ARI", rows)


def main() -> None:
    """Compute what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="how many of each number")
    given = parser.parse_args()
    for name in reversed(TABLES):
        gather(FILE, name, {"keys": TABLES[name].keys}, one, range(given.seeds), jobs=1)


if __name__ == "__main__":
    main()
