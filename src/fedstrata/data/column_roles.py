"""What the name of a column says about it: classes, units of dependence, numbers of rows."""

import re
from collections.abc import Collection, Sequence

from fedstrata.base.errors import DataError
from fedstrata.base.key_errors import nearest
from fedstrata.base.quoting import shown
from fedstrata.data.options import ReadOptions

LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "target", "y")
"""The names of a column that is taken for the classes, in files that the registry does not know."""

SPLIT_COLUMN = "split"
"""The column that says of each sample whether it is for training or for testing."""

CLIENT_COLUMN = "client"
"""The column with the client of each sample, where files, folders or arguments name the clients."""

TRIAL_COLUMN = "trial"
"""The column that says which recording a window is from."""

_UNIT_WORDS = frozenset(
    {
        "clip",
        "document",
        "episode",
        "participant",
        "patient",
        "person",
        "record",
        "recording",
        "scan",
        "scene",
        "segment",
        "sequence",
        "series",
        "session",
        "slide",
        "speaker",
        "stay",
        "subject",
        "track",
        "trajectory",
        "trial",
        "user",
        "video",
        "visit",
    }
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


def looks_like_feature(column: str) -> bool:
    """Return whether a column of numbers may be a feature: by its name no number of a client, a unit or a row.

    The first column of a table that pandas or R has written has no name, and numbers the rows. Where rows are sorted by
    client, such a number says which client a sample is from. What is said of a unit is a feature, as a patient's age.
    """
    words = set(_words(column))
    if not column.strip() or is_nameless_index(column) or words & _ROW_WORDS:
        return False
    named = _UNIT_WORDS | _CLIENT_WORDS
    numbered = bool(words & named) or "index" in words
    return not (numbered and words <= named | _NUMBER_WORDS | _COUNTED_WORDS)


def may_be_feature(column: str, options: ReadOptions) -> bool:
    """Return whether a column of numbers is a feature where `data.inputs` names none; classes are none either."""
    return column not in {SPLIT_COLUMN, CLIENT_COLUMN, *options.kept_out} and looks_like_feature(column)


def holds_codes(column: str, options: ReadOptions) -> bool:
    """Return whether the values of a column are names, also where they look like numbers: 007 is not 7.

    Classes are no codes. Whole numbers are classes as they are.
    """
    is_label = column in LABEL_COLUMNS if options.label is None else column == options.label
    return not is_label and column not in options.inputs and not may_be_feature(column, options)


def label_column(columns: Collection[str], options: ReadOptions, place: str) -> str:
    """Return the name of the column of classes.

    Raises:
        DataError: When there is no such column, or it is not clear which one it is.
    """
    if options.label is not None:
        if options.label not in columns:
            named = [name for name in columns if name not in (CLIENT_COLUMN, SPLIT_COLUMN)]
            near = nearest(options.label, named)
            raise DataError(
                f"data.label = {shown(options.label)}: expected a column of {place}, found {', '.join(named)}"
                f"{near and f'; {near}'}"
            )
        return options.label
    found = [name for name in columns if name in LABEL_COLUMNS]
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
    if twice:
        raise DataError(f"{place} has two columns {twice[0]!r}; give each a name of its own")
