"""FLamby's local training and FedAvg on the heart disease data, in a plain loop with FLamby's random numbers.

    FEDSTRATA_DATA=DATA python -m experiments.heart_twin

Writes ``experiments/results/heart_twin.json``: for each method and seed the accuracy in each hospital. They are the
published ones to the digit. So rows, split, scale and network of ``heart.py`` are FLamby's; its batches are others.
"""

from __future__ import annotations

import json
import os
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from experiments.heart import FOLDER, SEEDS, Clients, of_complete_rows, read

RESULTS = Path(__file__).parent / "results" / "heart_twin.json"

ROUNDS = 15
STEPS = 100
EPOCHS = 50
LR = 0.001


class Batches:
    """The batches of a hospital, one after the other without end."""

    def __init__(self, train: Any) -> None:
        """Begin the first pass, which draws the first random number."""
        self.samples = loader(train)
        self.rest = iter(self.samples)

    def draw(self) -> list[Tensor]:
        """The next batch: inputs (b, features), and who has the disease, (b, 1)."""
        try:
            return next(self.rest)
        except StopIteration:
            self.rest = iter(self.samples)
            return next(self.rest)


def loader(train: Any) -> DataLoader[Any]:
    """The training samples of a hospital in shuffled batches of four."""
    inputs, disease = train
    samples = TensorDataset(torch.tensor(inputs), torch.tensor(disease).float()[:, None])
    return DataLoader(samples, batch_size=4, shuffle=True)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, disease: Tensor) -> None:
    """One step of training."""
    optimizer.zero_grad()
    nn.functional.binary_cross_entropy_with_logits(model(inputs), disease).backward()
    optimizer.step()


def alone(start: nn.Module, train: Any, seed: int) -> nn.Module:
    """The model of one hospital after 50 epochs of Adam."""
    model = deepcopy(start)
    torch.manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    samples = loader(train)
    for _ in range(EPOCHS):
        for inputs, disease in samples:
            step(model, optimizer, inputs, disease)
    return model


def fedavg(start: nn.Module, clients: Clients, seed: int) -> nn.Module:
    """The shared model after 15 rounds of 100 steps of SGD."""
    model = deepcopy(start)
    # FLamby begins the first pass over the data before it sets the seed again.
    batches = [Batches(train) for train, _ in clients.values()]
    sizes = [len(train[1]) for train, _ in clients.values()]
    torch.manual_seed(seed)
    for _ in range(ROUNDS):
        trained = [locally_trained(model, each) for each in batches]
        with torch.no_grad():
            for place, weights in enumerate(model.parameters()):
                updates = [list(local.parameters())[place] - weights for local in trained]
                for size, update in zip(sizes, updates, strict=True):
                    weights.add_(update, alpha=size / sum(sizes))
    return model


def locally_trained(model: nn.Module, batches: Batches) -> nn.Module:
    """The shared model after the steps of one hospital."""
    local = deepcopy(model)
    optimizer = torch.optim.SGD(local.parameters(), lr=LR)
    for _ in range(STEPS):
        step(local, optimizer, *batches.draw())
    return local


def accuracy(model: nn.Module, test: Any) -> float:
    """The share of test patients that a model tells rightly."""
    inputs, disease = test
    with torch.no_grad():
        found = model(torch.tensor(inputs))[:, 0] > 0
    return float((found == torch.tensor(disease).bool()).double().mean())


def main() -> None:
    """Train with all seeds."""
    torch.set_num_threads(1)
    hospitals = read(Path(os.environ["FEDSTRATA_DATA"]) / FOLDER)
    clients = of_complete_rows(hospitals, training="hospital", testing="hospital")
    found: dict[str, dict[str, dict[str, float]]] = {"own": {}, "fedavg": {}}
    for seed in map(str, SEEDS):
        torch.manual_seed(int(seed))
        start = nn.Linear(13, 1)
        models = {name: alone(start, train, int(seed)) for name, (train, _) in clients.items()}
        shared = fedavg(start, clients, int(seed))
        found["own"][seed] = {name: accuracy(models[name], test) for name, (_, test) in clients.items()}
        found["fedavg"][seed] = {name: accuracy(shared, test) for name, (_, test) in clients.items()}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
