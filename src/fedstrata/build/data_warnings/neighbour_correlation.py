"""Whether the rows of a table resemble the rows before them, as measurements in the order of time do.

The measure is the autocorrelation at lag 1: Box, Jenkins, "Time series analysis: forecasting and control", 1970.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from fedstrata.data import Dataset
from fedstrata.partition import Partition

_CLIENTS = 50
"""The number of clients that are looked at."""

_ROWS = 2000
"""The number of the first rows of each of them."""

_FEWEST_ROWS = 20
"""Clients are looked at that have at least so many rows."""


def neighbour_correlation(dataset: Dataset, partition: Partition) -> float:
    """The correlation of a feature with itself one row before, the median over features and the mean over clients.

    Rows are in the order of the data, and what the means of the classes explain is taken out: in a table that is sorted
    by class, rows resemble their neighbours as well.

    Args:
        dataset: The samples of all clients.
        partition: The samples of each client.

    Returns:
        From -1 to 1; 0 where samples are no rows of numbers, or too few.
    """
    if dataset.inputs.ndim != 2 or not dataset.inputs.is_floating_point():
        return 0.0
    rows = [np.sort(np.concatenate(both)) for both in zip(partition.train[:_CLIENTS], partition.test, strict=False)]
    of_clients = [_of_client(dataset, own[:_ROWS]) for own in rows if len(own) >= _FEWEST_ROWS]
    if not of_clients:
        return 0.0
    by_feature = np.mean(of_clients, axis=0)
    return float(np.sort(by_feature)[(len(by_feature) - 1) // 2])


def _of_client(dataset: Dataset, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """The autocorrelation of each feature at lag 1 in some rows, (features,); 0 for a constant one."""
    places = torch.from_numpy(rows.astype(np.int64))
    values = dataset.gather(places).double().numpy()
    labels = dataset.labels[places].numpy()
    for label in np.unique(labels):
        values[labels == label] -= values[labels == label].mean(axis=0)
    power = np.square(values).sum(axis=0)
    correlation: NDArray[np.float64] = (values[1:] * values[:-1]).sum(axis=0) / np.maximum(power, 1e-30)
    return correlation
