"""The data of one client, as its device has them and as a simulator would have them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedstrata import data
from fedstrata.data import Dataset
from fedstrata.engine import ClientData
from fedstrata.errors import DataError
from fedstrata.flower.terms import Samples, Terms
from fedstrata.models import side
from fedstrata.partition import hold_out, holdout_rng

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Portion:
    """A partition in which only one of n clients holds anything: all that `ClientData` reads of a `Partition`.

    Attributes:
        train: positions of each client's training samples, (n,).
        test: positions of each client's test samples, (n,).
        turns: none: samples come as the client sees them, (n,).
        relabel: nothing, likewise, (n, classes).
    """

    train: tuple[Indices, ...]
    test: tuple[Indices, ...]
    turns: Indices
    relabel: Indices


def holdings_of(path: Path, client: int, terms: Terms) -> ClientData:
    """Read the data of one client, who is called what the run calls it.

    Args:
        path: a ``.npz`` file, or a folder of Parquet; without a test split a share of it is held out.
        client: its id.
        terms: of the run.

    Raises:
        DataError: when the data are not there or do not fit.
    """
    train = _fitting(data.load(str(path.resolve())), path, terms)
    test = _fitting(data.load(str(path.resolve()), split="test"), path, terms) if _has_test(path) else None
    if test is None:
        held = _held_out(train, client, terms)
        return _client_data(train, np.flatnonzero(~held), np.flatnonzero(held), client, terms)
    columns = {name: np.concatenate([train.columns[name], test.columns[name]]) for name in train.columns}
    both = replace(
        train,
        inputs=torch.cat([train.inputs, test.inputs]),
        labels=torch.cat([train.labels, test.labels]),
        columns=columns,
    )
    return _client_data(both, np.arange(len(train)), np.arange(len(train), len(both)), client, terms)


def no_client_data(terms: Terms) -> ClientData:
    """What the server has of the clients' data."""
    samples = terms.samples
    dtype = torch.uint8 if samples.dtype == "uint8" else torch.float32
    nothing, label = torch.zeros(1, *samples.shape, dtype=dtype), torch.zeros(1, dtype=torch.int64)
    dataset = Dataset("nothing", nothing, label, samples.classes, samples.mean, samples.std)
    return _client_data(dataset, np.arange(0), np.arange(0), 0, terms)


def _has_test(path: Path) -> bool:
    return bool(data.find(str(path.resolve())).test)


def _client_data(dataset: Dataset, train: Indices, test: Indices, client: int, terms: Terms) -> ClientData:
    empty = [np.arange(0)] * terms.clients
    portion = Portion(
        (*empty[:client], train, *empty[client + 1 :]),
        (*empty[:client], test, *empty[client + 1 :]),
        np.zeros(terms.clients, dtype=np.int64),
        np.tile(np.arange(terms.samples.classes), (terms.clients, 1)),
    )
    # A Partition gives every client something; of the others' data a device has none.
    return ClientData(dataset, portion, terms.seed)


def _fitting(dataset: Dataset, path: Path, terms: Terms) -> Dataset:
    """The data set with what all clients have in common, if it fits."""
    samples, wanted = terms.samples, side(terms.model)
    if wanted is not None and dataset.inputs.dtype == torch.uint8:
        dataset = dataset.resized(wanted)
    found = str(dataset.inputs.dtype).removeprefix("torch.")
    if (dataset.shape, found) != (samples.shape, samples.dtype):
        raise DataError(
            f"{path}: expected samples of {samples.dtype} {samples.shape}, found {found} {dataset.shape}; "
            "give this client's node data of the federation's kind"
        )
    labels = _numbered(dataset, path, samples)
    unit = samples.unit or None
    if unit is not None and unit not in dataset.columns:
        raise DataError(f"{path}: expected the column {unit}, found {', '.join(dataset.columns) or 'none'}")
    return replace(
        dataset,
        labels=labels,
        classes=samples.classes,
        mean=samples.mean,
        std=samples.std,
        columns={} if unit is None else {unit: dataset.columns[unit]},
        unit=unit,
        class_names=(),
    )


def _numbered(dataset: Dataset, path: Path, samples: Samples) -> torch.Tensor:
    """Classes by the federation's numbers, whatever classes this client's files happen to hold."""
    if strange := [name for name in dataset.class_names if samples.names and name not in samples.names]:
        raise DataError(f"{path}: expected classes of {', '.join(samples.names)}; found {', '.join(strange)}")
    if dataset.class_names and samples.names:
        return torch.tensor([samples.names.index(name) for name in dataset.class_names])[dataset.labels]
    if int(dataset.labels.max()) >= samples.classes:
        raise DataError(f"{path}: expected classes 0 to {samples.classes - 1}, found {int(dataset.labels.max())}")
    return dataset.labels


def _held_out(dataset: Dataset, client: int, terms: Terms) -> NDArray[np.bool_]:
    """Which samples are the client's test split; drawn as `partition_samples` draws that of a simulated client."""
    return hold_out(len(dataset), terms.samples.test, holdout_rng(terms.seed, client), dataset.units)
