"""The classes of samples: integers as they are, texts by their place in the sorted vocabulary."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedstrata.data.rows import batches, is_text, limit_texts, opened, plain
from fedstrata.errors import DataError
from fedstrata.limits import CLASSES


def vocabulary(files: Sequence[Path], column: str, classes: int | None = None) -> tuple[int, tuple[str, ...]]:
    """How many classes there are and what they are called.

    Args:
        files: of all splits, so that a class means the same in each of them.
        column: that holds the classes.
        classes: how many there are known to be, if that is known.

    Returns:
        classes, and their names or nothing.
    """
    texts: set[str] = set()
    largest = -1
    named: tuple[str, ...] = ()
    for file in files:
        with opened(file) as parquet:
            schema = parquet.schema_arrow
        # The other split may come without classes; for the split that is read, `read_labels` insists on them.
        if column not in schema.names:
            continue
        named = named or _features(schema.metadata, column)
        for _, row, batch in batches([file], [column]):
            array = plain(batch.column(0)).drop_null()
            limit_texts(array, file, row, column)
            if is_text(array.type):
                texts.update(array.unique().to_pylist())
            elif pa.types.is_integer(array.type) and len(array):
                largest = max(largest, pc.max(array).as_py())
            limit_classes(max(len(texts), largest + 1), f"{file}: column {column!r}")
    if texts:
        return len(texts), tuple(sorted(texts))
    classes = classes or len(named) or largest + 1
    limit_classes(classes, f"{files[0]}: column {column!r}")
    return classes, named if len(named) == classes else ()


def limit_classes(classes: int, where: str) -> None:
    """Refuse more classes than `CLASSES`: a network has an output for each.

    Args:
        classes: how many there are.
        where: for the message.

    Raises:
        DataError: when there are more.
    """
    if classes > CLASSES:
        raise DataError(f"{where} has {classes:,} classes; expected at most {CLASSES:,}, from 0 without gaps")


def read_labels(files: Sequence[Path], column: str, classes: int, names: Sequence[str]) -> np.ndarray:
    """The class of each row.

    Args:
        files: of one split, shards in order.
        column: that holds the classes, integers or texts.
        classes: number of classes.
        names: the sorted vocabulary where the classes are texts.

    Returns:
        (rows,) int64.

    Raises:
        DataError: naming file and row of a class that is missing, of another type or out of range.
    """
    parts: list[np.ndarray] = []
    for file, row, batch in batches(files, [column]):
        array = plain(batch.column(0))
        if array.null_count:
            missing = pc.index(array.is_null(), True).as_py()
            raise DataError(f"{file}: row {row + missing} has no {column}; every sample needs a class")
        if is_text(array.type):
            codes = np.searchsorted(np.array(names), np.array(array.to_pylist())).astype(np.int64)
        elif pa.types.is_integer(array.type):
            codes = array.to_numpy().astype(np.int64)
        else:
            raise DataError(f"{file}: column {column!r} holds {array.type}; expected integers or texts")
        outside = (codes < 0) | (codes >= classes)
        if outside.any():
            worst = int(np.argmax(outside))
            raise DataError(f"{file}: row {row + worst} has {column} {codes[worst]}; expected 0 to {classes - 1}")
        parts.append(codes)
    if not parts:
        raise DataError(f"{files[0]} has no rows")
    return np.concatenate(parts)


def _features(metadata: dict[bytes, bytes] | None, column: str) -> tuple[str, ...]:
    """The names that the Hugging Face writer leaves in the schema, if it did."""
    try:
        names = json.loads((metadata or {})[b"huggingface"])["info"]["features"][column]["names"]
        return tuple(str(name) for name in names)
    except (ValueError, KeyError, TypeError, RecursionError):
        return ()
