"""What lies between the rows of a table and a network: gaps are filled, texts become numbers, numbers are scaled.

It is fitted on training rows with the transformers of scikit-learn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import floor, log10
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from fedstrata.base.lazy_torch import torch
from fedstrata.base.limits import memory_limit
from fedstrata.data.mapped import Inputs, blocks

if TYPE_CHECKING:
    from torch import Tensor

Impute = Literal["median", "mean", "most_frequent", "none"]
"""What a gap in a column of numbers is filled with: a statistic of the training rows; "none" refuses gaps."""

Categories = Literal["one_hot", "ordinal", "none"]
"""What texts become: a column for each category, their places in alphabetical order, or no features."""

GAPS = ("", "?", "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null")
"""The texts that stand for a gap."""

_Rows = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class PrepareOptions:
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


DEFAULT = PrepareOptions()
"""What tables get for which nothing is asked."""


@dataclass(frozen=True)
class Preparation:
    """How the rows of a table become what a network reads. It is fitted on training rows, and kept with every model.

    A raw row is (features,) float64. A gap is nan, and a text is its place among the texts of its column. What the
    network reads is (width,) float32: the numbers, then the categories, then the flags. A text that no training row
    has is no category, and neither is a gap that is not filled: all of its columns are 0.

    All clients share the statistics, or each client has its own; then the order of the clients is that of the rows of
    `fill`, `mean` and `std`, unless they are on their devices, and what is here is an example.

    Attributes:
        features: The names of the columns, (features,); empty where they have none.
        texts: The texts of each column, ascending, (features,); none for a column of numbers.
        numbers: The columns that are read as numbers.
        categories: The column and the text of each category that is read as 0 or 1.
        gaps: The columns of which some training row has a gap.
        options: What was asked for. With `impute` = "none" numbers must have no gaps.
        fill: What stands in place of the gaps of each column, (1 or clients, features); -1 for no text.
        mean: What is subtracted of each number, (1 or clients, numbers).
        std: What it is divided by, likewise.
    """

    features: tuple[str, ...]
    texts: tuple[tuple[str, ...], ...]
    numbers: tuple[int, ...]
    categories: tuple[tuple[int, int], ...]
    gaps: tuple[int, ...]
    options: PrepareOptions
    fill: _Rows
    mean: _Rows
    std: _Rows

    @property
    def flags(self) -> tuple[int, ...]:
        """The columns whose gaps the network is told."""
        return self.gaps if self.options.indicators else ()

    @property
    def width(self) -> int:
        """The numbers that a network reads of a row."""
        return len(self.numbers) + len(self.categories) + len(self.flags)

    def codes(self, column: int) -> dict[str, int]:
        """The place of each text of a column that the network can read."""
        known = {code for at, code in self.categories if at == column}
        return {text: code for code, text in enumerate(self.texts[column]) if code in known or column in self.numbers}

    @property
    def outputs(self) -> tuple[str, ...]:
        """What each of them is called, (width,)."""
        names = [name_of(self.features, column) for column in range(len(self.texts))]
        categories = [f"{names[column]} = {self.texts[column][code]}" for column, code in self.categories]
        return (
            *(names[column] for column in self.numbers),
            *categories,
            *(f"{names[at]} missing" for at in self.flags),
        )

    def of(self, client: int) -> Preparation:
        """The preparation of one client alone."""
        if not self.options.own:
            return self
        return replace(self, fill=(self.fill[client],), mean=(self.mean[client],), std=(self.std[client],))

    def __call__(self, raw: Tensor, clients: Tensor | None = None) -> Tensor:
        """Prepare raw rows.

        Args:
            raw: The rows, (rows, features) float64.
            clients: The client of each row, (rows,) int64; None for the mean of all statistics.

        Returns:
            What a network reads, (rows, width) float32.
        """
        numbers, columns, codes, flags, fill, mean, std = (part.to(raw.device) for part in self.tensors)
        if len(fill) > 1:
            fill, mean, std = (part.mean(dim=0) if clients is None else part[clients] for part in (fill, mean, std))
        missing = raw.isnan()
        filled = torch.where(missing, fill, raw)
        parts = []
        if self.categories:
            parts.append((filled.index_select(1, columns) == codes).float())
        if self.flags:
            parts.append(missing.index_select(1, flags).float())
        # In double precision: the seconds since 1970 would lose the last two digits. In place, for rows may be wide.
        scaled = filled if len(self.numbers) == len(self.texts) else filled.index_select(1, numbers)
        scaled = scaled.sub_(mean).div_(std).float()
        return torch.cat([scaled, *parts], dim=1) if parts else scaled

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """The numbers, the columns and the codes of the categories, the flags, int64; fill, mean and std, float64."""
        columns, codes = zip(*self.categories, strict=True) if self.categories else ((), ())
        places = [torch.tensor(part, dtype=torch.int64) for part in (self.numbers, columns, codes, self.flags)]
        return (*places, *(torch.tensor(part, dtype=torch.float64) for part in (self.fill, self.mean, self.std)))


def of_numbers(features: tuple[str, ...], mean: tuple[float, ...], std: tuple[float, ...]) -> Preparation:
    """Scale numbers without gaps by a known mean and standard deviation, (numbers,) each."""
    count = len(mean)
    fill = ((0.0,) * count,)
    options = PrepareOptions("none")
    return Preparation(features, ((),) * count, tuple(range(count)), (), (), options, fill, (mean,), (std,))


def name_of(features: Sequence[str], column: int) -> str:
    """What a column of a table is called, which may have no names."""
    return features[column] if features else f"feature {column}"


_NUMBERS_AT_ONCE = 2**20
"""The numbers of rows that are looked at together: 8 MiB in float64."""

_MEMORY_SHARE = 4
"""The values of columns whose median is looked for take at most this part of the memory that data may take."""


def fit(
    inputs: Inputs,
    trained: Sequence[Tensor],
    features: tuple[str, ...] = (),
    texts: tuple[tuple[str, ...], ...] = (),
    options: PrepareOptions = DEFAULT,
) -> Preparation:
    """Fit the preparation of raw rows.

    A mean is rounded to six digits of the standard deviation, as sums in float64 differ in further digits between
    machines. A constant column has the standard deviation 1, and becomes 0.

    Args:
        inputs: The rows, (rows, features) float64, in memory or in a file.
        trained: The training rows of each client, (rows',) int64 each.
        features: The names of the columns.
        texts: The texts of each column; empty where all are numbers.
        options: What the experiment asks for.
    """
    texts = texts or ((),) * inputs.shape[1]
    numbers = [column for column, found in enumerate(texts) if not found or options.categories == "ordinal"]
    others = [column for column in range(len(texts)) if column not in numbers]
    groups = trained if options.own else [torch.cat(list(trained)).sort().values]
    fill = np.zeros((len(groups), len(texts)))
    mean, std = np.zeros((len(groups), len(numbers))), np.ones((len(groups), len(numbers)))
    gaps = np.zeros(len(texts), bool)
    known: dict[int, set[int]] = {column: set() for column in others}
    for group, rows in enumerate(groups):
        for part in _parts(inputs, rows):
            missing = np.isnan(part)
            gaps |= missing.any(axis=0)
            for column in others:
                known[column] |= set(part[~missing[:, column], column].astype(int).tolist())
        fill[group] = _fills(inputs, rows, numbers, options.impute)
        if options.scale and numbers:
            mean[group], std[group] = _scales(inputs, rows, numbers, fill[group])
    return Preparation(
        features=features,
        texts=texts,
        numbers=tuple(numbers),
        categories=tuple((column, code) for column, codes in known.items() for code in sorted(codes)),
        gaps=tuple(np.flatnonzero(gaps).tolist()),
        options=options,
        fill=_rows(fill),
        mean=_rows(mean),
        std=_rows(std),
    )


def refitted(prepared: Preparation, inputs: Inputs, rows: Tensor) -> Preparation:
    """The preparation with the statistics of another client; what networks read is unchanged.

    Args:
        prepared: A preparation whose statistics are each client's own.
        inputs: The client's rows, (rows, features) float64.
        rows: Its training rows, int64.
    """
    found = fit(inputs, [rows], prepared.features, prepared.texts, prepared.options)
    return replace(prepared, fill=found.fill, mean=found.mean, std=found.std)


def _parts(inputs: Inputs, rows: Tensor) -> Iterator[NDArray[np.float64]]:
    """Some rows, a part after the other, (rows', features)."""
    at_once = max(1, _NUMBERS_AT_ONCE // inputs.shape[1])
    for block in blocks(inputs, rows):
        yield from (part.double().numpy() for part in block.split(at_once))


def _fills(inputs: Inputs, rows: Tensor, numbers: list[int], impute: Impute) -> NDArray[np.float64]:
    """What stands in place of the gaps of each column, (features,): other rows may have some where these have none."""
    from sklearn.impute import SimpleImputer

    found = np.full(inputs.shape[1], -1.0)
    found[numbers] = 0
    filled = np.arange(len(found)) if impute == "most_frequent" else np.array(numbers, np.int64)
    at_once = max(1, memory_limit() // (8 * _MEMORY_SHARE * len(rows)))
    for start in range(0, len(filled), at_once) if impute != "none" else ():
        columns = filled[start : start + at_once]
        values = np.concatenate([part[:, columns] for part in _parts(inputs, rows)])
        imputer = SimpleImputer(strategy=impute, keep_empty_features=True).fit(values)
        # A column without any value is 0, and a text that is nowhere is none.
        known = ~np.isnan(values).all(axis=0)
        found[columns[known]] = imputer.statistics_[known]
    return found


def _scales(inputs: Inputs, rows: Tensor, numbers: list[int], fill: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean and the standard deviation of each number with its gaps filled, (2, numbers)."""
    from sklearn.preprocessing import MinMaxScaler, StandardScaler

    scaler, ends = StandardScaler(), MinMaxScaler()
    for part in _parts(inputs, rows):
        values = np.where(np.isnan(part), fill, part)[:, numbers]
        scaler.partial_fit(values)
        ends.partial_fit(values)
    statistics = np.stack([ends.data_min_, ends.data_max_, scaler.mean_, scaler.scale_], axis=1).tolist()
    scales = [(low, 1.0) if low == high else rounded(mean, std) for low, high, mean, std in statistics]
    return np.transpose(scales)


def rounded(mean: float, std: float) -> tuple[float, float]:
    """Round a mean and a standard deviation, > 0, to six digits of the smaller one."""
    smaller = min(abs(mean), std) or std
    return round(mean, 5 - floor(log10(smaller))), float(f"{std:.6g}")


def _rows(values: NDArray[np.float64]) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, values.tolist()))
