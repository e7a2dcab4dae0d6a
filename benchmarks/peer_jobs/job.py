"""The job that every library does: its network, its data and what is reported. Needs torch and numpy alone."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Job:
    """Federated averaging over all clients in every round.

    Attributes:
        network: A name of ``NETWORKS``.
        rounds: The number of rounds.
        batch: The samples of a step of SGD; every client trains for one epoch.
        lr: The learning rate.
        folder: Where the data and the first model lie.
    """

    network: str
    rounds: int
    batch: int
    lr: float
    folder: str

    def module(self) -> nn.Sequential:
        """The network with the weights that every library begins with."""
        module = NETWORKS[self.network]()
        state = torch.load(Path(self.folder) / "first.pt")
        module.load_state_dict(dict(zip(module.state_dict(), state, strict=True)))
        return module

    def data(self) -> Data:
        """All clients' samples."""
        with np.load(Path(self.folder) / "data.npz") as held:
            return Data(*(torch.from_numpy(held[name]) for name in ("x", "y", "test_x", "test_y")))


@dataclass(frozen=True)
class Data:
    """Samples of equally many clients, normalised.

    Attributes:
        x: Training images, (clients, samples, 1, 28, 28) float32.
        y: Their labels, (clients, samples) int64.
        test_x: Test images of all clients, (samples, 1, 28, 28) float32.
        test_y: Their labels, (samples,) int64.
    """

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor


@cache
def data_of(job: Job) -> Data:
    """All clients' samples, read once by each process."""
    return job.data()


def cnn() -> nn.Sequential:
    """HiCFL, Table I: the network for MNIST."""
    return nn.Sequential(
        nn.Conv2d(1, 20, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(20, 50, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(800, 10),
    )


def mlp() -> nn.Sequential:
    """The "2NN" of McMahan et al., AISTATS 2017."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)
    )


def small() -> nn.Sequential:
    """One hidden layer of 64 units."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


NETWORKS = {"small": small, "mlp": mlp, "cnn": cnn}


def accuracy(module: nn.Module, data: Data) -> float:
    """The share of all test images that a model classifies correctly, in batches of 1,000."""
    module.eval()
    with torch.inference_mode():
        found = [module(images).argmax(1) for images in data.test_x.split(1000)]
    return (torch.cat(found) == data.test_y).float().mean().item()


class Report:
    """When the rounds ended, and how good the model was after each of them."""

    def __init__(self) -> None:
        """Note nothing yet."""
        self._ends = list[float]()
        self._accuracies = list[float]()

    def round_ended(self, accuracy: float) -> None:
        """Note a round, after the model was tested."""
        self._ends.append(perf_counter())
        self._accuracies.append(accuracy)

    def show(self, version: str) -> None:
        """Print what `compare` reads: the seconds of all rounds but the first, and the accuracies."""
        seconds = np.diff(self._ends).tolist()
        print(json.dumps({"version": version, "seconds": seconds, "accuracies": self._accuracies}), flush=True)


def given_job() -> Job:
    """The job that the command line names, with the threads of a step."""
    torch.set_num_threads(int(sys.argv[2]))
    return Job(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
