"""What a user must know about the data before believing a result: a line for each thing that looks wrong.

Nothing here changes a result. Each warning says what was found and which key settles it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedstrata.config import Experiment
from fedstrata.config.tables import ALL_INDEPENDENT, OWN_TEST
from fedstrata.data import DATASETS, Dataset, find, has_own_test
from fedstrata.data.column_roles import looks_like_unit
from fedstrata.partition import Partition
from fedstrata.quoting import shown
from fedstrata.runner.near_copies import near_copies
from fedstrata.runner.neighbours import neighbour_correlation
from fedstrata.runner.table_warnings import table_warnings

_PAIRS = 256
"""The number of consecutive windows that are looked at for an overlap."""

_SHARED_READINGS = 4
"""The fewest equal readings of two windows that count as an overlap; fewer may be chance."""

_OVERLAP_SHARE = 0.2
"""The share of consecutive windows that overlap from which on there is a warning."""

_SIMILAR_NEIGHBOURS = 0.5
"""The correlation of features with themselves one row before from which on there is a warning."""

_COPIES_SHARE = 0.01
"""The share of test samples that equal a training sample from which on there is a warning."""

_COMPARED_NUMBERS = 4096
"""The numbers of a sample that are compared with those of others."""

_DIGESTED_AT_ONCE = 512
"""The number of samples that are read together to be compared."""

_MOST_NAMED = 5
"""The number of clients or values that a warning names."""


def data_warnings(experiment: Experiment, dataset: Dataset, partition: Partition, own_test: int) -> tuple[str, ...]:
    """Return what looks wrong with the data of a run, a line each.

    Args:
        experiment: The experiment.
        dataset: The samples of all clients; the last ones are the test samples of the data set's own, if used.
        partition: The samples of each client.
        own_test: The number of test samples of the data set's own that are used.
    """
    found = [
        *dataset.notes,
        *_unused_test_samples(experiment, dataset, own_test),
        *_left_out_clients(experiment, dataset, own_test),
        *_similar_names(partition.names),
        *_missing_unit(experiment, dataset, partition),
        *_divided_units(dataset, own_test),
        *_units_of_several_clients(dataset, partition, own_test),
        *_similar_classes(experiment, dataset),
        *_untested_classes(experiment, dataset, partition, own_test),
        *_untrained_classes(dataset, partition, own_test),
        *_classes_on_one_side(dataset, partition, own_test),
        *_test_samples_of_nobody(dataset, partition, own_test),
        *_unknown_scores(experiment, partition),
        *_shared_samples(experiment),
        *_copies(experiment, dataset, partition),
        *_near_copies(experiment, dataset, partition),
        *table_warnings(experiment, dataset, partition),
    ]
    return tuple(found)


def _unused_test_samples(experiment: Experiment, dataset: Dataset, own_test: int) -> Iterator[str]:
    """Test samples of the user that no client is tested on. Those of known data sets are documented as unused."""
    location = find(experiment.data.name, experiment.data.root)
    if own_test or location.info is not None or not has_own_test(location):
        return
    yield (
        f"{dataset.name} has test samples of its own, and they are not used: data.test = {experiment.data.test} holds "
        f"out a share of each client's training samples. Set data.test = {OWN_TEST!r} to use them"
    )


def _left_out_clients(experiment: Experiment, dataset: Dataset, own_test: int) -> Iterator[str]:
    """Values of the column of the clients that are more than ``data.clients``."""
    column = str(experiment.partition.get("column", ""))
    if column not in dataset.columns:
        return
    values = np.unique(dataset.columns[column][: len(dataset) - own_test])
    n = experiment.data.clients
    if n < len(values):
        yield (
            f"the column {column!r} has {len(values)} values, and data.clients = {n}: {_some(values[n:].astype(str))} "
            "take no part. Leave data.clients out to have all of them"
        )


def _similar_names(names: tuple[str, ...]) -> Iterator[str]:
    """Names of clients that differ only in case or spaces: mostly one client, written in two ways."""
    for several in _alike(names):
        yield f"the clients {several} differ only in case or spaces. If they are one client, write its name in one way"


def _similar_classes(experiment: Experiment, dataset: Dataset) -> Iterator[str]:
    """Names of classes that differ only in case or spaces: mostly one class, written in two ways."""
    if experiment.data.name in DATASETS:
        return
    for several in _alike(dataset.class_names):
        yield f"the classes {several} differ only in case or spaces. If they are one class, write its name in one way"


def _alike(names: Sequence[str]) -> Iterator[str]:
    """Names that differ only in case or spaces, those that are alike together, as a list for people."""
    same: dict[str, list[str]] = {}
    for name in names:
        written = "".join(name.split())
        # Single letters are often meant: a and A.
        same.setdefault(written.casefold() if len(written) > 1 else written, []).append(name)
    for several in same.values():
        if len(several) > 1:
            yield _some(np.array([repr(name) for name in several]))


def _missing_unit(experiment: Experiment, dataset: Dataset, partition: Partition) -> Iterator[str]:
    """Samples that look dependent on each other while the experiment says nothing about it."""
    if experiment.data.unit is not None or experiment.data.name in DATASETS:
        return
    why = (
        "Training and test then share such samples, scores come out too good, and a split test finds groups that "
        "are not there"
    )
    columns = _unit_columns(dataset, partition, str(experiment.partition.get("column", "")))
    if columns:
        names = " and ".join(repr(name) for name in columns)
        unit = columns[0]
        count = len(np.unique(dataset.columns[unit]))
        verb = "looks" if len(columns) == 1 else "look"
        state = f"is {dataset.unit!r} by default" if dataset.unit else "is not set"
        otherwise = (
            f"{dataset.unit!r} if only samples of one {dataset.unit} depend on each other"
            if dataset.unit
            else f"{ALL_INDEPENDENT!r} if all samples are independent"
        )
        yield (
            f"the column {names} {verb} like a unit of dependence, and data.unit {state}: {count:,} values of "
            f"{unit} for {len(dataset):,} samples. Samples of one {unit} resemble each other. {why}. Set data.unit = "
            f"{unit!r}, or data.unit = {otherwise}"
        )
    elif dataset.unit is None and _windows_overlap(dataset):
        yield (
            "consecutive samples overlap, as windows of one recording do, and data.unit is not set. "
            f"{why}. Add a column with the recording of each sample and name it in data.unit, or set data.unit = "
            f"{ALL_INDEPENDENT!r}"
        )
    elif dataset.unit is None and (similar := neighbour_correlation(dataset, partition)) > _SIMILAR_NEIGHBOURS:
        yield (
            "the rows of a client resemble the rows before them, as measurements in the order of time do: their "
            f"correlation is {similar:.2f} (the median of the features), and data.unit is not set. {why}. Add a column "
            f"with the day or week of each row and name it in data.unit, or set data.unit = {ALL_INDEPENDENT!r} if all "
            "rows are independent"
        )


def _unit_columns(dataset: Dataset, partition: Partition, client_column: str) -> list[str]:
    """Return the columns that look like units of dependence, the coarsest first.

    Every client must have at least two values of it and more samples than values: other columns mark the clients
    themselves, or single samples. Where the reader knows the units, as of recordings, only coarser ones are returned.
    """
    held = [np.concatenate(both) for both in zip(partition.train, partition.test, strict=True)]
    most = sum(map(len, held)) if dataset.units is None else sum(_counts(dataset.units, held))
    found = []
    for name, values in dataset.columns.items():
        if name == client_column or not looks_like_unit(name) or values.dtype.kind not in "iuU":
            continue
        counts = _counts(values, held)
        if min(counts) > 1 and sum(counts) < most:
            found.append((sum(counts), name))
    return [name for _, name in sorted(found)]


def _counts(values: NDArray[Any], held: Sequence[NDArray[Any]]) -> list[int]:
    """Return how many different values of a column each client has."""
    return [len(np.unique(values[own])) for own in held]


def _windows_overlap(dataset: Dataset) -> bool:
    """Return whether many consecutive samples are windows that share readings at their ends.

    Only signals are looked at: inputs of (samples, channels, time) float32.
    """
    inputs = dataset.inputs
    if inputs.ndim != 3 or not inputs.is_floating_point() or len(inputs) < 3 or inputs.shape[2] < 8:
        return False
    pairs = np.unique(np.linspace(0, len(inputs) - 2, _PAIRS).astype(np.int64))
    return (
        float(np.mean([_overlap(inputs[pair].numpy(), inputs[pair + 1].numpy()) for pair in pairs])) >= _OVERLAP_SHARE
    )


def _overlap(window: NDArray[Any], after: NDArray[Any]) -> bool:
    """Return whether a window, (channels, time), ends with readings that the window after it begins with."""
    length = window.shape[1]
    # A constant signal equals itself at every shift.
    if not (window[:, -_SHARED_READINGS:].std(axis=1) > 0).any():
        return False
    steps = np.arange(1, length - _SHARED_READINGS + 1)
    # The first readings of one channel rule out nearly all steps.
    for place in range(_SHARED_READINGS):
        steps = steps[window[0, steps + place] == after[0, place]]
    return any(np.array_equal(window[:, step:], after[:, : length - step]) for step in steps)


def _divided_units(dataset: Dataset, own_test: int) -> Iterator[str]:
    """Units with samples in the training data and in the test data that the user supplied."""
    if not own_test or dataset.units is None:
        return
    train, test = np.split(dataset.units, [len(dataset) - own_test])
    both = np.intersect1d(train, test)
    if len(both):
        yield (
            f"{len(both)} values of data.unit = {dataset.unit!r} are in the training and in the test samples of "
            f"{dataset.name} ({_some(both.astype(str))}). Scores come out too good. Move each of them to one side"
        )


def _units_of_several_clients(dataset: Dataset, partition: Partition, own_test: int) -> Iterator[str]:
    """Units that one client is tested on while another one trains on them: the clients share models."""
    if own_test or dataset.units is None:
        return
    trained, tested = (np.unique(dataset.units[np.concatenate(parts)]) for parts in (partition.train, partition.test))
    both = np.intersect1d(trained, tested)
    if len(both):
        yield (
            f"{len(both):,} of {len(tested):,} held-out values of data.unit = {dataset.unit!r} are in the training "
            f"samples of other clients as well ({_some(both.astype(str))}), with whom models are shared. Scores come "
            "out too good. Partition by a column each of whose values has all samples of its units, or supply test "
            "samples of your own"
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
                lacking.append(partition.names[client] if partition.names else str(client))
                needed = max(needed, 1 / of_class)
    clients = list(dict.fromkeys(lacking))
    enough = ceil(100 * needed) / 100
    # Where units have samples of several classes, no share promises that each class is among the held-out ones.
    remedy = f"Set data.test = {enough}" if enough > experiment.data.held_out_share else "Raise data.test"
    if clients:
        yield (
            f"{len(clients)} of {len(partition.train)} clients ({_some(np.array(clients))}) are not tested on some "
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
        names = np.array([partition.names[client] if partition.names else str(client) for client in lacking])
        yield (
            f"{len(lacking)} of {len(partition.train)} clients ({_some(names)}) are tested on classes that they do not "
            f"train on: they have one value of data.unit = {dataset.unit!r} of such a class, and it is held out as a "
            "whole. Collect more of them, supply test samples of your own, or name a finer column in data.unit"
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
            f"({_some(names[untrained])}), so that no model can recognise them. Add training samples, or leave them out"
        )
    untested = np.setdiff1d(train, test)
    if len(untested):
        yield (
            f"no client is tested on {len(untested)} of the classes that clients train on ({_some(names[untested])}). "
            "Scores are about the other classes. Add test samples of them"
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
                f"({_some(np.array(single))}) are unknown: local.metric = 'r2' needs at least two {samples} of a "
                f"client, and they have one. They do not count in the means. {remedy}, or set local.metric = 'rmse'"
            )


def _shared_samples(experiment: Experiment) -> Iterator[str]:
    """Samples that several clients hold, as the experiment asks."""
    if experiment.data.copies > 1:
        yield (
            f"data.copies = {experiment.data.copies}: a test sample of one client may be a training sample of another. "
            "Scores come out too good. Compare them with those of runs with the same key alone"
        )


def _copies(experiment: Experiment, dataset: Dataset, partition: Partition) -> Iterator[str]:
    """Test samples that equal a training sample. Known data sets are what they are."""
    if experiment.data.name in DATASETS or experiment.data.copies > 1:
        return
    train = set(_digests(dataset, partition.train))
    test = sum(map(len, partition.test))
    copies = sum(digest in train for digest in _digests(dataset, partition.test))
    if copies > _COPIES_SHARE * test:
        yield (
            f"{copies:,} of {test:,} test samples equal a training sample. Scores come out too good. Take "
            "copies out, or name a column in data.unit whose equal values keep them together"
        )


def _near_copies(experiment: Experiment, dataset: Dataset, partition: Partition) -> Iterator[str]:
    """Samples that resemble others of their client far more than the rest, and no unit keeps them together."""
    if experiment.data.name in DATASETS or experiment.data.unit == ALL_INDEPENDENT or experiment.data.copies > 1:
        return
    found = near_copies(dataset, partition)
    if found is None:
        return
    name = partition.names[found.client] if partition.names else str(found.client)
    others = "one other" if found.copies == 1 else f"{found.copies} others"
    state = "is not set" if dataset.unit is None else f"= {dataset.unit!r} does not keep them together"
    yield (
        f"{found.copied / found.samples:.0%} of {found.samples:,} samples that were compared look like copies with "
        f"noise: mostly {others} of the same client, such as client {_some(np.array([name]))}, are far closer to them "
        f"than all the rest, and data.unit {state}. Halves of a client's samples are not independent then: a split "
        "test finds groups that are not there, and scores come out too good. Name a column in data.unit whose equal "
        f"values keep copies together, take copies out, or set data.unit = {ALL_INDEPENDENT!r} if all samples are "
        "independent"
    )


def _digests(dataset: Dataset, parts: Sequence[NDArray[Any]]) -> Iterator[int]:
    """Yield a number for each sample that equal samples share. A part of a large sample tells it from others."""
    for own in parts:
        for index in torch.from_numpy(own).split(_DIGESTED_AT_ONCE):
            values = dataset.gather(index).flatten(1)[:, :_COMPARED_NUMBERS].contiguous()
            yield from (hash(row.tobytes()) for row in values.numpy())


def _some(values: NDArray[Any]) -> str:
    """Return the first few values, and how many more there are."""
    texts = [value if value.startswith("'") else shown(value).strip("'") for value in map(str, values[:_MOST_NAMED])]
    more = f" and {len(values) - _MOST_NAMED} more" if len(values) > _MOST_NAMED else ""
    return ", ".join(texts) + more
