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
    def affine(self) -> tuple[Tensor, Tensor]:
        """The factor and the summand of each channel that normalise raw samples, (channels,) float32 each."""
        largest = 255.0 if self.dtype == "uint8" else 1.0
        spread = torch.tensor(self.std, dtype=torch.float64)
        return (1 / (largest * spread)).float(), (-torch.tensor(self.mean, dtype=torch.float64) / spread).float()

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
        columns = self._columns(samples)
        if columns:
            samples = np.stack([self._numbers(column, at) for at, column in enumerate(columns)], axis=1)
        axes = ", ".join(map(str, self.shape))
        try:
            if not isinstance(samples, torch.Tensor):
                array = np.array(unmasked(samples))
                samples = torch.from_numpy(array.astype(np.float64) if array.dtype == np.object_ else array)
        # numpy and torch raise these about texts, and about rows of different lengths.
        except (TypeError, ValueError) as error:
            raise DataError(f"expected samples as numbers, (samples, {axes}): {error}") from None
        found = samples.detach().cpu()
        if self.dtype == "uint8" and found.dtype != torch.uint8:
            raise DataError(
                "expected pixels of 0 to 255 as uint8, as the model was trained on, found "
                f"{str(found.dtype).removeprefix('torch.')}; convert them, such as by (255 * x).astype('uint8')"
            )
        values: Tensor = found.to(getattr(torch, self.dtype))
        self._check_numbers(found, values)
        shape = tuple(values.shape[1:])
        if shape == self.shape:
            return values
        if len(self.shape) == 3 and shape == (*self.shape[1:], self.shape[0]):
            return values.movedim(-1, 1)
        one_channel = self.shape[0] == 1 and shape == self.shape[1:]
        side_by_side = shape == (prod(self.shape),)
        if values.ndim and (one_channel or side_by_side):
            return values.reshape(-1, *self.shape)
        raise DataError(
            f"expected samples as in training, (samples, {axes}), found {tuple(found.shape)}; a single sample needs a "
            "first axis of 1"
        )

    def _columns(self, samples: Any) -> list[Any]:
        """The columns of the features, if samples are rows of a table with names or texts; else none."""
        # A data frame has `columns`; a table of Arrow also has `column_names`, and its columns have no names.
        named = getattr(samples, "column_names", getattr(samples, "columns", None))
        names = samples if isinstance(samples, Mapping) else named
        if self.feature_names and names is not None:
            for name in self.feature_names:
                if (times := list(names).count(name)) != 1:
                    expected = ", ".join(self.feature_names)
                    raise DataError(f"expected the columns {expected}, found {times or 'no'} {name!r}")
            return [samples[name] for name in self.feature_names]
        if self.preparation is None or not any(self.preparation.texts):
            return []
        rows = np.array(samples, dtype=object)
        if rows.ndim != 2 or rows.shape[1:] != self.shape:
            raise DataError(f"expected rows of {self.shape[0]} values as in training, found {rows.shape}")
        return list(rows.T)

    def _numbers(self, column: Any, at: int) -> np.ndarray[Any, Any]:
        """A column of raw rows as numbers, (rows,): texts are their codes, and gaps are nan."""
        name = name_of(self.feature_names, at)
        values = np.asarray(unmasked(column))
        known = None if self.preparation is None or not self.preparation.texts[at] else self.preparation.codes(at)
        if known is None and values.dtype.kind in "biuf":
            return values
        texts = list(map(str, values))
        if known is None:
            try:
                return np.array([np.nan if text in GAPS else float(text) for text in texts])
            except ValueError as error:
                raise DataError(f"expected numbers in the column {name!r}, found others: {error}") from None
        if strange := sorted(set(texts) - set(known) - set(GAPS)):
            _logger.warning(
                "column %s: no training row has %s, only %s; it counts as a gap",
                shown(name),
                listed(list(map(shown, strange))),
                listed(list(map(shown, known))),
            )
        return np.array([known.get(text, np.nan) for text in texts], dtype=np.float64)

    def _check_numbers(self, found: Tensor, values: Tensor) -> None:
        """Refuse numbers that no sample of the training could hold.

        Args:
            found: The samples as they were given.
            values: The same as the network would read them.
        """
        if self.dtype == "int64":
            expected = "whole numbers of at least 0"
            offered = found.double()
            wrong = (values < 0) | (values != offered)
        else:
            expected = "finite numbers"
            offered = values
            fills = self.preparation is not None and self.preparation.options.impute != "none"
            wrong = values.isinf() if fills else ~values.isfinite()
        if wrong.ndim and wrong.any():
            first = tuple(wrong.nonzero()[0].tolist())
            raise DataError(
                f"expected {expected}, found {offered[first].item():g} in row {first[0]}; fill it in or leave the row "
                "out"
            )


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


def has_names(class_names: Sequence[str]) -> bool:
    """Whether classes have names; some data sets name theirs "0", "1", ..."""
    return any(name != str(number) for number, name in enumerate(class_names))
