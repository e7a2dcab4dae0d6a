"""Numbers in nested lists of a Parquet column, made into one array."""

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedstrata.data.rows import batches
from fedstrata.errors import DataError
from fedstrata.limits import SAMPLE_NUMBERS


def read_arrays(files: Sequence[Path], column: str) -> np.ndarray:
    """Read a column of equally shaped lists of numbers.

    Args:
        files: of one split, shards in order.
        column: list, fixed-size list or nested lists of numbers.

    Returns:
        (rows, ...) float32.

    Raises:
        DataError: naming file and row of a list that is missing, has another shape or holds no finite number.
    """
    parts: list[np.ndarray] = []
    for file, row, batch in batches(files, [column]):
        values = _dense(batch.column(0), file, row, column)
        if parts and values.shape[1:] != parts[0].shape[1:]:
            raise DataError(
                f"{file}: row {row} of column {column!r} has shape {values.shape[1:]}; "
                f"expected {parts[0].shape[1:]}, as the rows before"
            )
        limit_sample(values.shape[1:], f"{file}: column {column!r}")
        parts.append(finite(values, str(file), row))
    return np.concatenate(parts)


def finite(values: np.ndarray, where: str, first: int = 0) -> np.ndarray:
    """Numbers as float32, if each is finite.

    Args:
        values: (rows, ...) of any numeric type.
        where: what to name in the error.
        first: number of the first row.

    Raises:
        DataError: naming the first row that holds another value.
    """
    with np.errstate(over="ignore"):
        values = values.astype(np.float32, copy=False)
    bad = ~np.isfinite(values).reshape(len(values), -1).all(axis=1)
    if bad.any():
        row = first + int(np.argmax(bad))
        raise DataError(f"{where}: row {row} holds a value that is not a finite float32 number")
    return values


def limit_sample(shape: Sequence[int], where: str) -> None:
    """Refuse samples of more than `SAMPLE_NUMBERS`.

    Args:
        shape: of one sample.
        where: for the message.

    Raises:
        DataError: when they are larger.
    """
    if prod(shape) > SAMPLE_NUMBERS:
        raise DataError(
            f"{where} has samples of {prod(shape):,} numbers; expected at most {SAMPLE_NUMBERS:,}, so make them smaller"
        )


def is_list(kind: Any) -> bool:
    """Whether an Arrow type is a list of any sort."""
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in tests)


def _dense(array: Any, file: Path, row: int, column: str) -> np.ndarray:
    """The lists of one batch, (rows, ...), of the columns' own type."""
    shape = [len(array)]

    def fault(place: int, what: str) -> DataError:
        # A level holds prod(shape[1:]) lists or numbers per row.
        return DataError(f"{file}: row {row + place // prod(shape[1:])} of column {column!r} {what}")

    while True:
        if array.null_count:
            raise fault(pc.index(array.is_null(), True).as_py(), "holds a missing value")
        if not is_list(array.type):
            break
        lengths = pc.list_value_length(array).to_numpy()
        if lengths[0] == 0:
            raise fault(0, "holds an empty list")
        if (lengths != lengths[0]).any():
            place = int(np.argmax(lengths != lengths[0]))
            raise fault(place, f"holds a list of {lengths[place]}; expected {lengths[0]}, as in the rows before")
        shape.append(int(lengths[0]))
        array = array.flatten()
    if not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type)):
        raise DataError(f"{file}: column {column!r} holds lists of {array.type}; expected numbers")
    values: np.ndarray = array.to_numpy().reshape(shape)
    return values
