"""Who the clients are, names of clients and classes that look wrong, and what clients are tested and validated on."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

import numpy as np

from fedstrata.build.data_warnings.run_data import RunData, first_few
from fedstrata.config.tables import OWN_TEST
from fedstrata.data import find, has_own_test
from fedstrata.data.column_roles import looks_like_client

_MISSING_NAMES = frozenset({"na", "n/a", "#n/a", "nan", "null", "-", "?", "."})
"""What programs write in lower or upper case where there is no value."""


def odd_names(data: RunData) -> Iterator[str]:
    """Clients and classes that are called as missing values are, or differ only in case or spaces.

    The latter are mostly one thing, written in two ways.
    """
    for kind, kinds, names in (
        ("client", "clients", data.partition.names),
        ("class", "classes", data.dataset.class_names),
    ):
        same: dict[str, list[str]] = {}
        for name in names:
            if name.strip().lower() in _MISSING_NAMES:
                yield (
                    f"a {kind} is called {name!r}, which mostly stands for a missing value. If it does, fill it in or "
                    "leave these rows out"
                )
            written = "".join(name.split())
            # Single letters are often meant: a and A.
            same.setdefault(written.casefold() if len(written) > 1 else written, []).append(name)
        for several in same.values():
            if len(several) > 1:
                yield (
                    f"the {kinds} {first_few(list(map(repr, several)))} differ only in case or spaces. If they are "
                    f"one {kind}, write its name in one way"
                )


def left_out_clients(data: RunData) -> Iterator[str]:
    """Values of the column of the clients that are more than ``data.clients``."""
    column = data.client_column
    if column not in data.dataset.columns:
        return
    values = np.unique(data.dataset.columns[column][: len(data.dataset) - data.own_test])
    n = data.experiment.data.clients
    if n < len(values):
        others = values[~np.isin(values.astype(np.str_), data.partition.names)]
        yield (
            f"the column {column!r} has {len(values)} values, and data.clients = {n}: {first_few(others)} take no "
            "part. Leave data.clients out to have all of them"
        )


def clients_by_chance(data: RunData) -> Iterator[str]:
    """A column that says who the clients are, while the partition does not read it."""
    if data.experiment.partition.get("scheme") != "iid":
        return
    for name, values in data.dataset.columns.items():
        count = len(np.unique(values))
        if looks_like_client(name) and 1 < count < len(data.dataset):
            yield (
                f"the column {name!r} looks like that of the clients, and partition.scheme = 'iid' gives all samples "
                f"to {data.experiment.data.clients} clients at random. Set partition.scheme = 'natural' and "
                f"partition.column = {name!r} to have a client for each of its {count:,} values"
            )


def unused_test_samples(data: RunData) -> Iterator[str]:
    """Test samples of the user that no client is tested on. Those of known data sets are documented as unused."""
    wanted = data.experiment.data
    location = find(wanted.name, wanted.root)
    if not data.own_test and location.info is None and has_own_test(location):
        yield (
            f"{data.dataset.name} has test samples of its own, and they are not used: data.test = {wanted.test} holds "
            f"out a share of each client's training samples. Set data.test = {OWN_TEST!r} to use them"
        )


def superfluous_test_samples(data: RunData) -> Iterator[str]:
    """Test samples of the user that no client has: of a client or class without training samples."""
    unused = data.own_test - sum(map(len, data.partition.test))
    if data.own_test and unused:
        yield (
            f"{unused:,} of the {data.own_test:,} test samples of {data.dataset.name} are not used: no client of this "
            "run has training samples of their client or class"
        )


def untested_classes(data: RunData) -> Iterator[str]:
    """Clients whose few held-out units leave out classes that they train on."""
    units = data.dataset.units
    if units is None or data.own_test:
        return
    lacking = dict[str, None]()
    needed = 0.0
    for name, train, test in zip(data.names, data.partition.train, data.partition.test, strict=True):
        for label in np.setdiff1d(data.labels[train], data.labels[test]):
            of_class = len(np.unique(units[train][data.labels[train] == label]))
            # A class with a single unit is either trained on or tested.
            if of_class > 1:
                lacking[name] = None
                needed = max(needed, 1 / of_class)
    enough = ceil(100 * needed) / 100
    wanted = data.experiment.data
    # Where units have samples of several classes, no share promises that each class is among the held-out ones.
    remedy = f"Set data.test = {enough}" if enough > wanted.held_out_share else "Raise data.test"
    if lacking:
        yield (
            f"{len(lacking)} of {len(data.names)} clients ({first_few(list(lacking))}) are not tested on some classes "
            f"that they train on: data.test = {wanted.test} holds out few whole values of data.unit = "
            f"{data.dataset.unit!r}. Their scores are about the other classes. {remedy}, or supply test samples of "
            "your own"
        )


def untrained_classes(data: RunData) -> Iterator[str]:
    """Clients that are tested on classes that they do not train on, because whole units are held out."""
    if data.dataset.units is None or data.own_test:
        return
    parts = zip(data.names, data.partition.train, data.partition.test, strict=True)
    lacking = [name for name, train, test in parts if len(np.setdiff1d(data.labels[test], data.labels[train]))]
    if lacking:
        yield (
            f"{len(lacking)} of {len(data.names)} clients ({first_few(lacking)}) are tested on classes that they do "
            f"not train on: they have one value of data.unit = {data.dataset.unit!r} of such a class, and it is held "
            "out as a whole. Collect more of them, supply test samples of your own, or name a finer column in data.unit"
        )


def classes_on_one_side(data: RunData) -> Iterator[str]:
    """Classes that clients are tested on and nobody trains on, and those of which the user has no test sample."""
    if not data.own_test or data.dataset.targets is not None:
        return
    train, test = (data.labels[np.concatenate(parts)] for parts in (data.partition.train, data.partition.test))
    names = np.array(data.dataset.class_names or [str(label) for label in range(data.dataset.classes)])
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


def unknown_scores(data: RunData) -> Iterator[str]:
    """Clients with a single test sample, or one for validation, of which R² is not defined."""
    if data.experiment.local.metric != "r2":
        return
    splits = {
        "test": (data.partition.test, "Raise data.test, supply test samples of your own"),
        "validation": (data.partition.validation, "Raise data.validation"),
    }
    for split, (parts, remedy) in splits.items():
        single = [name for name, part in zip(data.names, parts, strict=False) if len(part) == 1]
        if single:
            yield (
                f"the {'' if split == 'test' else f'{split} '}scores of {len(single)} of {len(data.names)} clients "
                f"({first_few(single)}) are unknown: local.metric = 'r2' needs at least two {split} samples of a "
                f"client, and they have one. They do not count in the means. {remedy}, or set local.metric = 'rmse'"
            )
