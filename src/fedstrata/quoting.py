"""Keys and values of the user as a message shows them: short, on one line, and without control characters."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST = 60
"""The largest number of characters of a value, or of a part of a key."""


def shown(value: object) -> str:
    """A value, shortened to fit into a line."""
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
    """A key in one piece and on one line; whole numbers are positions in a list."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{_part(str(part))}" for part in path]
    if len(parts) > 8:
        parts = [*parts[:4], "....", *parts[-3:]]
    return "".join(parts).removeprefix(".")


def _part(text: str) -> str:
    return shortened(text) if text.isprintable() and text.strip() else shown(text)


def printable(text: str) -> str:
    """A text with every character that cannot be printed, such as one that colours a terminal, as an escape."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape", "surrogatepass").decode()
        for character in text
    )


def shortened(text: str, length: int = LONGEST) -> str:
    """A text of at most `length` characters."""
    return text if len(text) <= length else text[: length - 3] + "..."
