"""What lies between the rows of a table and a network: gaps are filled, texts become numbers, numbers are scaled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from fedstrata.base.lazy_torch import torch

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
        indicators: Whether these are read as a 1 in a column of their own.
        impute: What the gaps of numbers are filled with; with "none" there must be none.
        scale: Whether numbers are centred and scaled.
        own: Whether each client has its own statistics.
        fill: What stands in place of the gaps of each column, (1 or clients, features); -1 for no text.
        mean: What is subtracted of each number, (1 or clients, numbers).
        std: What it is divided by, likewise.
    """

    features: tuple[str, ...]
    texts: tuple[tuple[str, ...], ...]
    numbers: tuple[int, ...]
    categories: tuple[tuple[int, int], ...]
    gaps: tuple[int, ...]
    indicators: bool
    impute: Impute
    scale: bool
    own: bool
    fill: _Rows
    mean: _Rows
    std: _Rows

    @property
    def flags(self) -> tuple[int, ...]:
        """The columns whose gaps the network is told."""
        return self.gaps if self.indicators else ()

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
        if not self.own:
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
        # In double precision: the seconds since 1970 would lose the last two digits.
        scaled = (filled.index_select(1, numbers) - mean) / std
        chosen = filled.index_select(1, columns) == codes
        return torch.cat([scaled.float(), chosen.float(), missing.index_select(1, flags).float()], dim=1)

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """The numbers, the columns and the codes of the categories, the flags, int64; fill, mean and std, float64."""
        columns, codes = zip(*self.categories, strict=True) if self.categories else ((), ())
        places = [torch.tensor(part, dtype=torch.int64) for part in (self.numbers, columns, codes, self.flags)]
        return (*places, *(torch.tensor(part, dtype=torch.float64) for part in (self.fill, self.mean, self.std)))


def of_numbers(features: tuple[str, ...], mean: tuple[float, ...], std: tuple[float, ...]) -> Preparation:
    """Scale numbers without gaps by a known mean and standard deviation, (numbers,) each."""
    numbers = tuple(range(len(mean)))
    nothing = ((0.0,) * len(mean),)
    texts: tuple[tuple[str, ...], ...] = ((),) * len(mean)
    return Preparation(features, texts, numbers, (), (), False, "none", True, False, nothing, (mean,), (std,))


def name_of(features: Sequence[str], column: int) -> str:
    """What a column of a table is called, which may have no names."""
    return features[column] if features else f"feature {column}"
