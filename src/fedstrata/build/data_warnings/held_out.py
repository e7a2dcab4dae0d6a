"""What clients are tested on, and what the halves of their training samples hold."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

import numpy as np

from fedstrata.algorithms import Strata
from fedstrata.build.data_warnings.run_data import RunData, first_few
from fedstrata.config.tables import OWN_TEST
from fedstrata.data import find, has_own_test

_FEWEST_OF_CLASS = 5
"""Fewer test samples of a class say nearly nothing about how often it is recognised."""


def unused_test_samples(data: RunData) -> Iterator[str]:
    """Test samples of the user that no client is tested on. Those of known data sets are documented as unused."""
    wanted = data.experiment.data
    unused = data.own_test - sum(map(len, data.partition.test))
    if not data.own_test and has_own_test(find(wanted.name, wanted.root)):
        yield (
            f"the data have test samples of their own, and they are not used: data.test = {wanted.test} holds out "
            f"training samples. Set data.test = {OWN_TEST!r} to use them"
        )
    elif data.own_test and unused:
        yield (
            f"{unused:,} of the {data.own_test:,} test samples are not used: no client has training samples of "
            " their client or class. Add such, or leave them out"
        )


def few_test_samples(data: RunData) -> Iterator[str]:
    """Clients with hardly any test samples, in all or of a class that they have."""
    counts = data.class_counts(data.partition.test)
    few = (counts < _FEWEST_OF_CLASS) & (data.class_counts(data.held) > 0)
    lacking = np.flatnonzero(few.any(axis=1)).tolist()
    if not lacking:
        return
    fewest = np.where(few, counts, _FEWEST_OF_CLASS).argmin(axis=1)
    of_classes = data.dataset.targets is None
    found = [
        f"{data.names[who]} {counts[who, label]}" + (f" of class {data.class_names[label]}" if of_classes else "")
        for who, label in zip(lacking, fewest[lacking].tolist(), strict=True)
    ]
    remedy = "Add test samples" if data.own_test else "Raise data.test, or add samples"
    if data.dataset.units is not None and not data.own_test:
        # One unit has to be tested on, and two to be trained on, as each half has one.
        units = data.class_counts(data.held, of_units=True)
        enough = ceil(100 / units[units > 2].min(initial=100)) / 100
        higher = f"Set data.test = {enough}" if enough > data.experiment.data.held_out_share else "Add values of it"
        remedy = f"Whole values of data.unit = {data.dataset.unit!r} are held out. {higher}, or supply test samples"
    yield (
        f"{len(lacking)} of {len(data.names)} clients have fewer than {_FEWEST_OF_CLASS} test samples, in all or of a "
        f"class ({first_few(found)}): their scores say little. {remedy}"
    )


def untrained_classes(data: RunData) -> Iterator[str]:
    """Test samples of classes that their client does not train on; with test samples of the user's own, that nobody."""
    trained = data.class_counts(data.partition.train)
    tested = data.class_counts(data.partition.test)
    untrained = (tested > 0) & ((trained.sum(axis=0) if data.own_test else trained) == 0)
    if untrained.any():
        yield (
            f"{untrained.any(axis=1).sum()} of {len(data.names)} clients "
            f"({first_few(data.names[untrained.any(axis=1)])}) are tested on classes that "
            f"{'nobody trains' if data.own_test else 'they do not train'} on: {tested[untrained].sum():,} samples of "
            f"{first_few(data.class_names[untrained.any(axis=0)])}. Add training samples of them, or leave them out"
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
            f"samples as well, of the same client or of others ({first_few(both)}). Scores come out too good. Move "
            "each to one side, or partition by a column that keeps their samples together"
        )


def halves_without_classes(data: RunData) -> Iterator[str]:
    """Clients of which one half of the training samples lacks a class, where something is learnt on halves."""
    acting = [
        *(["personal.method = 'best'"] if data.experiment.personal.method == "best" else []),
        *(["the hold-out comparison of Strata"] if isinstance(data.experiment.algorithm_of(), Strata) else []),
    ]
    lacking = (data.class_counts(data.partition.train, of_units=True) == 1).any(axis=1)
    if data.dataset.units is not None and acting and lacking.any():
        yield (
            f"{lacking.sum()} of {len(lacking)} clients ({first_few(data.names[lacking])}) train on one value alone of "
            f"data.unit = {data.dataset.unit!r} of some class, so that one half of their training samples lacks it: "
            f"{' and '.join(acting)} cannot act as they should. Lower data.test, or add values of it"
        )
