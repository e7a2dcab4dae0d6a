"""What every function here accepts, turned into one form: tensors of rows, square matrices, numbered labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from fedstrata.base.lazy_torch import torch

Array: TypeAlias = "torch.Tensor | np.ndarray[Any, Any]"
"""A tensor of torch or an array of numpy."""

Numbers: TypeAlias = "Array | Sequence[int] | Sequence[float]"
"""One number for each client: a tensor, an array or a list, (m,)."""

FloatMatrix: TypeAlias = "np.ndarray[tuple[int, int], np.dtype[np.float64]]"
GroupLabels: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.int64]]"

BLOCK_COLUMNS = 4096
"""The number of columns in a block. 100 rows of it take 3 MB in float64 and stay in a processor's cache."""

BLOCK_NUMBERS = 2**25
"""The number of numbers in a block at most, 256 MB in float64. With more than 8192 rows a block has fewer columns."""


def tensor(values: Numbers) -> torch.Tensor:
    """The same numbers as a tensor that needs no gradient; copied only where torch cannot share them."""
    if isinstance(values, torch.Tensor):
        return values.detach()
    # A list of floats would become float32 in torch; and torch warns of arrays that it may not write to (memory
    # maps), and refuses reversed ones.
    return torch.from_numpy(np.require(values, requirements=["C", "W"]))


def blocks(rows: Array, start: int = 0, stop: int | None = None) -> Iterator[torch.Tensor]:
    """Columns of the rows (m, p) in float64, a few at a time, so that a memory map is never loaded whole.

    Args:
        rows: The rows, (m, p).
        start: The first column.
        stop: The column after the last one; p by default.
    """
    width = max(1, min(BLOCK_COLUMNS, BLOCK_NUMBERS // max(1, len(rows))))
    stop = rows.shape[1] if stop is None else stop
    for first in range(start, stop, width):
        yield tensor(rows[:, first : min(first + width, stop)]).double().contiguous()


def require_rows(rows: Array) -> None:
    """Refuse what is no matrix.

    Raises:
        ValueError: When there are not two axes.
    """
    if rows.ndim != 2:
        raise ValueError(f"expected rows of shape (m, p), found {tuple(rows.shape)}; flatten each row first")


def require_finite(values: torch.Tensor, what: str) -> torch.Tensor:
    """The values unchanged.

    Args:
        values: The values, of any shape.
        what: The name of the values, for the error message.

    Raises:
        ValueError: When one is nan or infinite; names the first such row.
    """
    broken = (~values.isfinite()).nonzero()
    if len(broken):
        raise ValueError(f"expected finite {what}, found nan or infinity in row {int(broken[0, 0])}")
    return values


def square(values: Array, least: float = -np.inf) -> FloatMatrix:
    """A symmetric matrix (m, m) in float64, freed of the rounding that made its triangles differ.

    Raises:
        ValueError: When it is not square, not symmetric, not finite, or holds an entry below ``least``.
    """
    if values.ndim != 2 or values.shape[0] != values.shape[1]:
        raise ValueError(f"expected a matrix of shape (m, m), found {tuple(values.shape)}")
    matrix: FloatMatrix = require_finite(tensor(values), "entries").double().cpu().numpy()
    if not np.allclose(matrix, matrix.T, rtol=1e-5, atol=1e-6):
        raise ValueError("expected a symmetric matrix, found one whose triangles differ")
    if matrix.size and matrix.min() < least - 1e-9:
        raise ValueError(f"expected distances of at least 0, found {matrix.min():g}; is this a similarity?")
    mean: FloatMatrix = np.maximum((matrix + matrix.T) / 2, least)
    return mean


def as_precise(number: float, values: Array) -> float:
    """The number as the matrix would hold it, so that 0.15 is found on the boundary of a float32 matrix too."""
    dtype = tensor(values).dtype
    return float(torch.tensor(number, dtype=dtype)) if dtype.is_floating_point else float(number)


def renumbered(labels: Numbers) -> GroupLabels:
    """Labels (m,) renumbered by the smallest member of each group; every negative one is a group of its own.

    Raises:
        ValueError: When the labels are not one vector of integers.
    """
    values = tensor(labels)
    if values.ndim != 1 or (values.is_floating_point() and len(values)):
        raise ValueError(f"expected integer labels (m,), found {values.dtype} of shape {tuple(values.shape)}")
    found: dict[tuple[int, int], int] = {}
    keys = ((label, row if label < 0 else -1) for row, label in enumerate(values.tolist()))
    return np.array([found.setdefault(key, len(found)) for key in keys], dtype=np.int64)
