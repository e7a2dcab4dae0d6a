"""What a user must know about the data before believing a result: a line for each thing that looks wrong.

Nothing here changes a result. Each warning says what was found and which key settles it.
"""

from __future__ import annotations

from fedstrata.build.data_warnings.columns import feature_warnings, target_warnings
from fedstrata.build.data_warnings.copies import copy_warnings
from fedstrata.build.data_warnings.held_out import held_out_warnings
from fedstrata.build.data_warnings.names import client_warnings
from fedstrata.build.data_warnings.units import unit_warnings
from fedstrata.config import Experiment
from fedstrata.data import Dataset
from fedstrata.partition import Partition


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
        *client_warnings(experiment, dataset, partition, own_test),
        *unit_warnings(experiment, dataset, partition, own_test),
        *held_out_warnings(experiment, dataset, partition, own_test),
        *copy_warnings(experiment, dataset, partition),
        *feature_warnings(experiment, dataset, partition),
        *target_warnings(experiment, dataset),
    ]
    return tuple(found)
