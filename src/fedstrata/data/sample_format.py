"""What raw samples look like, and what a network needs of them. It is kept with every trained model."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedstrata.base.errors import DataError
from fedstrata.base.lazy_torch import torch
from fedstrata.base.quoting import listed, shown
from fedstrata.data.preparation import GAPS, Preparation, name_of

if TYPE_CHECKING:
    from torch import Tensor

_logger = logging.getLogger(__name__)

Answer = Literal["classes", "labels", "numbers"]
"""What the outputs of a network are."""


@dataclass(frozen=True)
class SampleFormat:
    """The format of raw samples, and how a network reads them.

    Attributes:
        shape: The shape of one raw sample, (channels, ...), or (length,) of tokens.
        dtype: The type of its numbers, "uint8" or "float32", "int64" of tokens, which are not normalised, or "float64"
            of the rows of a table, which are prepared.
        mean: The mean of each channel, (channels,). For uint8 it is on the scale where 255 is 1. Tokens and rows of a
            table have none.
        std: The standard deviation of each channel, likewise, > 0.
        classes: The number of classes.
        class_names: The name of each class, (classes,); empty where the data give none.
        side: The height and width, in pixels, to which images are resized first; None where they stay as they are.
        outputs: The shape of what the network says about one sample; empty is (classes,).
        answer: What that is: logits of "classes", logits of "labels" that are 0 or 1, or "numbers".
        feature_names: The name of each feature, where columns of a table are the features; else empty.
        preparation: How the rows of a table are prepared; None for other samples.
    """

    shape: tuple[int, ...]
    dtype: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: int
    class_names: tuple[str, ...] = ()
    side: int | None = None
    outputs: tuple[int, ...] = ()
    answer: Answer = "classes"
    feature_names: tuple[str, ...] = ()
    preparation: Preparation | None = None

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of what the network says about one sample."""
        return self.outputs or (self.classes,)

    @property
    def network_shape(self) -> tuple[int, ...]:
        """The shape of one sample as the network reads it."""
        if self.preparation is not None:
            return (self.preparation.width,)
        return self.shape if self.side is None else (self.shape[0], self.side, self.side)

    @property
    def scale(self) -> list[float]:
        """The factor of each channel, (channels,). A normalised value is ``value * scale + shift``."""
        return scale_and_shift(self.dtype, self.mean, self.std)[0].tolist()

    @property
    def shift(self) -> list[float]:
        """The summand of each channel, (channels,)."""
        return scale_and_shift(self.dtype, self.mean, self.std)[1].tolist()

    def tensor_of(self, samples: Any) -> Tensor:
        """Turn an array, a tensor, a list or a table of raw samples into a tensor.

        Args:
            samples: The samples, (samples, *shape). Images may lack the axis of their one channel or have the channels
                last. Rows of a table may hold the numbers of a sample side by side. Of a table or mapping with named
                columns, the features are taken by their names, in whatever order they are. A text that no training row
                had counts as a gap, and is told in a warning.

        Returns:
            The samples, (samples, *shape), of this format's type.

        Raises:
            DataError: When they have another shape, a feature is missing or there twice, pixels are expected and other
                numbers are found, or a number is not finite, or no token.
        """
        names = _column_names(samples)
        if self.feature_names and names is not None:
            missing = [name for name in self.feature_names if name not in names]
            if missing:
                raise DataError(f"expected the columns {', '.join(self.feature_names)}, found no {missing[0]!r}")
            twice = [name for name in self.feature_names if names.count(name) > 1]
            if twice:
                times = names.count(twice[0])
                raise DataError(f"expected one column {twice[0]!r}, found {times}; leave out the others")
            samples = np.stack([self._column(samples[name], at) for at, name in enumerate(self.feature_names)], axis=1)
        elif self.preparation is not None and any(self.preparation.texts):
            rows = np.array(samples, dtype=object)
            if rows.ndim != 2 or rows.shape[1:] != self.shape:
                raise DataError(f"expected rows of {self.shape[0]} values as in training, found {rows.shape}")
            samples = np.stack([self._column(values, at) for at, values in enumerate(rows.T)], axis=1)
        try:
            given = samples if isinstance(samples, torch.Tensor) else np.array(unmasked(samples))
            if isinstance(given, np.ndarray) and given.dtype == np.object_:
                given = given.astype(np.float64)
            found = given.detach().cpu() if isinstance(given, torch.Tensor) else torch.from_numpy(given)
        # numpy and torch raise these about texts, and about rows of different lengths.
        except (TypeError, ValueError) as error:
            raise DataError(f"expected samples as numbers, (samples, {_axes(self.shape)}): {error}") from None
        if self.dtype == "uint8" and found.dtype != torch.uint8:
            raise DataError(
                f"expected pixels of 0 to 255 as uint8, as the model was trained on, found {_kind(found)}; "
                "convert them, such as by (255 * x).astype('uint8')"
            )
        values = found.to(getattr(torch, self.dtype))
        self._check_numbers(found, values)
        shape = tuple(values.shape[1:])
        if shape == self.shape:
            return values
        if len(self.shape) == 3 and shape == (*self.shape[1:], self.shape[0]):
            return values.movedim(-1, 1)
        one_channel = self.shape[0] == 1 and shape == self.shape[1:]
        side_by_side = len(shape) == 1 and shape[0] == prod(self.shape)
        if values.ndim and (one_channel or side_by_side):
            return values.reshape(-1, *self.shape)
        raise DataError(
            f"expected samples as in training, (samples, {_axes(self.shape)}), found "
            f"{tuple(found.shape)}; a single sample needs a first axis of 1"
        )

    def _column(self, values: Any, column: int) -> np.ndarray[Any, Any]:
        """A column of raw rows as numbers, (rows,): texts are their codes, and gaps are nan."""
        prepared = self.preparation
        name = name_of(self.feature_names, column)
        if prepared is None or not prepared.texts[column]:
            return _numbers_of(values, name)
        codes = prepared.codes(column)
        texts = [str(value) for value in np.asarray(values, dtype=object)]
        if strange := sorted({text for text in texts if text not in codes and text not in GAPS}):
            _logger.warning(
                "column %s: no training row has %s, only %s; it counts as a gap",
                shown(name),
                listed(list(map(shown, strange))),
                listed(list(map(shown, codes))),
            )
        return np.array([codes.get(text, np.nan) for text in texts], dtype=np.float64)

    def _check_numbers(self, found: Tensor, values: Tensor) -> None:
        """Refuse numbers that no sample of the training could hold.

        Args:
            found: The samples as they were given.
            values: The same as the network would read them.
        """
        if self.dtype == "int64":
            wrong = values < 0
            if found.is_floating_point():
                wrong = wrong | (values != found)
            expected = "whole numbers of at least 0"
            offered = found
        else:
            fills = self.preparation is not None and self.preparation.options.impute != "none"
            wrong = values.isinf() if fills else ~torch.isfinite(values)
            expected = "finite numbers"
            offered = values
        if not wrong.ndim or not wrong.any():
            return
        first = tuple(wrong.nonzero()[0].tolist())
        rows = wrong.nonzero()[:, 0].unique()
        others = f" and {len(rows) - 1} others" if len(rows) > 1 else ""
        raise DataError(
            f"expected {expected}, found {offered[first].item():g} in row {first[0]}{others}; fill it in or leave "
            "these rows out"
        )


