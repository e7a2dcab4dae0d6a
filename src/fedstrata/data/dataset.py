"""A data set, whose inputs are in memory or in files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedstrata.base.errors import DataError, RowError, check_rules
from fedstrata.base.lazy_torch import torch
from fedstrata.base.quoting import shown
from fedstrata.data.column_roles import SPLIT_COLUMN
from fedstrata.data.mapped import Inputs, MappedInputs, blocks, resize
from fedstrata.data.preparation import Preparation, rounded
from fedstrata.data.sample_format import Answer, SampleFormat

if TYPE_CHECKING:
    from torch import Tensor

Split = Literal["train", "test"]

SPLITS: tuple[Split, ...] = get_args(Split)
"""The names of the splits."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples with their classes, ready to be indexed.

    Attributes:
        name: The name that the experiment gives.
        inputs: The samples, (samples, channels, ...) uint8 or float32. Images are (samples, channels, height, width)
            uint8, signals are (samples, channels, time) float32. Tokens are (samples, length) int64. Rows of a table
            are (samples, features) float32 or float64, in the form of `Preparation`. They are in memory or in files.
        labels: The class of each sample in 0..classes-1, (samples,) int64.
        classes: The number of classes. Some of them may have no sample.
        mean: The mean of each channel, (channels,). For uint8 inputs it is on the scale where 255 is 1. Tokens and rows
            of a table have none.
        std: The standard deviation of each channel, likewise, > 0.
        columns: Further columns of the data, (samples,) each.
        unit: The column whose equal values mark samples that are not independent, such as windows of one recording.
            None where all samples are independent.
        class_names: The name of each class, (classes,), or empty where the files give none.
        feature_names: The name of each feature, (features,), where columns of a table are the features; else empty.
        texts: The texts of each feature, as in `Preparation`; empty where all features are numbers.
        preparation: How the rows of a table are prepared; None before it is fitted, and for other samples.
        stored_shape: The shape of one sample before images were resized; empty where they were not.
        targets: What networks learn in place of the classes: numbers, or labels of 0 and 1, (samples, outputs)
            float32; or classes of tokens, (samples, length) int64, -100 where a token has none. None for the classes.
        answer: What networks say about the samples.
        notes: What looked wrong while the files were read, in a line each.

    Raises:
        DataError: When the parts do not fit together.
    """

    name: str
    inputs: (
        Any  # A tensor, or `MappedInputs`: what is common to both is used everywhere, the rest in this package alone.
    )
    labels: Tensor
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    unit: str | None = None
    class_names: tuple[str, ...] = ()
    feature_names: tuple[str, ...] = ()
    texts: tuple[tuple[str, ...], ...] = ()
    preparation: Preparation | None = None
    stored_shape: tuple[int, ...] = ()
    targets: Tensor | None = None
    answer: Answer = "classes"
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check what a reader of another package, or the unit that an experiment names, may break."""
        axes = self.inputs.ndim
        kinds = (torch.uint8, torch.float32, torch.int64, *([torch.float64] if axes == 2 else []))
        targets = self.labels if self.targets is None else self.targets
        sizes = {name: len(part) for name, part in {**self.columns, "inputs": self.inputs, "targets": targets}.items()}
        channels = 0 if self.holds_tokens or self.holds_rows or axes < 2 else self.inputs.shape[1]
        rules = {
            "inputs are uint8 or float32 of shape (samples, channels, ...), int64 tokens (samples, length), or float64 "
            "rows (samples, features)": axes > 1 and self.inputs.dtype in kinds,
            "there is a sample at least, and as many of each part as there are labels": set(sizes.values())
            == {len(self.labels) or 1},
            f"labels are (samples,) int64 of 0 to {self.classes - 1}": self.labels.dtype == torch.int64
            and self.labels.ndim == 1
            and bool(((self.labels >= 0) & (self.labels < self.classes)).all()),
            "each channel has a mean and a std > 0": len(self.mean) == len(self.std) == channels
            and min(self.std, default=1) > 0,
            f"there are {self.classes} class names or none": len(self.class_names) in (0, self.classes),
        }
        found = f"{self.inputs.dtype} {tuple(self.inputs.shape)}, {len(self.labels)} labels, samples {sizes}, mean "
        check_rules(self.name, rules, f"{found}{self.mean} and std {self.std}", DataError)
        if self.unit is not None and self.unit not in self.columns:
            there = ", ".join(self.columns) or "none"
            raise DataError(f"data.unit = {self.unit!r}: expected a column of {self.name}, found {there}")
        if self.units is not None:
            # nan is not itself. Together these samples would pass for one unit, all of which is held out or not.
            missing = int(np.sum(self.units == "" if self.units.dtype.kind == "U" else self.units != self.units))
            if missing:
                raise DataError(
                    f"data.unit = {self.unit!r}: {missing} samples of {self.name} have no value in it, so nothing says "
                    "which samples they depend on; fill it in, or leave these samples out"
                )

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of one sample as the network reads it."""
        return tuple(self.inputs.shape[1:]) if self.preparation is None else (self.preparation.width,)

    @property
    def holds_tokens(self) -> bool:
        """Return whether the samples are rows of tokens, which are numbers of words and the like."""
        return bool(self.inputs.dtype == torch.int64)

    @property
    def holds_rows(self) -> bool:
        """Return whether the samples are rows of a table, which a `Preparation` makes fit for a network."""
        return self.inputs.ndim == 2 and self.inputs.dtype.is_floating_point and not self.mean

    @property
    def outputs(self) -> tuple[int, ...]:
        """Return the shape of what a network has to say about one sample."""
        if self.targets is None:
            return (self.classes,)
        shape = tuple(self.targets.shape[1:])
        return shape if self.targets.is_floating_point() else (*shape, self.classes)

    @property
    def units(self) -> np.ndarray | None:
        """Return the independent unit of each sample, (samples,); None where all samples are independent."""
        return None if self.unit is None else self.columns[self.unit]

    def rows(self, chosen: np.ndarray) -> Dataset:
        """Return some of the samples, with the same normalisation.

        Args:
            chosen: The positions of those that are kept, in their new order, (samples',); or whether each is kept,
                (samples,) bool.
        """
        kept = torch.from_numpy(chosen)
        return replace(
            self,
            inputs=self.inputs.at(kept) if isinstance(self.inputs, MappedInputs) else self.inputs[kept],
            labels=self.labels[kept],
            targets=None if self.targets is None else self.targets[kept],
            columns={name: column[chosen] for name, column in self.columns.items()},
        )

    def copied(self, copies: int) -> Dataset:
        """Return a data set in which every sample stands so many times, also in memory."""
        return self if copies == 1 else self.rows(np.tile(np.arange(len(self)), copies))

    @property
    def on_disk(self) -> bool:
        """Return whether inputs are read from files when they are needed."""
        return isinstance(self.inputs, MappedInputs)

    @property
    def sample_format(self) -> SampleFormat:
        """Return what raw samples look like, and how a network reads them."""
        return SampleFormat(
            shape=self.stored_shape or tuple(self.inputs.shape[1:]),
            dtype=str(self.inputs.dtype).removeprefix("torch."),
            mean=self.mean,
            std=self.std,
            classes=self.classes,
            class_names=self.class_names,
            side=self.shape[-1] if self.stored_shape else None,
            outputs=() if self.targets is None else self.outputs,
            answer=self.answer,
            feature_names=self.feature_names,
            preparation=self.preparation,
        )

    @cached_property
    def _affine(self) -> tuple[Tensor, Tensor]:
        return self.sample_format.affine

    def channels_last(self) -> Dataset:
        """Return the same samples with the channels of images last in memory, which is fastest for convolutions."""
        if isinstance(self.inputs, MappedInputs) or self.inputs.ndim != 4:
            return self
        return replace(self, inputs=self.inputs.contiguous(memory_format=torch.channels_last))

    def gather(self, index: Tensor) -> Tensor:
        """Return the stored inputs of the samples at some positions: (samples',) int64 -> (samples', channels, ...)."""
        if isinstance(self.inputs, MappedInputs):
            # What is read is laid out in memory as below.
            inputs, index = self.inputs[index], torch.arange(len(index))
        else:
            inputs = self.inputs
        if inputs.ndim != 4:
            return inputs.index_select(0, index)
        return inputs.permute(0, 2, 3, 1).index_select(0, index).permute(0, 3, 1, 2)

    def prepare(self, index: Tensor) -> Tensor:
        """Return the inputs of the samples at some positions, gathered and normalised."""
        return self.normalise(self.gather(index))

    def normalise(self, raw: Tensor, clients: Tensor | None = None) -> Tensor:
        """Centre and scale each channel of stored inputs, on their device, or prepare the rows of a table.

        The result is (samples', channels, ...) float32, and images are in channels_last. Tokens stay as they are.

        Args:
            raw: The inputs.
            clients: The client of each, (samples',) int64, for statistics that are each client's own.
        """
        if self.holds_tokens:
            return raw
        if self.holds_rows:
            return raw.float() if self.preparation is None else self.preparation(raw.double(), clients)
        affine = [part.to(raw.device) for part in self._affine]
        # In place on a fresh copy: several times faster on a CPU than addcmul, which is slow where it broadcasts.
        if raw.ndim != 4:
            scale, shift = (part.view((-1,) + (1,) * (raw.ndim - 2)) for part in affine)
            return raw.to(torch.float32, copy=True).mul_(scale).add_(shift)
        pixels = raw.permute(0, 2, 3, 1).contiguous()
        # The channels are repeated for every pixel, because a loop over three numbers is slow.
        scale, shift = (part.expand(pixels.shape[1:]).contiguous() for part in affine)
        return pixels.to(torch.float32, copy=True).mul_(scale).add_(shift).permute(0, 3, 1, 2)

    def as_tokens(self) -> Dataset:
        """Return the same samples as rows of tokens, int64.

        Raises:
            DataError: When they are no rows, or hold numbers that are not whole or below 0.
        """
        if self.inputs.ndim != 2 or any(
            bool(((part.to(torch.int64) != part) | (part < 0)).any()) for part in blocks(self.inputs)
        ):
            raise DataError(
                f"data.tokens = true: expected samples of {self.name} that are rows of whole numbers of at least 0, "
                f"found {self.inputs.dtype} {tuple(self.inputs.shape)}; leave data.tokens out"
            )
        return replace(self, inputs=self.inputs.to(torch.int64), mean=(), std=())

    def resized(self, side: int) -> Dataset:
        """Return the same images, bilinearly resized to ``side`` x ``side`` pixels (EMNIST's 28 to 32 for VGG).

        Raises:
            DataError: When the samples are not uint8 images.
        """
        if self.inputs.ndim != 4 or self.inputs.dtype != torch.uint8:
            raise DataError(f"{self.name}: samples {self.shape} cannot be resized to {side} x {side} pixels")
        if self.shape[1:] == (side, side):
            return self
        stored_shape = self.stored_shape or self.shape
        if isinstance(self.inputs, MappedInputs):
            return replace(self, inputs=replace(self.inputs, side=side), stored_shape=stored_shape)
        images = torch.cat([resize(part, side).to(torch.uint8) for part in blocks(self.inputs)])
        return replace(self, inputs=images, stored_shape=stored_shape)


def channel_statistics(inputs: Inputs, rows: Tensor | None = None) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Compute the mean and standard deviation of each channel, to six digits; for uint8, 255 counts as 1.

    Float64 sums differ in the digits after the sixth between machines. A constant channel has the standard deviation 1,
    and its mean is not rounded: it becomes 0.

    Args:
        inputs: The samples, (samples, channels, ...).
        rows: The positions of the samples that count, int64; None for all.
    """
    largest = 255.0 if inputs.dtype == torch.uint8 else 1.0
    count = (len(inputs) if rows is None else len(rows)) * prod(inputs.shape[2:])
    broadcast = (-1,) + (1,) * (inputs.ndim - 2)
    axes = [axis for axis in range(inputs.ndim) if axis != 1]
    total = squares = torch.zeros(inputs.shape[1], dtype=torch.float64)
    for block in blocks(inputs, rows):
        total = total + block.double().sum(axes)
    mean = total / count
    for block in blocks(inputs, rows):
        # Around the mean, not as the difference of two large sums: acceleration near 1 g would lose its digits.
        squares = squares + (block.double() - mean.view(broadcast)).square().sum(axes)
    spread = (squares / count).sqrt() / largest
    found = [
        rounded(middle, deviation) if deviation else (middle, 1.0)
        for middle, deviation in zip((mean / largest).tolist(), spread.tolist(), strict=True)
    ]
    return tuple(middle for middle, _ in found), tuple(deviation for _, deviation in found)


def is_number(text: str) -> bool:
    """Return whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def finite_float32(values: np.ndarray, place: str, of: str, first_row: int = 0) -> np.ndarray:
    """Convert the numbers of some rows, (rows, ...), to float32.

    Args:
        values: The numbers.
        place: Where they come from, for messages.
        of: The array or column that they are, for messages.
        first_row: The number of the first row.

    Raises:
        RowError: When a row holds a value that is not finite.
    """
    with np.errstate(over="ignore"):
        values = values.astype(np.float32, copy=False)
    problem = f"of {of} holds a value that is not a finite float32 number"
    refuse_rows(~np.isfinite(values), place, problem, "correct it or leave the row out", first_row)
    return values


def refuse_rows(wrong: NDArray[np.bool_], place: str, problem: str, advice: str, first_row: int = 0) -> None:
    """Refuse rows that are wrong: the first of them is named, and the others are counted.

    Args:
        wrong: What is wrong, (rows, ...).
        place: Where the rows come from.
        problem: What is wrong with each.
        advice: What settles it.
        first_row: The number of the first row.

    Raises:
        RowError: When there are any.
    """
    rows = np.flatnonzero(wrong.reshape(len(wrong), -1).any(axis=1))
    if len(rows):
        others = f", and so do {len(rows) - 1} others" if len(rows) > 1 else ""
        raise RowError(place, first_row + int(rows[0]), f"{problem}{others}; {advice}")


def numbers_as_names(labels: Tensor) -> tuple[tuple[str, ...], Tensor]:
    """Take labels for the names of classes, where a file does not say that its numbers are texts.

    Args:
        labels: The number of each sample, (samples,) int64.

    Returns:
        The names, by their numbers, and the class of each sample as a place among them, (samples,).
    """
    numbers, places = labels.unique(return_inverse=True)
    return tuple(map(str, numbers.tolist())), places


def is_test(values: NDArray[Any], name: str) -> NDArray[np.bool_]:
    """Read a column ``split``: whether each sample is for testing, (samples,).

    Args:
        values: The column, (samples,).
        name: Where the column comes from, for the message.

    Raises:
        RowError: When a value is not "train" or "test".
    """
    texts = values.astype(np.str_)
    strange = ~np.isin(texts, SPLITS)
    first = shown(str(texts[np.argmax(strange)]))
    advice = f"found {first}; give other samples another file, or the column another name"
    refuse_rows(strange, name, f"of column {SPLIT_COLUMN!r} holds neither train nor test", advice)
    testing: NDArray[np.bool_] = texts == "test"
    return testing
