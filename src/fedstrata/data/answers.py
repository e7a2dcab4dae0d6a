"""What is to be learnt of the rows of a table: classes, which are numbered, or numbers in place of them."""

from __future__ import annotations

import json
import operator as op
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedstrata.base.errors import DataError, RowError
from fedstrata.base.lazy_torch import torch
from fedstrata.base.limits import CLASSES, COLUMN_CHARACTERS
from fedstrata.base.quoting import shown
from fedstrata.data.column_roles import Comparison, ReadOptions
from fedstrata.data.dataset import NUMBERS_HINT, check_class_count, expected_classes, finite_float32, is_number

COMPARED = ("no", "yes")
"""The classes that a comparison makes."""


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
    targets: np.ndarray | None = None

    def repeated(self, counts: np.ndarray) -> Answers:
        """The same where each row is so many rows."""
        targets = None if self.targets is None else np.repeat(self.targets, counts, axis=0)
        return replace(self, labels=np.repeat(self.labels, counts), targets=targets)

    @property
    def fields(self) -> dict[str, Any]:
        """Return the fields of a `Dataset` that hold them."""
        return {
            "labels": torch.from_numpy(self.labels),
            "classes": self.classes,
            "class_names": self.class_names,
            "targets": None if self.targets is None else torch.from_numpy(self.targets),
        }


def answers_of(values: np.ndarray, place: str, called: str, names: tuple[str, ...] = (), known: int = 0) -> Answers:
    """Number the classes of some rows, or take numbers in place of them.

    Args:
        values: The classes, (rows,) integers, bools or texts; or numbers, (rows,) or (rows, outputs).
        place: Where they come from, for messages.
        called: What they are called there.
        names: The names of integers, if they are known.
        known: The number of classes, where it is known.

    Raises:
        DataError: When they do not fit, or a class is missing.
    """
    values = values.astype(np.int64) if values.dtype.kind == "b" else values
    kind = values.dtype.kind
    if values.ndim > (1 if kind == "U" else 2) or kind not in "iufU":
        raise DataError(
            f"{place}: {called} holds {values.dtype} {values.shape[1:]}; expected integers or texts, or one number or "
            "several"
        )
    if kind == "U":
        return _named(values, place, called)
    if kind == "f":
        numbers = finite_float32(values, place, called)
        return Answers(
            np.zeros(len(values), np.int64), 1, targets=np.ascontiguousarray(numbers.reshape(len(numbers), -1))
        )
    classes = _count(values, place, called) if not (known or names) else known or len(names)
    check_class_count(classes, f"{place}: {called}")
    values = values.astype(np.int64)
    if values.ndim == 2:
        return Answers(np.zeros(len(values), np.int64), classes, targets=values)
    wrong = (values < 0) | (values >= classes)
    if wrong.any():
        row = int(np.argmax(wrong))
        label = int(values[row])
        raise RowError(place, row, f"of {called} holds class {label}; {expected_classes(label, classes)}")
    return Answers(values, classes, names if len(names) == classes else ())


_SIGNS = {">": op.gt, ">=": op.ge, "<": op.lt, "<=": op.le, "==": op.eq, "!=": op.ne}


def answers_by_rule(values: np.ndarray, options: ReadOptions, column: str, place: str) -> Answers | None:
    """Make classes of a column by a comparison, or by the class of each value; None where it holds the classes.

    Args:
        values: The column, (rows,).
        options: The label and the classes.
        column: The name of the column.
        place: Where it comes from, for messages.

    Raises:
        DataError: When a value is missing, is of another kind than those that it is compared with, or has no class.
    """
    compared = None if options.label in (None, column) else Comparison.of(options.label)
    if not (compared or options.classes):
        return None
    called = f"column {column!r}"
    texts = values.dtype.kind == "U"
    if values.ndim > 1:
        raise DataError(f"{place}: {called} holds lists; expected one number or text in each row, to make classes of")
    refuse_missing_classes(values == "" if texts else values != values, place, called)
    if compared is not None:
        signs = ("==", "!=") if texts else tuple(_SIGNS)
        if isinstance(compared.value, str) != texts or compared.sign not in signs or options.classes:
            other = "classes of its values (data.classes)" if options.classes else "texts" if texts else "numbers"
            raise DataError(
                f"data.label = {shown(options.label)}: expected a comparison of {called} with a number, or == or != "
                f"with a text in quotes, found {other} in {place}; correct data.label"
            )
        return Answers(_SIGNS[compared.sign](values, compared.value).astype(np.int64), 2, COMPARED)
    pairs = zip(options.class_values, options.classes, strict=True)
    class_of = {value if texts else float(value): name for value, name in pairs if texts or is_number(value)}
    distinct, rows = np.unique(values, return_inverse=True)
    known = np.array([value in class_of for value in distinct.tolist()])
    if not known.all():
        # The value itself is not told: a device must not send any text of its data to the server.
        raise RowError(
            place,
            int(np.argmin(known[rows])),
            f"of {called} holds a value without a class, as {int((~known).sum())} of its values do; add them to "
            "data.classes, or leave these rows out",
        )
    names = tuple(dict.fromkeys(options.classes))
    labels = np.array([names.index(class_of[value]) for value in distinct.tolist()], np.int64)
    return Answers(labels[rows], len(names), names)


def refuse_missing_classes(missing: np.ndarray, place: str, called: str) -> None:
    """Refuse rows without a class.

    Args:
        missing: Whether the class of a row is missing, (rows,) bool.
        place: Where they come from, for messages.
        called: What the classes are called there.

    Raises:
        RowError: When a class is missing.
    """
    rows = np.flatnonzero(missing)
    if len(rows):
        others = f", and so do {len(rows) - 1} others" if len(rows) > 1 else ""
        raise RowError(place, int(rows[0]), f"of {called} holds no class{others}; fill it in or leave these rows out")


def _named(texts: np.ndarray, place: str, called: str) -> Answers:
    """Number texts in alphabetical order."""
    refuse_missing_classes(texts == "", place, called)
    if texts.dtype.itemsize // 4 > COLUMN_CHARACTERS:
        raise DataError(f"{place}: {called} holds texts of more than {COLUMN_CHARACTERS:,} characters; expected names")
    names, labels = np.unique(texts, return_inverse=True)
    check_class_count(len(names), f"{place}: {called}")
    return Answers(labels.astype(np.int64), len(names), tuple(names.tolist()))


def _count(values: np.ndarray, place: str, called: str) -> int:
    """Return the number of classes, the largest of which is in some row."""
    largest = int(values.max())
    if largest >= CLASSES:
        row = int(np.argmax(values.reshape(len(values), -1).max(axis=1)))
        raise RowError(
            place,
            row,
            f"of {called} holds class {largest:,}; expected at most {CLASSES:,} classes, from 0 without gaps; "
            f"{NUMBERS_HINT}",
        )
    return max(1, 1 + largest)


def hugging_face_names(metadata: dict[bytes, bytes] | None, column: str) -> tuple[str, ...]:
    """Return the class names that the Hugging Face writer leaves in the schema of a table, if it did."""
    try:
        names = json.loads((metadata or {})[b"huggingface"])["info"]["features"][column]["names"]
        return tuple(str(name) for name in names)
    except (ValueError, KeyError, TypeError, RecursionError):
        return ()
