"""What a user must know about the data before believing a result: a line for each thing that looks wrong.

Nothing here changes a result. Each warning says what was found, where, and what settles it. A check is a function from
the data of a run to its warnings, and looks at the samples, whatever they were read from: `clients` has those about who
the clients are and what they are tested on, `copies` about samples that depend on each other, and `values` about
features and targets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fedstrata.build.data_warnings import clients, copies, values
from fedstrata.build.data_warnings.run_data import RunData
from fedstrata.data import DATASETS

_CHECKS: tuple[tuple[bool, Callable[[RunData], Iterator[str]]], ...] = (
    (False, clients.left_out_clients),
    (False, clients.odd_names),
    (True, clients.clients_by_chance),
    (True, copies.missing_unit),
    (False, clients.divided_units),
    (True, clients.unused_test_samples),
    (True, clients.few_test_samples),
    (True, clients.untrained_classes),
    (False, clients.halves_without_classes),
    (False, copies.shared_samples),
    (True, copies.equal_samples),
    (True, copies.noisy_copies),
    (True, values.numbers_among_texts),
    (True, values.telling_features),
    (True, values.missing_codes),
    (True, values.classes_without_samples),
    (True, values.far_targets),
    (True, values.sampled),
)
"""Each check, in the order of their lines, and whether it looks at a user's own data alone. Known data sets are what
they are."""


def data_warnings(data: RunData) -> tuple[str, ...]:
    """Return what looks wrong with the data of a run, a line each."""
    own = data.experiment.data.name not in DATASETS
    found = [line for of_own, check in _CHECKS if own or not of_own for line in check(data)]
    return (*data.dataset.notes, *found)
