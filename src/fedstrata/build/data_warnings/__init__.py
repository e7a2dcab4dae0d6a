"""What a user must know about the data before believing a result: a line for each thing that looks wrong.

Nothing here changes a result. Each warning says what was found, where, and what settles it. A check is a function from
the data of a run to its warnings, and looks at the samples, whatever they were read from: `clients` has those about who
the clients are and what they are tested on, `copies` about samples that depend on each other, and `values` about
features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fedstrata.build.data_warnings import clients, copies, values
from fedstrata.build.data_warnings.run_data import RunData
from fedstrata.data import DATASETS

_OF_ALL_DATA: tuple[Callable[[RunData], Iterator[str]], ...] = (
    clients.names_in_two_ways,
    clients.divided_units,
    clients.halves_without_classes,
)
"""The checks of all data."""

_OF_OWN_DATA: tuple[Callable[[RunData], Iterator[str]], ...] = (
    clients.clients_by_chance,
    copies.missing_unit,
    clients.unused_test_samples,
    clients.few_test_samples,
    clients.untrained_classes,
    copies.equal_samples,
    copies.noisy_copies,
    values.numbers_among_texts,
    values.telling_features,
    values.missing_codes,
)
"""The checks of a user's own data, after those. Known data sets are what they are."""


def data_warnings(data: RunData) -> tuple[str, ...]:
    """Return what looks wrong with the data of a run, a line each."""
    checks = _OF_ALL_DATA if data.experiment.data.name in DATASETS else _OF_ALL_DATA + _OF_OWN_DATA
    return (*data.dataset.notes, *(line for check in checks for line in check(data)))
