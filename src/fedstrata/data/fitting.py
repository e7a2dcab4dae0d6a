"""Fit the preparation of a table on its training rows, with the transformers of scikit-learn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import floor, log10
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedstrata.base.lazy_torch import torch
from fedstrata.data.mapped import Inputs, blocks
from fedstrata.data.preparation import Categories, Impute, Preparation

if TYPE_CHECKING:
    from torch import Tensor

_NUMBERS_AT_ONCE = 2**24
"""The numbers of columns that are in memory together: 128 MiB."""


@dataclass(frozen=True)
class Wanted:
    """How a table is to be prepared.

    Attributes:
        impute: What the gaps in columns of numbers are filled with, and with "most_frequent" those of texts too.
        indicators: Whether the network is told of each gap.
        categories: What texts become.
        scale: Whether numbers are centred and scaled.
        own: Whether each client has its own statistics, or all clients share them.
    """

    impute: Impute = "median"
    indicators: bool = False
    categories: Categories = "one_hot"
    scale: bool = True
    own: bool = False


DEFAULT = Wanted()
"""What tables get for which nothing is asked."""


def fit(
    inputs: Inputs,
    trained: Sequence[Tensor],
    features: tuple[str, ...] = (),
    texts: tuple[tuple[str, ...], ...] = (),
    wanted: Wanted = DEFAULT,
) -> Preparation:
    """Fit the preparation of raw rows.

    A mean is rounded to six digits of the standard deviation, as sums in float64 differ in further digits between
    machines. A constant column has the standard deviation 1, and becomes 0.

    Args:
        inputs: The rows, (rows, features) float64, in memory or in a file.
        trained: The training rows of each client, (rows',) int64 each.
        features: The names of the columns.
        texts: The texts of each column; empty where all are numbers.
        wanted: What the experiment asks for.
    """
    texts = texts or ((),) * inputs.shape[1]
    numbers = [column for column, found in enumerate(texts) if not found or wanted.categories == "ordinal"]
    groups = trained if wanted.own else [torch.cat(list(trained)).sort().values]
    fill, mean, std = (np.zeros((len(groups), inputs.shape[1])) for _ in range(3))
    gaps = np.zeros(inputs.shape[1], bool)
    known = [set[int]() for _ in texts]
    for group, rows in enumerate(groups):
        for column, values in _columns(inputs, rows):
            missing = np.isnan(values)
            gaps[column] |= missing.any()
            if column in numbers:
                fill[group, column], mean[group, column], std[group, column] = _of_numbers(values, wanted)
            else:
                known[column] |= set(values[~missing].astype(int).tolist())
                frequent = wanted.impute == "most_frequent" and not missing.all()
                fill[group, column] = _filled(values, "most_frequent")[0] if frequent else -1
    return Preparation(
        features=features,
        texts=texts,
        numbers=tuple(numbers),
        categories=tuple((column, code) for column, codes in enumerate(known) for code in sorted(codes)),
        gaps=tuple(np.flatnonzero(gaps).tolist()),
        indicators=wanted.indicators,
        impute=wanted.impute,
        scale=wanted.scale,
        own=wanted.own,
        fill=_rows(fill),
        mean=_rows(mean[:, numbers]),
        std=_rows(std[:, numbers]),
    )


def refitted(prepared: Preparation, inputs: Inputs, rows: Tensor) -> Preparation:
    """The preparation with the statistics of another client; what networks read is unchanged.

    Args:
        prepared: A preparation whose statistics are each client's own.
        inputs: The client's rows, (rows, features) float64.
        rows: Its training rows, int64.
    """
    ordinal = any(prepared.texts[column] for column in prepared.numbers)
    wanted = Wanted(prepared.impute, prepared.indicators, "ordinal" if ordinal else "one_hot", prepared.scale, own=True)
    found = fit(inputs, [rows], prepared.features, prepared.texts, wanted)
    return replace(prepared, fill=found.fill, mean=found.mean, std=found.std)


def _columns(inputs: Inputs, rows: Tensor) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """Yield each column of some rows, (rows,), without having all of them in memory."""
    width = inputs.shape[1]
    at_once = max(1, _NUMBERS_AT_ONCE // len(rows))
    for start in range(0, width, at_once):
        values = np.concatenate([block[:, start : start + at_once].numpy() for block in blocks(inputs, rows)])
        yield from enumerate(values.T, start)


def _filled(values: NDArray[np.float64], impute: Impute) -> tuple[float, NDArray[np.float64]]:
    """What stands in place of the gaps of a column, and the column with it, (rows, 1)."""
    from sklearn.impute import SimpleImputer

    strategy = "mean" if impute == "none" else impute
    imputer = SimpleImputer(strategy=strategy, keep_empty_features=True)
    filled = imputer.fit_transform(values[:, None])
    return float(imputer.statistics_[0]), filled


def _of_numbers(values: NDArray[np.float64], wanted: Wanted) -> tuple[float, float, float]:
    """What stands in place of the gaps of a column of numbers, and its mean and standard deviation with it."""
    from sklearn.preprocessing import StandardScaler

    fill, filled = _filled(values, wanted.impute)
    if not wanted.scale:
        return fill, 0.0, 1.0
    if not np.ptp(filled):
        return fill, float(filled[0, 0]), 1.0
    scaler = StandardScaler().fit(filled)
    return fill, *rounded(float(scaler.mean_[0]), float(scaler.scale_[0]))


def rounded(mean: float, std: float) -> tuple[float, float]:
    """Round a mean and a standard deviation, > 0, to six digits of the smaller one."""
    smaller = min(abs(mean), std) or std
    return round(mean, 5 - floor(log10(smaller))), float(f"{std:.6g}")


def _rows(values: NDArray[np.float64]) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, values.tolist()))
