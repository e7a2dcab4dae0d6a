"""Text from elsewhere as one harmless line: no control characters, no local paths, not too long."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path

LONGEST = 300
"""Characters of a text from elsewhere that are shown."""

HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories that a log must not show: control, format (bidirectional, zero width), line separators."""

# A path in quotes may have spaces; one without quotes ends at the first.
QUOTED_PATH = re.compile(r"""(['"])(?:~?/|[A-Za-z]:[\\/]|\\\\)[^'"\n]*?([^'"\\/\n]+)[\\/]?\1""")
BARE_PATH = re.compile(
    r"""(?<![\w.:/\\)\]])(?:~?/|[A-Za-z]:[\\/]|\\\\)(?:[^\s'",;:\\/]+[\\/])*([^\s'",;:\\/]+)[\\/]?"""
)


def one_line(text: str, longest: int = LONGEST) -> str:
    """One line of visible characters.

    Line breaks, escape sequences of terminals and characters that change the direction of writing could forge other
    lines of a log, so that each becomes a space.

    Args:
        text: from elsewhere.
        longest: characters that are kept.
    """
    # Nobody's megabytes are looked at for the sake of one line.
    head = text[: 4 * longest]
    visible = "".join(" " if unicodedata.category(character) in HIDDEN else character for character in head)
    return " ".join(visible.split())[:longest]


def without_paths(text: str, known: Iterable[Path] = ()) -> str:
    """The text with the last part alone of each absolute path.

    Args:
        text: a message about files, of this machine or another.
        known: paths that are replaced first; they may have spaces, which nothing else can tell from the text's own.
    """
    for path in known:
        for form in {str(path), str(path.absolute()), str(path.resolve())}:
            if path.name and Path(form).is_absolute():
                text = text.replace(form, path.name)
    return BARE_PATH.sub(r"\1", QUOTED_PATH.sub(r"\1\2\1", text))
