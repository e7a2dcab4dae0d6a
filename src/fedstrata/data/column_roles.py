"""What columns are for, as the user says and by their names: inputs, classes, units of dependence, splits."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from fedstrata.base.errors import DataError
from fedstrata.base.key_errors import nearest
from fedstrata.base.quoting import shown

_COMPARISON = re.compile(r"""(.+?)\s*(>=|<=|==|!=|>|<)\s*("[^"]*"|'[^']*'|[-+]?\d*\.?\d+(?:[eE][-+]?\d+)?)""")
"""A column, a sign, and a number or a text in quotes."""


@dataclass(frozen=True)
class Comparison:
    """A comparison of a column with a value, which makes two classes of its values: "no" and "yes".

    Attributes:
        column: The column.
        sign: One of ``>``, ``>=``, ``<``, ``<=``, ``==`` and ``!=``.
        value: A number, or a text.
    """

    column: str
    sign: str
    value: float | str

    @classmethod
    def of(cls, label: str | None) -> Comparison | None:
        """Return the comparison that a label is, such as "num > 0" or "kind == 'ill'"; None for any other label."""
        if not (found := _COMPARISON.fullmatch(label or "")):
            return None
        column, sign, value = found.groups()
        return cls(column, sign, value[1:-1] if value[0] in "\"'" else float(value))


Memory = Literal["auto", "ram", "disk"]
"""Where inputs are: in memory, in a file, or in a file if they take more memory than data may."""


@dataclass(frozen=True)
class ReadOptions:
    """How samples are made of files or tables. Each has a default that fits files which leave no doubt.

    Attributes:
        label: The column of the classes, or a comparison of one (`Comparison`) that makes two classes of it; None for
            the one column that has a usual name.
        inputs: The columns that are the features of a sample; empty for all columns of numbers that are left.
        kept_out: The columns that are never features, because they say who or what a sample belongs to.
        window: The readings in a window of a recording; None for the default.
        step: The readings from the begin of a window to that of the next; None for windows that share none.
        size: The height and width, in pixels, to which images of files are resized; None to leave them as they are.
        scale: Whether numbers are centred and scaled by the training samples.
        gaps: Whether the rows of a table may have gaps in columns of numbers.
        categories: Whether the texts of a table are features.
        texts: The texts of each of the `inputs`, where they are known; else empty.
        memory: Whether the samples are in memory ("ram"), are read from a file of converted samples when they are
            needed ("disk"), or the latter if they take more memory than data may ("auto").
        classes: The class of each of `class_values`; empty where the values of the column are the classes.
        class_values: The values of the column of the classes.
    """

    label: str | None = None
    inputs: tuple[str, ...] = ()
    kept_out: tuple[str, ...] = ()
    window: int | None = None
    step: int | None = None
    size: int | None = None
    scale: bool = True
    gaps: bool = True
    categories: bool = True
    texts: tuple[tuple[str, ...], ...] = ()
    memory: Memory = "auto"
    classes: tuple[str, ...] = ()
    class_values: tuple[str, ...] = ()

    def refuse(self, place: str, *keys: str) -> None:
        """Refuse keys that data have no use for.

        Args:
            place: Where the data are.
            keys: The keys.

        Raises:
            DataError: When one of them is set.
        """
        for key in keys:
            value = getattr(self, key)
            if value not in (None, ()):
                needed = _NEEDED.get(key, "columns to choose from")
                raise DataError(f"data.{key} = {shown(value)}: {place} has no {needed}; leave it out")

    def refuse_other_inputs(self, read: str, place: str) -> None:
        """Refuse inputs that are not read, because one column has all numbers of a sample.

        Args:
            read: That column.
            place: Where the columns are.

        Raises:
            DataError: When others are listed.
        """
        others = [column for column in self.inputs if column != read]
        if others:
            raise DataError(
                f"data.inputs = {shown(self.inputs)}: expected {read!r} alone, which has all inputs of {place}; leave "
                f"{shown(others[0])} out, or put its values into {read!r}"
            )


_NEEDED = {
    "window": "recordings, which are in columns trial and signal",
    "step": "recordings, which are in columns trial and signal",
    "size": "images, which alone are resized",
}
"""What the data must have for a key; for others, columns."""

DEFAULT_OPTIONS = ReadOptions()
"""The options of files that leave no doubt."""


LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "target", "y")
"""The names of a column that is taken for the classes, in lower or upper case."""

SPLIT_COLUMN = "split"
"""The column that says of each sample whether it is for training or for testing."""

CLIENT_COLUMN = "client"
"""The column with the client of each sample, where files, folders or arguments name the clients."""

TRIAL_COLUMN = "trial"
"""The column that says which recording a window is from."""

ROW_COLUMN = "row"
"""The column with the number of the recording that a window is from."""

_UNIT_WORDS = frozenset(
    {"participant", "patient", "person", "speaker", "subject", "user"}
    | {"episode", "session", "stay", "trial", "visit"}
    | {"clip", "document", "record", "recording", "scan", "scene", "slide", "video"}
    | {"segment", "sequence", "series", "track", "trajectory"}
)
"""Words in the name of a column whose equal values are likely to mark samples that depend on each other."""

_CLIENT_WORDS = frozenset({"client", "site", "hospital", "clinic", "centre", "center", "institution", "facility"})
"""Words in the name of a column that is likely to say which client a sample is from."""

