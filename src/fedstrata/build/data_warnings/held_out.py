"""What looks wrong with the samples that clients are tested and validated on."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

import numpy as np

from fedstrata.build.data_warnings.names import first_few, name_of
from fedstrata.config import Experiment
from fedstrata.config.tables import OWN_TEST
from fedstrata.data import Dataset, find, has_own_test
from fedstrata.partition import Partition


def held_out_warnings(experiment: Experiment, dataset: Dataset, partition: Partition, own_test: int) -> Iterator[str]:
    """Yield what looks wrong with the samples that nobody trains on.

    Args:
        experiment: The experiment.
        dataset: The samples of all clients; the last ones are the test samples of the data set's own, if used.
        partition: The samples of each client.
        own_test: The number of test samples of the data set's own that are used.
    """
    yield from _unused_test_samples(experiment, dataset, own_test)
    yield from _test_samples_of_nobody(dataset, partition, own_test)
    yield from _untested_classes(experiment, dataset, partition, own_test)
    yield from _untrained_classes(dataset, partition, own_test)
    yield from _classes_on_one_side(dataset, partition, own_test)
    yield from _unknown_scores(experiment, partition)


def _unused_test_samples(experiment: Experiment, dataset: Dataset, own_test: int) -> Iterator[str]:
    """Test samples of the user that no client is tested on. Those of known data sets are documented as unused."""
    location = find(experiment.data.name, experiment.data.root)
    if own_test or location.info is not None or not has_own_test(location):
        return
    yield (
        f"{dataset.name} has test samples of its own, and they are not used: data.test = {experiment.data.test} holds "
        f"out a share of each client's training samples. Set data.test = {OWN_TEST!r} to use them"
    )


def _test_samples_of_nobody(dataset: Dataset, partition: Partition, own_test: int) -> Iterator[str]:
    """Test samples of the user that no client has: of a client or class without training samples."""
    if not own_test:
        return
    unused = own_test - sum(map(len, partition.test))
    if unused:
        yield (
            f"{unused:,} of the {own_test:,} test samples of {dataset.name} are not used: no client of this run has "
            "training samples of their client or class"
        )


def _untested_classes(experiment: Experiment, dataset: Dataset, partition: Partition, own_test: int) -> Iterator[str]:
    """Clients whose few held-out units leave out classes that they train on."""
    units = dataset.units
    if units is None or own_test:
        return
    labels = dataset.labels.numpy()
    lacking = []
    needed = 0.0
    for client, (train, test) in enumerate(zip(partition.train, partition.test, strict=True)):
        for label in np.setdiff1d(labels[train], labels[test]):
            of_class = len(np.unique(units[train][labels[train] == label]))
            # A class with a single unit is either trained on or tested.
            if of_class > 1:
                lacking.append(name_of(partition, client))
                needed = max(needed, 1 / of_class)
    clients = list(dict.fromkeys(lacking))
    enough = ceil(100 * needed) / 100
    # Where units have samples of several classes, no share promises that each class is among the held-out ones.
    remedy = f"Set data.test = {enough}" if enough > experiment.data.held_out_share else "Raise data.test"
    if clients:
        yield (
            f"{len(clients)} of {len(partition.train)} clients ({first_few(clients)}) are not tested on some "
            f"classes that they train on: data.test = {experiment.data.test} holds out few whole values of "
            f"data.unit = {dataset.unit!r}. Their scores are about the other classes. {remedy}, or supply test "
            "samples of your own"
        )


def _untrained_classes(dataset: Dataset, partition: Partition, own_test: int) -> Iterator[str]:
    """Clients that are tested on classes that they do not train on, because whole units are held out."""
    if dataset.units is None or own_test:
        return
    labels = dataset.labels.numpy()
    pairs = enumerate(zip(partition.train, partition.test, strict=True))
    lacking = [client for client, (train, test) in pairs if len(np.setdiff1d(labels[test], labels[train]))]
    if lacking:
        names = [name_of(partition, client) for client in lacking]
        yield (
            f"{len(lacking)} of {len(partition.train)} clients ({first_few(names)}) are tested on classes that they do "
            f"not train on: they have one value of data.unit = {dataset.unit!r} of such a class, and it is held out as "
            "a whole. Collect more of them, supply test samples of your own, or name a finer column in data.unit"
        )


def _classes_on_one_side(dataset: Dataset, partition: Partition, own_test: int) -> Iterator[str]:
    """Classes that clients are tested on and nobody trains on, and those of which the user has no test sample."""
    if not own_test or dataset.targets is not None:
        return
    train, test = (dataset.labels.numpy()[np.concatenate(parts)] for parts in (partition.train, partition.test))
    names = np.array(dataset.class_names or [str(label) for label in range(dataset.classes)])
    untrained = np.setdiff1d(test, train)
    if len(untrained):
        count = int(np.isin(test, untrained).sum())
        yield (
            f"{count:,} of the {len(test):,} test samples are of classes that no client trains on "
            f"({first_few(names[untrained])}), so that no model can recognise them. Add training samples, or leave "
            "them out"
        )
    untested = np.setdiff1d(train, test)
    if len(untested):
        yield (
            f"no client is tested on {len(untested)} of the classes that clients train on "
            f"({first_few(names[untested])}). Scores are about the other classes. Add test samples of them"
        )


def _unknown_scores(experiment: Experiment, partition: Partition) -> Iterator[str]:
    """Clients with a single test sample, or one for validation, of which R² is not defined."""
    if experiment.local.metric != "r2":
        return
    remedies = {
        "test": ("test samples", "Raise data.test, supply test samples of your own"),
        "validation": ("validation samples", "Raise data.validation"),
    }
    names = partition.names or tuple(map(str, range(len(partition.test))))
    for split, parts in (("test", partition.test), ("validation", partition.validation)):
        single = [name for name, part in zip(names, parts, strict=False) if len(part) == 1]
        samples, remedy = remedies[split]
        if single:
            yield (
                f"the {'' if split == 'test' else f'{split} '}scores of {len(single)} of {len(names)} clients "
                f"({first_few(single)}) are unknown: local.metric = 'r2' needs at least two {samples} of a "
                f"client, and they have one. They do not count in the means. {remedy}, or set local.metric = 'rmse'"
            )
