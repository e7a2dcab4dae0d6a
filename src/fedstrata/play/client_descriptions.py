"""What a simulation knows of its clients' data.

Their classes and their mean inputs are for the page of the run. By their digest a run that is resumed knows them again.
"""

from __future__ import annotations

import hashlib
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

from fedstrata.build.run_setup import RunSetup
from fedstrata.engine import ClientData
from fedstrata.records.schema import ClientDescriptions, ClientEntry, DataRecord

MOST_SAMPLES = 200
"""Samples of a client that its mean input is computed from. More would not change what a picture shows."""

MOST_PIXELS = 32
"""Height and width of a mean image at most; larger ones are averaged over blocks."""

MOST_VALUES = 4096
"""Values of a mean input at most; of larger ones there is none."""

MOST_NUMBERS = 2**24
"""Values of the mean inputs of all clients at most. Where they would be more, there are none."""

_ROWS_AT_ONCE = 4096
"""Rows of a table whose mean is taken at once."""

_NUMBERS_AT_ONCE = 2**20
"""Numbers of inputs that are read for a digest at once: 4 MB of float32."""


def describe_clients(client_data: ClientData) -> ClientDescriptions:
    """Describe the training data of every client, as it sees them before the first round.

    No algorithm is given this: it is for the reader of the page, who asks what distinguishes the clusters.
    """
    dataset = client_data.dataset
    clients = range(len(client_data))
    # Where networks learn something else, all samples are of one class.
    classes = dataset.classes if dataset.targets is None else 1
    names = dataset.class_names if dataset.targets is None else ("all samples",)
    first = _mean_input(client_data, 0)
    few = first is not None and first.size * len(client_data) <= MOST_NUMBERS
    # Whether there is a mean depends on the form of the samples alone.
    means = (_mean_input(client_data, client) for client in clients)
    mean_inputs = np.stack([mean for mean in means if mean is not None]) if few else None
    prepared = dataset.preparation
    features = prepared.outputs if prepared is not None and prepared.features else ()
    if mean_inputs is not None and features:
        mean_inputs = _in_deviations(client_data, mean_inputs)
    return ClientDescriptions(
        class_counts=_class_counts(client_data, classes),
        mean_inputs=mean_inputs,
        class_names=names,
        feature_names=features,
    )


def _in_deviations(client_data: ClientData, means: NDArray[np.float32]) -> NDArray[np.float32]:
    """Means of features (n, c) in standard deviations from the mean of all training samples, however they are read."""
    rows = torch.cat([client_data.train(client) for client in range(len(client_data))])
    total = squares = torch.zeros(means.shape[1], dtype=torch.float64)
    for inputs, _ in client_data.batches(rows, _ROWS_AT_ONCE):
        total = total + inputs.double().sum(dim=0)
        squares = squares + inputs.double().square().sum(dim=0)
    mean = total / len(rows)
    std = (squares / len(rows) - mean.square()).clamp(min=0).sqrt()
    found: NDArray[np.float32] = ((torch.from_numpy(means) - mean) / std.where(std > 0, 1.0)).float().numpy()
    return found


def digest_clients(client_data: ClientData) -> str:
    """Return a SHA-256 of the samples of all clients before any change of data.

    Of pixels only the form has a part in it: another version of a decoder may round them in another way.
    """
    digests = (_digest(client_data, client) for client in range(len(client_data)))
    return hashlib.sha256(b"".join(digests)).hexdigest()


def _digest(client_data: ClientData, client: int) -> bytes:
    """The SHA-256 of what a client has to train on, to validate and to test by."""
    dataset = client_data.dataset
    decoded = dataset.inputs.dtype == torch.uint8
    validation = client_data.held_out(client, "validation") if client_data.validates else torch.arange(0)
    splits = (client_data.train(client), validation, client_data.test(client))
    found = hashlib.sha256(repr((tuple(dataset.inputs.shape[1:]), [len(index) for index in splits])).encode())
    for index in splits:
        answers = client_data.labels(index) if dataset.targets is None else dataset.targets[index]
        found.update(answers.contiguous().numpy().tobytes())
        if decoded:
            continue
        for part in index.split(max(1, _NUMBERS_AT_ONCE // prod(dataset.shape))):
            found.update(dataset.gather(part).contiguous().numpy().tobytes())
    return found.digest()


def _class_counts(client_data: ClientData, classes: int) -> NDArray[np.int64]:
    """The training samples of each class that every client has, (n, classes)."""
    n = len(client_data)
    index = client_data.train(n)
    labels = client_data.labels(index) if client_data.dataset.targets is None else torch.zeros_like(index)
    counts = torch.bincount(client_data.owner[index] * classes + labels, minlength=n * classes)
    return np.asarray(counts.reshape(n, classes).numpy())


def _mean_input(client_data: ClientData, client: int) -> NDArray[np.float32] | None:
    """The mean of some of a client's inputs: an image (channels, height, width), or a number for each channel."""
    inputs, _ = client_data.samples(client_data.train(client, max_samples=MOST_SAMPLES))
    if not inputs.is_floating_point():  # The mean of two words is no word.
        return None
    mean = inputs.mean(dim=0)
    if mean.ndim == 3 and max(mean.shape[1:]) > MOST_PIXELS:
        mean = torch.nn.functional.adaptive_avg_pool2d(mean, MOST_PIXELS)
    elif mean.ndim == 2:  # a signal: its level in each channel
        mean = mean.mean(dim=1)
    return None if mean.numel() > MOST_VALUES else np.asarray(mean.numpy(), dtype=np.float32)


def data_record(setup: RunSetup, network: list[float], *, own_data: bool) -> DataRecord:
    """Who the clients are, what looks wrong with their data, and by what data and network are known again.

    Args:
        setup: What the run is built from.
        network: The `known_outputs` of the network.
        own_data: Whether the data are the user's own, which may change.
    """
    held = setup.client_data
    # On a network, the clients alone have data.
    digest = digest_clients(held) if own_data and not setup.on_devices else ""
    clients = [
        # On a network, only the clients know how many samples they have.
        ClientEntry(id=id, name=name, train=len(held.train(id)) or None, test=len(held.test(id)) or None)
        for id, name in enumerate(setup.names)
    ]
    return DataRecord(
        clients=clients,
        warnings=list(setup.warnings),
        inputs=setup.inputs,
        network=network,
        frozen=setup.server.problem.layout.frozen,
        digest=digest,
    )
