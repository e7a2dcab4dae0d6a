"""What is to be learnt of the rows of a table: classes, which are numbered, or numbers in place of them."""

from __future__ import annotations

import json
import operator as op
from dataclasses import dataclass, replace

import numpy as np

from fedstrata.base.errors import DataError
from fedstrata.base.limits import CLASSES
from fedstrata.base.quoting import shown
from fedstrata.data.column_roles import Comparison, ReadOptions
from fedstrata.data.dataset import finite_float32, is_number, refuse_rows

COMPARED = ("no", "yes")
"""The values that a comparison makes of a column; they are its classes, unless others are given to them."""


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


def answers_of(values: np.ndarray, place: str, called: str, names: tuple[str, ...] = (), known: int = 0) -> Answers:
    """Number the classes of some rows, or take numbers in place of them.

    Args:
        values: The classes, (rows,) integers, bools or texts, or (rows, outputs) integers; or numbers, (rows,) or
            (rows, outputs) floats.
        place: Where they come from, for messages.
        called: What they are called there.
        names: The names of integers, if they are known.
        known: The number of classes, where it is known.

    Raises:
        DataError: When a class is below 0 or too large, or a number is not finite.
    """
    if values.dtype.kind == "f":
        numbers = finite_float32(values, place, called).reshape(len(values), -1)
        return Answers(np.zeros(len(values), np.int64), 1, targets=np.ascontiguousarray(numbers))
    if values.dtype.kind == "U":
        found, values = np.unique(values, return_inverse=True)
        names = tuple(found.tolist())
        known = len(names)
    classes = known or len(names) or max(1, 1 + int(values.max()))
    if classes > CLASSES:
        raise DataError(f"{place}: {called} has {classes:,} classes; expected at most {CLASSES:,}, from 0 without gaps")
    values = values.astype(np.int64)
    # Programs keep the column of a table as (rows, 1).
    if values.shape[1:] == (1,):
        values = values[:, 0]
    if values.ndim == 2:
        return Answers(np.zeros(len(values), np.int64), classes, targets=values)
    wrong = (values < 0) | (values >= classes)
    advice = f"found {values[np.argmax(wrong)]}; if numbers shall be learned, write them with a decimal point"
    refuse_rows(wrong, place, f"of {called} holds no class of 0 to {classes - 1}", advice)
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
        DataError: When a value is of another kind than those that it is compared with, or has no class.
    """
    compared = None if options.label in (None, column) else Comparison.of(options.label)
    if not (compared or options.classes):
        return None
    called = f"column {column!r}"
    texts = values.dtype.kind == "U"
    if compared is not None:
        if isinstance(compared.value, str) != texts or (texts and compared.sign not in ("==", "!=")):
            raise DataError(
                f"data.label = {shown(options.label)}: expected a comparison of {called} with a number, or == or != "
                f"with a text in quotes, found {'texts' if texts else 'numbers'} in {place}; correct data.label"
            )
        values = np.array(COMPARED)[_SIGNS[compared.sign](values, compared.value).astype(np.int64)]
        texts = True
    given = zip(options.class_values or COMPARED, options.classes or COMPARED, strict=True)
    class_of = {value if texts else float(value): name for value, name in given if texts or is_number(value)}
    names = tuple(dict.fromkeys(options.classes or COMPARED))
    distinct, rows = np.unique(values, return_inverse=True)
    places = [names.index(class_of[value]) if value in class_of else -1 for value in distinct.tolist()]
    labels = np.array(places, np.int64)[rows]
    # The value itself is not told: a device must not send any text of its data to the server.
    advice = f"add values without one, {places.count(-1)} in all, to data.classes, or leave these rows out"
    refuse_rows(labels < 0, place, f"of {called} holds a value without a class", advice)
    return Answers(labels, len(names), names)


def hugging_face_names(metadata: dict[bytes, bytes] | None, column: str) -> tuple[str, ...]:
    """Return the class names that the Hugging Face writer leaves in the schema of a table, if it did."""
    try:
        names = json.loads((metadata or {})[b"huggingface"])["info"]["features"][column]["names"]
        return tuple(str(name) for name in names)
    except (ValueError, KeyError, TypeError, RecursionError):
        return ()
