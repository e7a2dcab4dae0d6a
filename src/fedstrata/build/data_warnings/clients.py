"""Who the clients are, names written in two ways, what clients are tested on, and what halves of their samples hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from fedstrata.algorithms import Strata
from fedstrata.base.quoting import listed
from fedstrata.build.data_warnings.run_data import RunData, first_few
from fedstrata.data.column_roles import looks_like_client

_FEWEST_OF_CLASS = 5
"""Fewer test samples of a class say nearly nothing about how often it is recognised."""


def names_in_two_ways(data: RunData) -> Iterator[str]:
    """Clients and classes whose names differ only in case or spaces: mostly one thing, written in two ways."""
    for kind, names in (("client", data.partition.names), ("class", data.dataset.class_names)):
        # Single letters are often meant: a and A.
        written = [name if len(name) == 1 else "".join(name.split()).casefold() for name in names]
        counts = Counter(written)
        if several := [repr(name) for name, each in zip(names, written, strict=True) if counts[each] > 1]:
            yield f"the names {listed(several)} differ only in case or spaces. Write the name of a {kind} in one way"


def clients_by_chance(data: RunData) -> Iterator[str]:
    """A column that says who the clients are, while the partition does not read it."""
    if data.experiment.partition.get("scheme") != "iid":
        return
    for name, values in data.dataset.columns.items():
        if looks_like_client(name) and 1 < len(np.unique(values)) < len(data.dataset):
            yield (
                f"the column {name!r} looks like that of the clients, and partition.scheme = 'iid' gives all samples "
                f"to clients at random. Set partition.scheme = 'natural' and partition.column = {name!r} to read it"
            )


def unused_test_samples(data: RunData) -> Iterator[str]:
    """Test samples of the user that no client is tested on."""
    unused = data.own_test - sum(map(len, data.partition.test))
    if data.own_test and unused:
        yield (
            f"{unused:,} of the {data.own_test:,} test samples are not used: no client has training samples of "
            "their client or class"
        )


def few_test_samples(data: RunData) -> Iterator[str]:
    """Clients with hardly any test samples, in all or of a class that they have."""
    few = data.class_counts(data.partition.test) < _FEWEST_OF_CLASS
    lacking = np.any(few & (data.class_counts(data.held) > 0), axis=1)
    if lacking.any():
        more = "lower data.folds" if data.experiment.data.folds else "raise data.test"
        yield (
            f"{data.some_clients(lacking)} have fewer than {_FEWEST_OF_CLASS} test samples, in all or of a class: "
            f"their scores say little. Add samples{'' if data.own_test else f', or {more}'}"
        )


def untrained_classes(data: RunData) -> Iterator[str]:
    """Test samples of classes that their client does not train on; with test samples of the user's own, that nobody."""
    trained = data.class_counts(data.partition.train)
    tested = data.class_counts(data.partition.test)
    untrained = (tested > 0) & ((trained.sum(axis=0) if data.own_test else trained) == 0)
    if untrained.any():
        yield (
            f"{data.some_clients(untrained.any(axis=1))} are tested on classes that "
            f"{'nobody trains' if data.own_test else 'they do not train'} on: {tested[untrained].sum():,} samples of "
            f"{first_few(data.class_names[untrained.any(axis=0)])}"
        )


def divided_units(data: RunData) -> Iterator[str]:
    """Units with samples to train and to test on, of one client or of several: clients share models."""
    units = data.dataset.units
    if units is None:
        return
    trained, tested = (np.unique(units[np.concatenate(each)]) for each in (data.partition.train, data.partition.test))
    if len(both := np.intersect1d(trained, tested)):
        yield (
            f"{len(both):,} of {len(tested):,} tested values of data.unit = {data.dataset.unit!r} are in training "
            f"samples as well, of the same client or of others ({first_few(both)}). Scores come out too good"
        )


def halves_without_classes(data: RunData) -> Iterator[str]:
    """Clients of which one half of the training samples lacks a class, where something is learnt on halves."""
    acting = ["personal.method = 'best'"] if data.experiment.personal.method == "best" else []
    if isinstance(data.experiment.algorithm_of(), Strata):
        acting.append("the trials of Strata")
    lacking = (data.class_counts(data.partition.train, of_units=True) == 1).any(axis=1)
    if data.dataset.units is not None and acting and lacking.any():
        fewer = "Raise data.folds" if data.experiment.data.folds else "Lower data.test"
        yield (
            f"{data.some_clients(lacking)} train on one value alone of data.unit = {data.dataset.unit!r} of some "
            f"class, so that one half of their training samples lacks it: {' and '.join(acting)} cannot act as they "
            f"should. {fewer}, or add values of it"
        )
