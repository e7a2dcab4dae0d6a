"""Federated averaging as tutorials write it: what the loop engine is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, max_pool2d, relu
from torch.utils.data import DataLoader, Dataset, TensorDataset


class Images(Dataset[tuple[Tensor, Tensor]]):
    """Images that are made floating point and normalised one by one, when they are asked for, as torchvision does.

    Args:
        images: (samples, channels, height, width) uint8.
        labels: (samples,).
        mean: of each channel, in [0, 1].
        std: of each channel.
    """

    def __init__(self, images: Tensor, labels: Tensor, mean: Sequence[float], std: Sequence[float]) -> None:
        """Keep the images as they are."""
        self._images, self._labels = images, labels
        self._mean, self._std = (torch.tensor(part).view(-1, 1, 1) for part in (mean, std))

    def __len__(self) -> int:
        """Number of images."""
        return len(self._labels)

    def __getitem__(self, sample: int) -> tuple[Tensor, Tensor]:
        """One image, normalised, and its label."""
        return (self._images[sample].float() / 255 - self._mean) / self._std, self._labels[sample]


class TextbookCNN(nn.Module):
    """The papers' CNN as one writes it down: convolution, ReLU, pooling, twice; one linear layer.

    Args:
        channels: of an image, of the first and of the second convolution; by default the CNN for CIFAR-10.
        side: of an image in pixels.
    """

    def __init__(self, channels: tuple[int, int, int] = (3, 6, 16), side: int = 32) -> None:
        """Make the layers."""
        super().__init__()
        first, second, third = channels
        self.conv1, self.conv2 = nn.Conv2d(first, second, 5), nn.Conv2d(second, third, 5)
        self.linear = nn.Linear(third * (((side - 4) // 2 - 4) // 2) ** 2, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (samples, 10) of images (samples, channels, side, side)."""
        features = max_pool2d(relu(self.conv1(images)), 2)
        features = max_pool2d(relu(self.conv2(features)), 2)
        logits: Tensor = self.linear(features.flatten(1))
        return logits


def textbook_scores(model: nn.Module, clients: Sequence[Client]) -> list[float]:
    """The accuracy of a network on the samples of each client."""
    model.eval()
    scores = []
    for client in clients:
        loader: DataLoader[tuple[Tensor, ...]] = DataLoader(client, batch_size=256)
        with torch.no_grad():
            right = sum(int((model(inputs).argmax(1) == labels).sum()) for inputs, labels in loader)
        scores.append(right / len(client))
    return scores


Client = TensorDataset | Images
"""The samples of a client: tensors that were normalised beforehand, or images that are normalised when asked for."""


def textbook_round(
    model: nn.Module, clients: Sequence[Client], epochs: int, batch: int, lr: float
) -> dict[str, Tensor]:
    """One round: a deep copy, a DataLoader and an optimiser for every client, then the mean of the state dicts.

    Args:
        model: the global network; not changed.
        clients: the samples of each.
        epochs: passes over a client's data.
        batch: samples per step.
        lr: step size of plain SGD.

    Returns:
        The averaged state dict.
    """
    states, total = [], sum(len(client) for client in clients)
    for client in clients:
        local = deepcopy(model)
        optimizer = torch.optim.SGD(local.parameters(), lr=lr)
        loader: DataLoader[tuple[Tensor, ...]] = DataLoader(client, batch_size=batch, shuffle=True)
        local.train()
        for _ in range(epochs):
            for inputs, labels in loader:
                optimizer.zero_grad()
                cross_entropy(local(inputs), labels).backward()
                optimizer.step()
        states.append(deepcopy(local.state_dict()))
    shares = [len(client) / total for client in clients]
    return {
        name: sum((share * state[name] for share, state in zip(shares, states, strict=True)), torch.tensor(0.0))
        for name in states[0]
    }
