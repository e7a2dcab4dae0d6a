"""IFCA on rotated MNIST, in the setting of its paper and in that of CFL-GP's.

    FEDSTRATA_DATA=DATA python -m experiments.published.rotated_mnist --seeds 5

Adds to ``experiments/results/rotated_mnist.json`` what it does not hold yet. So a run can be stopped and called again.

* IFCA: Ghosh, Chung, Yin, Ramchandran, "An efficient framework for clustered federated learning", NeurIPS 2020. All
  images of MNIST are there in each of four rotations, and dealt to 1,200 clients of 200; the authors' code makes ten
  steps with all images of a client a round. It measures test clients of 200 images, which choose a model by these
  images. Here a client's test images are its part of its rotation's test images, 33 or 34, and it has the model of
  lowest loss on its training images.
* CFL-GP: Kim, Kim, de Veciana, "Clustered federated learning via gradient-based partitioning", ICML 2024. The 70,000
  images are cut into eight parts, one for each angle, and these into 16 clients each; 70 % of a client's images are for
  training. A round is one step with one batch. The last number of the authors' notebook is measured before its
  twentieth step, so there are 19 here. Their clients choose a model by its accuracy on a batch; ours by its loss on all
  training images, as the paper of IFCA has it.

Both have a network of 784, 200 and 10 units, steps of 0.1, and pixels from 0 to 1 that are not centred.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from sklearn.metrics import adjusted_rand_score
from torch.nn.functional import affine_grid, grid_sample

import fedstrata
from experiments.strata.federations import gather, read, runs_of
from experiments.tools import outcomes
from experiments.tools.outcomes import listed, spread, table
from fedstrata.data import Split, load_dataset

Samples = tuple[torch.Tensor, torch.Tensor]
Client = tuple[Samples, Samples]

CFLGPS_CLIENTS = 128


def rotated(images: torch.Tensor, degrees: float) -> torch.Tensor:
    """Images, (samples, 1, side, side), turned counterclockwise about their centre, each pixel by its nearest one."""
    angle = torch.deg2rad(torch.tensor(float(degrees)))
    turn = torch.tensor([[angle.cos(), -angle.sin(), 0.0], [angle.sin(), angle.cos(), 0.0]])
    grid = affine_grid(turn.expand(len(images), 2, 3), list(images.shape), align_corners=False)
    return grid_sample(images, grid, mode="nearest", align_corners=False)


def images_of(split: Split) -> Samples:
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
    parts = torch.arange(len(labels)).tensor_split(CFLGPS_CLIENTS)
    for place, own in enumerate(parts):
        own = own[torch.randperm(len(own), generator=generator)]
        images = rotated(inputs[own], angles[place * len(angles) // CFLGPS_CLIENTS])
        trained = int(0.7 * len(own))
        yield (images[:trained], labels[own[:trained]]), (images[trained:], labels[own[trained:]])


def network() -> torch.nn.Module:
    """784, 200 and 10 units."""
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 200), torch.nn.ReLU(), torch.nn.Linear(200, 10))


@dataclass(frozen=True)
class Published:
    """A known accuracy, and how it comes about.

    Attributes:
        accuracy: The mean accuracy of the clients.
        angles: The rotations in degrees, in the order of the clients.
        clients: Makes the clients of these angles with a seed.
        keys: The experiment, without its seed.
    """

    accuracy: float
    angles: tuple[int, ...]
    clients: Callable[[tuple[int, ...], int], Iterator[Client]]
    keys: dict[str, Any]


def _keys(rounds: int, local: dict[str, Any], algorithm: dict[str, Any]) -> dict[str, Any]:
    return {
        "rounds": rounds,
        "data": {"scale": False},
        "local": {"lr": 0.1, **local},
        "engine": {"name": "loop"},
        "algorithm": algorithm,
    }


IFCA = {"name": "ifca", "k": 4}
FOUR = (0, 90, 180, 270)
EIGHT = (0, 15, 90, 105, 180, 195, 270, 275)
ONE_BATCH = {"steps": 1, "batch": 100}

KNOWN = {
    "CFL-GP, FedAvg": Published(0.343, EIGHT, cflgps_clients, _keys(19, ONE_BATCH, {"name": "fedavg"})),
    "CFL-GP, IFCA": Published(0.615, EIGHT, cflgps_clients, _keys(19, ONE_BATCH, IFCA)),
    "IFCA": Published(0.903, FOUR, ifcas_clients, _keys(30, {"steps": 10, "batch": 200}, IFCA)),
}
"""By setting and algorithm, the cheapest first."""

GROUPS = 4
"""The groups that four models can find: the rotations, or pairs of angles that are 15 or 5 degrees apart."""


def one(name: str, seed: int) -> dict[str, Any]:
    """One run."""
    known = KNOWN[name]
    clients = list(known.clients(known.angles, seed))
    with TemporaryDirectory() as folder:
        run = fedstrata.run(
            {**known.keys, "seed": seed}, Path(folder) / "run", clients=clients, model=network, quiet=True
        )
        labels = [run.labels[client] for client in run.clients]
        groups = [place * GROUPS // len(clients) for place in range(len(clients))]
        return {
            "seed": seed,
            "accuracies": [round(record["acc_client"], 4) for record in run.rounds],
            "ari": round(float(adjusted_rand_score(groups, labels)), 4),
            "models": len(set(labels)),
        }


def repeated() -> str:
    """The runs here beside each known number."""
    held = read(outcomes.RESULTS / "rotated_mnist.json")
    rows = list[tuple[str, ...]]()
    for name, known in KNOWN.items():
        found = runs_of(held, name)
        last = [{"accuracy": run["accuracies"][-1]} for run in found]
        each = (listed(last, lambda run: run["accuracy"]), spread(last, "accuracy"))
        groups = (listed(found, lambda run: run["models"]), listed(found, lambda run: run["ari"]))
        rows.append((f"{name}: {known.accuracy}", *each, *groups))
    return table("known | here, by seed | mean | models in use | ARI of four groups", rows)


def main() -> None:
    """Compute what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="how many of each number")
    given = parser.parse_args()
    for (name, known), last in product(KNOWN.items(), range(given.seeds)):
        conditions = {"angles": known.angles, "keys": known.keys}
        gather(outcomes.RESULTS / "rotated_mnist.json", name, conditions, one, range(last + 1), jobs=1)


if __name__ == "__main__":
    main()