def _numbers_of(column: Any, name: str) -> np.ndarray[Any, Any]:
    """A column of a table as an array of numbers, with nan for gaps; also one of objects, as of a data base.

    Raises:
        DataError: When it holds something else.
    """
    values = np.asarray(unmasked(column))
    if values.dtype.kind in "biuf":
        return values
    if values.dtype.kind != "O":
        raise DataError(f"expected numbers in the column {name!r}, found {values.dtype}")
    try:
        return np.array([np.nan if str(value) in GAPS else float(value) for value in values], dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"expected numbers in the column {name!r}, found others: {error}") from None


def unmasked(value: Any) -> Any:
    """Return a masked array with missing values in place of masked ones: what lies under a mask means nothing.

    Of a list, its masked arrays. Everything else is returned as it is.
    """
    if isinstance(value, list | tuple) and any(map(np.ma.isMaskedArray, value)):
        return [unmasked(item) for item in value]
    if not np.ma.is_masked(value):
        return value
    if value.dtype.kind in "OUS":
        return np.where(np.ma.getmaskarray(value), None, value.data)
    return value.astype(value.dtype if value.dtype.kind == "f" else np.float64).filled(np.nan)


def _column_names(samples: Any) -> list[str] | None:
    """The names of the columns of a table or mapping; None for anything else."""
    if isinstance(samples, Mapping):
        return list(samples)
    for attribute in ("column_names", "columns"):  # of Arrow, and of a data frame
        names = getattr(samples, attribute, None)
        if names is not None:
            return [str(name) for name in names]
    return None


def _axes(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape))


def _kind(values: Tensor) -> str:
    return str(values.dtype).removeprefix("torch.")


def has_names(class_names: Sequence[str]) -> bool:
    """Whether classes have names; some data sets name theirs "0", "1", ..."""
    return any(name != str(number) for number, name in enumerate(class_names))


def scale_and_shift(dtype: str, mean: tuple[float, ...], std: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """The factor and the summand of each channel that normalise raw samples, (channels,) float32 each.

    Args:
        dtype: The type of the raw samples, "uint8" or "float32".
        mean: The mean of each channel; for uint8 on the scale where 255 is 1.
        std: The standard deviation of each channel, likewise.
    """
    largest = 255.0 if dtype == "uint8" else 1.0
    spread = torch.tensor(std, dtype=torch.float64)
    return (1 / (largest * spread)).float(), (-torch.tensor(mean, dtype=torch.float64) / spread).float()
