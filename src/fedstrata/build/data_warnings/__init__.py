"""What a user must know about the data before believing a result: a line for each thing that looks wrong.

Nothing here changes a result. Each warning says what was found and which key settles it. A check is a function from
the data of a run to its warnings: `clients` has those about clients and what they are tested on, `units` those about
samples that depend on each other, `copies` about equal samples, and `columns` about features and targets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fedstrata.build.data_warnings import clients, columns, copies, units
from fedstrata.build.data_warnings.run_data import RunData
from fedstrata.data import DATASETS

_CHECKS: tuple[tuple[bool, Callable[[RunData], Iterator[str]]], ...] = (
    (False, clients.left_out_clients),
    (False, clients.odd_names),
    (True, clients.clients_by_chance),
    (True, units.missing_unit),
    (False, units.divided_units),
    (False, units.units_of_several_clients),
    (False, clients.unused_test_samples),
    (False, clients.superfluous_test_samples),
    (False, clients.untested_classes),
    (False, clients.untrained_classes),
    (False, clients.classes_on_one_side),
    (False, clients.unknown_scores),
    (False, copies.shared_samples),
    (True, copies.equal_samples),
    (True, copies.noisy_copies),
    (True, columns.numbers_among_texts),
    (True, columns.site_numbers),
    (True, columns.codes_among_numbers),
    (True, columns.times_among_features),
    (True, columns.classes_without_samples),
    (True, columns.far_targets),
)
"""Each check, in the order of their lines, and whether it looks at a user's own data alone. Known data sets are what
they are."""


def data_warnings(data: RunData) -> tuple[str, ...]:
    """Return what looks wrong with the data of a run, a line each."""
    own = data.experiment.data.name not in DATASETS
    found = [line for of_own, check in _CHECKS if own or not of_own for line in check(data)]
    return (*data.dataset.notes, *found)
