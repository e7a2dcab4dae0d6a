from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedstrata.build.data_warnings.copies import noisy_copies
from fedstrata.build.data_warnings.run_data import RunData
from fedstrata.config import load_experiment
from fedstrata.data import Dataset, channel_statistics, load_dataset
from fedstrata.partition import Partition

CLIENTS = 4

EVERYONE = "0, 1, 2, 3"

Array = NDArray[Any]


def dataset(x: Array, y: Array | None = None, **more: Any) -> Dataset:
    """Float32 samples, (samples, features) or (samples, channels, ...)."""
    inputs = torch.from_numpy(np.asarray(x, dtype=np.float32))
    labels = torch.from_numpy(np.arange(len(x)) % 2 if y is None else y.astype(np.int64))
    mean, std = channel_statistics(inputs)
    return Dataset("mine", inputs, labels, int(labels.max()) + 1, mean, std, **more)


def dealt(samples: int, clients: int = CLIENTS, seed: int = 0) -> Partition:
    """Equal shares in the order of the samples, of which a random fifth is for testing."""
    rng = np.random.default_rng(seed)
    train = []
    test = []
    for own in np.array_split(np.arange(samples), clients):
        held_out = np.sort(rng.choice(own, len(own) // 5, replace=False))
        test.append(held_out)
        train.append(np.setdiff1d(own, held_out))
    turns = np.zeros(clients, dtype=np.int64)
    return Partition(tuple(train), tuple(test), None, turns, np.zeros((clients, 10), dtype=np.int64) + np.arange(10))


def near_copies(dataset: Dataset, partition: Partition) -> str:
    """The clients that a warning names, or nothing."""
    lines = noisy_copies(RunData(load_experiment({}), dataset, partition, 0))
    return "".join(line.removeprefix("samples of client ").split(" look like noisy copies")[0] for line in lines)


def copied(x: Array, copies: int, noise: float, seed: int = 1) -> tuple[Array, Array]:
    """Noisy versions of each sample, in a random order inside each client, and the sample that each is of."""
    rng = np.random.default_rng(seed)
    parts = np.array_split(np.arange(len(x)), CLIENTS)
    source = np.concatenate([rng.permutation(np.repeat(part, copies)) for part in parts])
    return x[source] + noise * x.std(axis=0) * rng.normal(size=(len(source), *x.shape[1:])), source


def normal(samples: int = 400, features: int = 12, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(samples, features))


def digits(samples: int = 800) -> tuple[Array, Array]:
    """Images with pixels of 0 to 1, (samples, 1, 8, 8), and their classes."""
    known = load_dataset("digits")
    return known.inputs[:samples].numpy() / 255, known.labels[:samples].numpy()


@pytest.mark.parametrize("copies", [2, 3, 6])
@pytest.mark.parametrize("noise", [0.02, 0.1, 0.2])
def test_noisy_copies_of_each_sample_are_found(copies: int, noise: float) -> None:
    x, source = copied(normal(), copies, noise)
    found = near_copies(dataset(x, source % 2), dealt(len(x)))
    assert found == EVERYONE


@pytest.mark.parametrize("noise", [0.02, 0.1])
def test_noisy_copies_of_images_are_found(noise: float) -> None:
    x, y = digits()
    several, source = copied(x, 3, noise)
    found = near_copies(dataset(several, y[source]), dealt(len(several)))
    assert found == EVERYONE
    assert near_copies(dataset(x, y), dealt(len(x))) == ""


def test_clients_with_copies_of_all_or_half_of_their_samples_are_found() -> None:
    x = normal(480)
    x[240:360] = np.repeat(x[240:300], 2, axis=0) + normal(120) / 20
    x[120:180] = np.repeat(x[120:150], 2, axis=0) + normal(60) / 20
    assert near_copies(dataset(x, np.zeros(480)), dealt(480)) == "1, 2"


def clean_tables() -> dict[str, Array]:
    """Tables of distinct or naturally equal samples, (800, features)."""
    rng = np.random.default_rng(4)
    clusters = 3 * rng.normal(size=(10, 6))
    return {
        **{f"{features} normal features": normal(800, features) for features in (1, 2, 3, 8, 30)},
        "clusters": clusters[rng.integers(0, 10, 800)] + rng.normal(size=(800, 6)),
        "tight clusters": 30 * clusters[np.arange(800) % 2] + rng.normal(size=(800, 6)),
        "one-hot": np.eye(12)[rng.integers(0, 12, 800)],
        "binary": rng.integers(0, 2, size=(800, 6)),
        "ordinal": rng.integers(0, 5, size=(800, 4)),
        "counts": rng.poisson(20, size=(800, 3)),
        "skewed counts": rng.geometric(0.2, size=(800, 2)),
        "rounded": rng.normal(size=(800, 4)).round(1),
        "numbers and categories": np.hstack([rng.normal(size=(800, 3)), rng.integers(0, 2, size=(800, 8))]),
        "mostly zero": np.where(rng.random((800, 5)) < 0.9, 0, rng.integers(1, 1000, size=(800, 5))),
        "skewed": rng.lognormal(size=(800, 6)) ** 2,
        "on a curve": np.sin(np.outer(rng.random(800), np.arange(1, 21)) * 2 * np.pi + np.arange(20)),
        "constant": np.zeros((800, 3)),
        "equal images": np.zeros((800, 1, 4, 4)),
    }


@pytest.mark.parametrize("name", clean_tables())
def test_independent_samples_are_no_copies(name: str) -> None:
    x = clean_tables()[name]
    assert near_copies(dataset(x), dealt(len(x))) == ""


def test_small_classes_that_are_far_apart_are_no_copies() -> None:
    """Each client has four samples of each of 20 classes, close to each other."""
    y = np.arange(320) % 20
    x = 40 * normal(20)[y] + normal(320)
    assert near_copies(dataset(x, y), dealt(320)) == ""


def test_copies_that_a_unit_keeps_together_are_none_and_others_are() -> None:
    x, source = copied(normal(), 3, 0.05)
    partition = dealt(len(x))
    columns = {"source": source, "position": np.arange(len(x))}
    held = dataset(x, source % 2, columns=columns)
    assert near_copies(replace(held, unit="source"), partition) == ""
    assert near_copies(replace(held, unit="position"), partition) == EVERYONE
