"""The network, the data of a site, and how it trains: nothing here knows of clustering."""

from __future__ import annotations

from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SAMPLES = 120
"""Samples of a site: 96 to train on and 24 to test by."""


class Net(nn.Module):
    """A small network for digits of 8 by 8 pixels."""

    def __init__(self) -> None:
        """Make it with random weights."""
        super().__init__()
        self.hidden = nn.Linear(64, 32)
        self.head = nn.Linear(32, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The logits (b, 10) of inputs (b, 64)."""
        outputs: torch.Tensor = self.head(torch.relu(self.hidden(inputs)))
        return outputs


def load_data(site: int) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """The training and test data of a site. Every second site calls a digit d by the number (d + 5) mod 10."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    own = order[site * SAMPLES : (site + 1) * SAMPLES].numpy()
    inputs = torch.from_numpy(digits.data[own]).float() / 16
    labels = torch.from_numpy((digits.target[own] + 5 * (site % 2)) % 10)
    train, test = TensorDataset(inputs[:96], labels[:96]), TensorDataset(inputs[96:], labels[96:])
    return DataLoader(train, batch_size=16, shuffle=True), DataLoader(test, batch_size=16)


def train(model: nn.Module, loader: DataLoader[Any], lr: float) -> float:
    """Train for two epochs; the mean loss of the last step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    loss = torch.tensor(0.0)
    for _ in range(2):
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return loss.item()


def test(model: nn.Module, loader: DataLoader[Any]) -> tuple[float, float]:
    """The mean loss, and the share of samples that are right."""
    loss, right, count = 0.0, 0, 0
    with torch.no_grad():
        for inputs, labels in loader:
            outputs = model(inputs)
            loss += float(nn.functional.cross_entropy(outputs, labels, reduction="sum"))
            right += int((outputs.argmax(dim=1) == labels).sum())
            count += len(labels)
    return loss / count, right / count
