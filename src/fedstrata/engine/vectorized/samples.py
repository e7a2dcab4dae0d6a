"""Samples where they are computed on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fedstrata.engine.client_data import ClientData

BLOCK = 4096
"""Samples that are normalised together."""


class SampleSource(Protocol):
    """Whoever has samples."""

    def samples(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs (s, ...) float32 and labels (s,) of some samples."""


class Resident:
    """All samples that clients hold, normalised once and kept on a device.

    Args:
        client_data: of all clients.
        device: where they are kept.
    """

    def __init__(self, client_data: ClientData, device: torch.device) -> None:
        """Copy the samples."""
        clients = range(len(client_data))
        index = torch.cat([client_data.train(len(client_data)), *(client_data.test(client) for client in clients)])
        self._place = torch.full((int(index.max()) + 1,), -1).scatter_(0, index, torch.arange(len(index))).to(device)
        blocks = [client_data.samples(block) for block in index.split(BLOCK)]
        self._inputs = torch.cat([_stored(inputs).to(device) for inputs, _ in blocks])
        self._labels = torch.cat([labels.to(device) for _, labels in blocks])

    def samples(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs (s, ...) float32 and labels (s,) of some samples, by an index on the device."""
        place = self._place[index]
        inputs = self._inputs.index_select(0, place)
        return inputs.permute(0, 3, 1, 2) if inputs.ndim == 4 else inputs, self._labels[place]


def _stored(inputs: Tensor) -> Tensor:
    """Images with their channels last, so that rows of the table are copied whole."""
    return inputs.permute(0, 2, 3, 1).contiguous() if inputs.ndim == 4 else inputs


_RESIDENT: WeakKeyDictionary[ClientData, dict[torch.device, Resident]] = WeakKeyDictionary()


def sample_source(client_data: ClientData, device: torch.device) -> SampleSource:
    """The samples of some client_data near a device; a copy on an accelerator is made once for all engines."""
    if device.type == "cpu":
        return client_data
    copies = _RESIDENT.setdefault(client_data, {})
    if device not in copies:
        copies[device] = Resident(client_data, device)
    return copies[device]


def read_samples(sources: Sequence[SampleSource], index: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs (g, b, ...) and labels (g, b) of some clients.

    Args:
        sources: who has the samples of each client, (g,); neighbours with the same one are read together.
        index: their samples, (g, b).
    """
    runs = [(source, len(list(run))) for source, run in groupby(sources)]
    parts = index.split([length for _, length in runs])
    found = [source.samples(part.flatten()) for (source, _), part in zip(runs, parts, strict=True)]
    inputs, labels = found[0] if len(found) == 1 else map(torch.cat, zip(*found, strict=True))
    return inputs.unflatten(0, index.shape), labels.unflatten(0, index.shape)