_POSSIBLE_CLIENT_WORDS = frozenset(
    {"station", "device", "factory", "plant", "machine", "store", "shop", "branch", "warehouse", "customer"}
)
"""Further such words, of columns that may as well be measurements."""

_ROW_WORDS = frozenset({"id", "unnamed", "uuid", "row", "timestamp", "date", "datetime"})
"""Words in the name of a column that numbers or dates the rows."""

_NUMBER_WORDS = frozenset({"index", "no", "nr", "num", "number", "code", "key"})
"""Words that make a number of what is named beside them: a patient number is no measurement, and a mass index is."""

_COUNTED_WORDS = frozenset({"case", "example", "frame", "image", "item", "sample", "step", "time", "window"})
"""What else such numbers may count."""


_NAMELESS_INDEX = re.compile(r"__index_level_\d+__")
"""What pandas and Arrow call the index of a data frame that has no name."""


def is_nameless_index(column: str) -> bool:
    """Return whether a column is the index of a data frame that has no name, which only numbers its rows."""
    return bool(_NAMELESS_INDEX.fullmatch(column))


def looks_like_unit(column: str) -> bool:
    """Return whether the name of a column says that equal values mark samples that depend on each other."""
    return bool(_UNIT_WORDS & set(_words(column)))


def looks_like_client(column: str) -> bool:
    """Return whether the name of a column says that its values are the clients."""
    return bool((_CLIENT_WORDS | _POSSIBLE_CLIENT_WORDS) & set(_words(column)))


_OTHER_WRITING = re.compile(r"[-+\u2212]?[.,]?\d[\d.,]*(e[-+\u2212]?\d+)?", re.IGNORECASE)

_MARKS_OF_NUMBERS = re.compile(r"[\s%'\u2019$\u00a2-\u00a5\u20a0-\u20cf]")
"""What stands beside or in a number: spaces, signs of percent and of currencies, and marks of thousands."""


def number_in_other_writing(text: str) -> bool:
    """Return whether a text is a number as people write it and computers do not read it.

    Such are ``1,234``, ``0,5``, ``12 %``, ``$5`` and numbers with a typographic minus.
    """
    return bool(_OTHER_WRITING.fullmatch(_MARKS_OF_NUMBERS.sub("", text)))


def split_column(columns: Iterable[str]) -> str | None:
    """Return the column that says which samples are for testing, ``split`` in lower or upper case; None without one."""
    return next((column for column in columns if column.lower() == SPLIT_COLUMN), None)


def may_be_feature(column: str, options: ReadOptions) -> bool:
    """Return whether a column of numbers is a feature where `data.inputs` names none; classes are none either.

    By its name it is no number of a client, a unit or a row. The first column of a table that pandas or R has written
    has no name, and numbers the rows. Where rows are sorted by client, such a number says which client a sample is
    from. What is said of a unit is a feature, as a patient's age.
    """
    if column.lower() in (SPLIT_COLUMN, CLIENT_COLUMN) or column in options.kept_out:
        return False
    words = set(_words(column))
    if not column.strip() or is_nameless_index(column) or words & _ROW_WORDS:
        return False
    named = _UNIT_WORDS | _CLIENT_WORDS
    numbered = bool(words & named) or "index" in words
    return not (numbered and words <= named | _NUMBER_WORDS | _COUNTED_WORDS)


def holds_codes(column: str, options: ReadOptions) -> bool:
    """Return whether the values of a column are names, also where they look like numbers: 007 is not 7.

    Classes are no codes. Whole numbers are classes as they are.
    """
    compared = Comparison.of(options.label)
    named = (options.label, compared.column if compared else None)
    is_label = column.lower() in LABEL_COLUMNS if options.label is None else column in named
    return not is_label and column not in options.inputs and not may_be_feature(column, options)


def label_column(columns: Collection[str], options: ReadOptions, place: str) -> str:
    """Return the name of the column of classes.

    Raises:
        DataError: When there is no such column, or it is not clear which one it is.
    """
    if options.label is not None:
        compared = Comparison.of(options.label)
        wanted = compared.column if compared and options.label not in columns else options.label
        if wanted not in columns:
            there = "; ".join(filter(None, [", ".join(columns), nearest(wanted, columns)]))
            raise DataError(f"data.label = {shown(options.label)}: expected a column of {place}, found {there}")
        return wanted
    found = [name for name in columns if name.lower() in LABEL_COLUMNS]
    if len(found) != 1:
        raise DataError(
            f"{place}: expected one column of classes, {', '.join(LABEL_COLUMNS)}, found "
            f"{' and '.join(found) or 'none'} among {', '.join(columns)}; name it in data.label"
        )
    return found[0]


def _words(column: str) -> list[str]:
    """Return the words in the name of a column, in lower case: patientID and patient_id have patient and id."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", column)]


def refuse_same_names(columns: Sequence[str], place: str) -> None:
    """Refuse a table with two columns of one name."""
    twice = [column for column in columns if columns.count(column) > 1]
    # The role is found in lower and upper case.
    twice += [column for column in columns if column.lower() == SPLIT_COLUMN][1:]
    if twice:
        raise DataError(f"{place} has two columns {twice[0]!r}; give each a name of its own")
