"""Text from the user, or from another machine, as one harmless line of a message.

`shown`, `dotted`, `listed` and `printable` serve for keys and values of the user. `one_line` and `without_paths` serve
for what another machine says.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

_VALUE_CHARACTERS = 60
"""The largest number of characters of a value, or of a part of a key."""

LINE_CHARACTERS = 300
"""The number of characters that are shown of a text from another machine."""

_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories that a log must not show: control, format (bidirectional, zero width), line separators."""

# A path in quotes may have spaces; one without quotes ends at the first.
# What is between the quotes is taken at once: somebody else may have sent a quote without its end.
_QUOTED_PATH = re.compile(r"""(['"])((?:~?/|[A-Za-z]:[\\/]|\\\\)[^'"\n]*+)\1""")
_BARE_PATH = re.compile(
    r"""(?<![\w.:/\\)\]])(?:~?/|[A-Za-z]:[\\/]|\\\\)(?:[^\s'",;:\\/]+[\\/])*([^\s'",;:\\/]+)[\\/]?"""
)


def shown(value: object) -> str:
    """Write a value, shortened to fit into a line."""
    if isinstance(value, str):
        # A text of a megabyte would be copied several times to show its beginning.
        value = value[: 2 * _VALUE_CHARACTERS]
    try:
        text = str(value).lower() if isinstance(value, bool) else repr(value)
    # Python does not write whole numbers of more than 4,300 digits.
    except ValueError:
        text = f"({type(value).__name__}, too long to be shown)"
    return _shortened(text)


def dotted(path: Sequence[object]) -> str:
    """Write a key in one piece and on one line; whole numbers are positions in a list."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{_part(str(part))}" for part in path]
    if len(parts) > 8:
        parts = [*parts[:4], "....", *parts[-3:]]
    return "".join(parts).removeprefix(".")


def _part(text: str) -> str:
    return _shortened(text) if text.isprintable() and text.strip() else shown(text)


def _shortened(text: str) -> str:
    return text if len(text) <= _VALUE_CHARACTERS else text[: _VALUE_CHARACTERS - 3] + "..."


def listed(texts: Sequence[str], most: int = 5) -> str:
    """Write the first few of some texts, and how many more there are."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def printable(text: str) -> str:
    """Write every character that cannot be printed, such as one that colours a terminal, as an escape."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape", "surrogatepass").decode()
        for character in text
    )


def one_line(text: str, longest: int = LINE_CHARACTERS) -> str:
    """Keep at most `longest` visible characters of a text.

    Line breaks, escape sequences of terminals and characters that change the direction of writing could forge other
    lines of a log, so that each becomes a space.
    """
    # Nobody's megabytes are looked at for the sake of one line.
    head = text[: 4 * longest]
    visible = "".join(" " if unicodedata.category(character) in _HIDDEN_CATEGORIES else character for character in head)
    return " ".join(visible.split())[:longest]


def without_paths(text: str, known: Iterable[Path] = ()) -> str:
    """Keep only the last part of each absolute path in a text.

    Args:
        text: A message about files of this machine or another.
        known: Paths that are replaced first. Only these may have spaces outside of quotes.
    """
    for path in known:
        for form in {str(path), str(path.absolute()), str(path.resolve())}:
            if path.name and Path(form).is_absolute():
                text = text.replace(form, path.name)
    return _BARE_PATH.sub(r"\1", _QUOTED_PATH.sub(_last_part, text))


def _last_part(found: re.Match[str]) -> str:
    """The last part of a path in quotes; a path without parts stays as it is."""
    quote, path = found.groups()
    last = re.split(r"[\\/]", path.rstrip("\\/"))[-1]
    return f"{quote}{last or path}{quote}"
