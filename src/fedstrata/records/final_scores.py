"""What the clients of a run have reached at its end: their last scores, and the test samples that are right."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fedstrata.base.errors import RecordError
from fedstrata.base.files import open_file
from fedstrata.records.schema import RIGHT_SAMPLES

RightSamples: TypeAlias = Mapping[int, NDArray[np.bool_]]
"""Which test samples of each client are classified correctly, (s,), by client id."""

_MOST_CLIENTS = 1_000_000
"""Scores of more clients are not read."""

_MOST_SAMPLES = 20_000_000
"""Test samples of all clients; of more, the file is not read."""


def last_scores(folder: Path) -> dict[int, tuple[int, float]]:
    """Return the number of test samples and the metric of each client after the last round; {} where unreadable."""
    files = sorted((folder / "clients").glob("[0-9]*.parquet"))
    try:
        with open_file(files[-1]) as file:
            table = pq.ParquetFile(file)
            if table.metadata.num_rows > _MOST_CLIENTS:
                return {}
            columns = table.read(["client", "samples", "accuracy"]).to_pydict()
        rows = [(client, samples, value) for client, samples, value in zip(*columns.values(), strict=True)]
    except (IndexError, OSError, ValueError, KeyError, RecordError, pa.ArrowException):
        return {}
    return {client: (samples, value) for client, samples, value in rows if isinstance(value, float) and isfinite(value)}


def read_right_samples(folder: Path) -> RightSamples:
    """Return which test samples a run's models classify correctly at its end; {} where that is not known."""
    try:
        with open_file(folder / RIGHT_SAMPLES) as file:
            table = pq.ParquetFile(file)
            groups = (table.metadata.row_group(group) for group in range(table.num_row_groups))
            # The footer of the file alone says how many there are.
            if sum(group.column(1).num_values for group in groups) > _MOST_SAMPLES:
                return {}
            columns = table.read(["client", "right"]).to_pydict()
        return {int(client): np.array(row, dtype=np.bool_) for client, row in zip(*columns.values(), strict=True)}
    except (OSError, ValueError, TypeError, KeyError, IndexError, RecordError, pa.ArrowException):
        return {}
