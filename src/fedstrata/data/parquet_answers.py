"""What is to be learnt of the rows of Parquet files: a class of each, or numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedstrata.base.errors import DataError
from fedstrata.base.lazy_torch import torch
from fedstrata.data.dataset import Dataset, check_class_count, expected_classes
from fedstrata.data.location import Location
from fedstrata.data.mapped import Inputs
from fedstrata.data.parquet_columns import first_true, is_list, is_text, read_arrays, read_chunks, read_schema


@dataclass(frozen=True)
class Answers:
    """What is to be learnt of some rows.

    Attributes:
        labels: The class of each row, (rows,) int64; 0 where there are targets.
        classes: The number of classes.
        class_names: Their names, or nothing.
        targets: What stands in place of classes, (rows, outputs), float32 for numbers and int64 for integers; None for
            classes.
    """

    labels: np.ndarray
    classes: int
    class_names: tuple[str, ...] = ()
    targets: torch.Tensor | None = None

    def repeated(self, counts: Sequence[int]) -> Answers:
        """The same where each row is so many rows."""
        targets = self.targets
        if targets is not None:
            targets = targets.repeat_interleave(torch.tensor(counts), dim=0)
        return replace(self, labels=np.repeat(self.labels, counts), targets=targets)


def dataset_of_answers(
    name: str,
    inputs: Inputs,
    answers: Answers,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    columns: dict[str, np.ndarray],
    *,
    unit: str | None = None,
    notes: tuple[str, ...] = (),
) -> Dataset:
    """Make a data set of inputs and what is to be learnt of them. The other arguments are its fields."""
    return Dataset(
        name=name,
        inputs=inputs,
        labels=torch.from_numpy(answers.labels),
        classes=answers.classes,
        mean=mean,
        std=std,
        columns=columns,
        unit=unit,
        class_names=answers.class_names,
        targets=answers.targets,
        notes=notes,
    )


def read_answers(location: Location, files: Sequence[Path], column: str) -> Answers:
    """Read a column of classes; of data of a user's own also one of numbers, or of lists.

    Args:
        location: The data set. All its files are read, so that a class means the same in both splits.
        files: The files of one split, shards in order.
        column: The column.

    Raises:
        DataError: When a row has none, or one that does not fit.
    """
    if location.info is None and _is_target(read_schema(files[0]).field(column).type):
        targets, classes = _read_targets(location, files, column)
        return Answers(np.zeros(len(targets), np.int64), classes, targets=targets)
    return Answers(*_read_labels(location, files, column))


def _read_labels(location: Location, files: Sequence[Path], column: str) -> tuple[np.ndarray, int, tuple[str, ...]]:
    """Read the class of each row. Classes that are texts are numbered in alphabetical order.

    Args:
        location: The data set. All its files are read, so that a class means the same in both splits.
        files: The files of one split, shards in order.
        column: The column that holds the classes, as integers or texts.

    Returns:
        The classes, (rows,) int64, their number, and their names or an empty tuple.

    Raises:
        DataError: When a class is missing, of another type or out of range, or there are no rows or too many classes.
    """
    known = location.info.classes if location.info else None
    classes, class_names = _count_classes(location.train + location.test, column, known)
    parts: list[np.ndarray] = []
    for (chunk,) in read_chunks(files, [column]):
        values = chunk.values
        # A missing text may be stored as an empty one.
        missing = pc.equal(values.fill_null(""), "") if is_text(values.type) else values.is_null()
        if pc.any(missing).as_py():
            raise chunk.error(first_true(missing), "holds no value; every sample needs a class")
        if is_text(values.type):
            labels = np.searchsorted(np.array(class_names), np.array(values.to_pylist())).astype(np.int64)
        elif pa.types.is_integer(values.type):
            labels = values.to_numpy().astype(np.int64)
        else:
            raise DataError(f"{chunk.file}: column {column!r} holds {values.type}; expected integers or texts")
        wrong = (labels < 0) | (labels >= classes)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise chunk.error(row, f"holds class {labels[row]}; {expected_classes(int(labels[row]), classes)}")
        parts.append(labels)
    if not parts:
        raise DataError(f"{files[0]} has no rows")
    return np.concatenate(parts), classes, class_names


def _is_target(kind: Any) -> bool:
    """Tell whether a column of an Arrow type holds something in place of a class: numbers, or lists."""
    return is_list(kind) or bool(pa.types.is_floating(kind))


def _read_targets(location: Location, files: Sequence[Path], column: str) -> tuple[Any, int]:
    """Read what stands in place of the class of each row: a number, or a list of numbers or of integers.

    Returns:
        A tensor (rows, outputs), float32 for numbers and int64 for integers, and the number of classes of these
        integers, of both splits.

    Raises:
        DataError: When a row is missing, has another length or holds a number that is not finite.
    """
    values = _numbers(files, column)
    kind = read_schema(files[0]).field(column).type
    while is_list(kind):
        kind = kind.value_type
    if pa.types.is_floating(kind):
        return torch.from_numpy(values), 1
    both = values if not location.test else np.concatenate([values, _numbers(location.train, column)])
    classes = 1 + int(both.max(initial=0))
    check_class_count(classes, f"{files[0]}: column {column!r}")
    return torch.from_numpy(values.astype(np.int64)), classes


def _numbers(files: Sequence[Path], column: str) -> np.ndarray:
    """Read a column of numbers, or of lists of them: (rows, numbers) float32."""
    values = np.concatenate(list(read_arrays(files, column)))
    return values.reshape(len(values), -1)


def _count_classes(files: Sequence[Path], column: str, known: int | None) -> tuple[int, tuple[str, ...]]:
    """Return the number of classes in files of all splits, and their names or an empty tuple."""
    texts: set[str] = set()
    largest = -1
    class_names: tuple[str, ...] = ()
    for file in files:
        schema = read_schema(file)
        # The other split may have no classes.
        if column not in schema.names:
            continue
        class_names = class_names or hugging_face_names(schema.metadata, column)
        for (chunk,) in read_chunks([file], [column]):
            values = chunk.values.drop_null()
            if is_text(values.type):
                texts.update(values.unique().to_pylist())
            elif pa.types.is_integer(values.type) and len(values):
                largest = max(largest, pc.max(values).as_py())
            check_class_count(max(len(texts), largest + 1), f"{file}: column {column!r}")
    if texts:
        return len(texts), tuple(sorted(texts))
    classes = known or len(class_names) or largest + 1
    check_class_count(classes, f"{files[0]}: column {column!r}")
    return classes, class_names if len(class_names) == classes else ()


def hugging_face_names(metadata: dict[bytes, bytes] | None, column: str) -> tuple[str, ...]:
    """Return the class names that the Hugging Face writer leaves in the schema, if it did."""
    try:
        names = json.loads((metadata or {})[b"huggingface"])["info"]["features"][column]["names"]
        return tuple(str(name) for name in names)
    except (ValueError, KeyError, TypeError, RecursionError):
        return ()
