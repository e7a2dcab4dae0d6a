"""Keys and values of the user as one line of a message shows them: short, and nothing that a terminal obeys."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST = 60
"""Characters of a value or of a part of a key."""


def shown(value: object) -> str:
    """A value, shortened to what fits into a line."""
    if isinstance(value, str):
        # A text of a megabyte would be copied several times to show its beginning.
        value = value[: 2 * LONGEST]
    try:
        text = str(value).lower() if isinstance(value, bool) else repr(value)
    # Python does not write whole numbers of more than 4,300 digits.
    except ValueError:
        text = f"({type(value).__name__}, too long to be shown)"
    return shortened(text)


def dotted(path: Sequence[object]) -> str:
    """A key in one piece and on one line."""
    parts = [str(part) for part in path]
    if len(parts) > 8:
        parts = [*parts[:4], "...", *parts[-3:]]
    return ".".join(shortened(part) if part.isprintable() and part.strip() else shown(part) for part in parts)


def printable(text: str) -> str:
    """A text in which whatever cannot be printed, such as what colours a terminal, stands as an escape."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape", "surrogatepass").decode()
        for character in text
    )


def shortened(text: str, most: int = LONGEST) -> str:
    """A text of at most so many characters."""
    return text if len(text) <= most else text[: most - 3] + "..."
