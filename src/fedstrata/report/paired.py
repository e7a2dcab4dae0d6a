"""Two runs on the same clients, compared test sample by test sample.

McNemar, "Note on the sampling error of the difference between correlated proportions or percentages", Psychometrika
1947, in its exact form: of the samples that only one of two models classifies correctly, each would have as many by
chance.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy.stats import binomtest

from fedstrata.errors import RecordError
from fedstrata.files import open_file
from fedstrata.records.schema import RIGHT_SAMPLES

RightSamples: TypeAlias = Mapping[int, NDArray[np.bool_]]
"""Which test samples of each client are classified correctly, (s,), by client id."""

LEVEL = 0.05
"""A difference is clear where its p-value is below."""

_MOST_SAMPLES = 20_000_000
"""Test samples of all clients; of more, the file is not read."""


class PairedDifference(NamedTuple):
    """How much better a client's accuracy is than in another run.

    Attributes:
        by: The difference of the two accuracies; negative where it is worse.
        low: The lower end of its 95 % interval.
        high: The upper end.
        p: The p-value of the exact test of McNemar. It is below 0.05 where the interval does not hold 0.
    """

    by: float
    low: float
    high: float
    p: float

    @property
    def clear(self) -> bool:
        """Whether the difference is more than chance."""
        return self.p < LEVEL


def paired_difference(own: NDArray[np.bool_], other: NDArray[np.bool_]) -> PairedDifference:
    """Compare two models on the same test samples.

    Samples that both classify correctly, or neither, tell nothing. The interval is that of Clopper and Pearson for the
    share of the others that the first model alone classifies correctly.

    Args:
        own: Which samples the first model classifies correctly, bool (s,).
        other: The same of the second model.
    """
    gained = int((own & ~other).sum())
    differing = int((own ^ other).sum())
    if not differing:
        return PairedDifference(0.0, 0.0, 0.0, 1.0)
    test = binomtest(gained, differing)
    share = test.proportion_ci(1 - LEVEL, method="exact")
    by, low, high = ((2 * each - 1) * differing / len(own) for each in (gained / differing, share.low, share.high))
    return PairedDifference(by, low, high, float(test.pvalue))


def paired_differences(own: RightSamples, other: RightSamples) -> dict[int, PairedDifference]:
    """Compare two runs for every client that has the same number of test samples in both, by client id."""
    both = sorted(client for client in own.keys() & other.keys() if len(own[client]) == len(other[client]) > 0)
    return {client: paired_difference(own[client], other[client]) for client in both}


def read_right_samples(folder: Path) -> RightSamples:
    """Return which test samples a run's models classify correctly at its end; {} where that is not known."""
    try:
        with open_file(folder / RIGHT_SAMPLES) as file:
            table = pq.ParquetFile(file)
            if sum(table.metadata.row_group(group).column(1).num_values for group in range(table.num_row_groups)) > (
                _MOST_SAMPLES
            ):
                return {}
            columns = table.read(["client", "right"]).to_pydict()
        return {int(client): np.array(row, dtype=np.bool_) for client, row in zip(*columns.values(), strict=True)}
    except (OSError, ValueError, TypeError, KeyError, IndexError, RecordError, pa.ArrowException):
        return {}
