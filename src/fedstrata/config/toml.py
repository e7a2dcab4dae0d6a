"""TOML that may be hostile: parsed only when it is short and flat, its values looked at before anything uses them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any

from fedstrata.errors import ExperimentError
from fedstrata.limits import DEPTH, EXPERIMENT_BYTES, INTEGER, KEY_CHARACTERS, TEXT_CHARACTERS
from fedstrata.quoting import dotted, shown

_TOKEN = re.compile(
    r'''
    """(?:\\.|[^\\])*?(?:"""|\Z) | \'\'\'.*?(?:\'\'\'|\Z)   # texts of several lines
    | "(?:\\.|[^"\\\n])*+"? | '[^'\n]*+'?                   # texts of one line
    | \#[^\n]*+ | [.\[\]{}] | [^.\[\]{}"'\#]++
    ''',
    re.VERBOSE | re.DOTALL,
)
"""A token of TOML, near enough to count dots and brackets outside of texts and comments."""

_END_OF_KEY = re.compile(r"[,=\n#]")


def parse(text: str) -> dict[str, Any]:
    """Parse TOML.

    Args:
        text: of a file or of a value; at most `EXPERIMENT_BYTES` characters.

    Raises:
        ValueError: in one line, when it is not TOML, too long or too deep.
    """
    if len(text) > EXPERIMENT_BYTES:
        raise ValueError(f"it has {len(text):,} characters; expected at most {EXPERIMENT_BYTES:,}")
    # The parser's time grows with the square of the parts of a key, and its recursion with the brackets.
    if deeper(text, DEPTH):
        raise ValueError(f"a key or a value of more than {DEPTH} levels; expected a flatter one")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError(f"a value of more than {DEPTH} levels; expected a flatter one") from None


def deeper(text: str, most: int) -> bool:
    """Whether a key of TOML has more than so many dots, or brackets are open inside more than so many others."""
    dots = brackets = 0
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token == ".":
            dots += 1
        elif token in ("[", "{"):
            brackets += 1
        elif token in ("]", "}"):
            brackets = max(0, brackets - 1)
        # What ends a key; the quotes of a part may hold it.
        elif token[0] not in "\"'" and _END_OF_KEY.search(token):
            dots = 0
        if max(dots, brackets) > most:
            return True
    return False


def bounded(given: Mapping[str, Any]) -> None:
    """Refuse keys and values that no experiment needs, whatever they are for.

    Raises:
        ExperimentError: for a key that is too long, a text that is too long, a whole number larger than `INTEGER`, or
            tables and lists inside each other that are too deep.
    """
    # A list instead of recursion: the depth is what is not known yet.
    waiting: list[tuple[tuple[str, ...], Any, int]] = [((), given, 0)]
    while waiting:
        path, value, depth = waiting.pop()
        if isinstance(value, str) and len(value) > TEXT_CHARACTERS:
            problem = f"expected at most {TEXT_CHARACTERS:,} characters, found {len(value):,}"
            raise ExperimentError(f"{dotted(path)} = {shown(value)}: {problem}")
        # The digits of a larger number may be more than Python writes.
        if isinstance(value, int) and not -INTEGER <= value <= INTEGER:
            problem = f"expected a whole number of at most {INTEGER.bit_length()} bits, found {value.bit_length()}"
            raise ExperimentError(f"{dotted(path)}: {problem}")
        if depth > DEPTH:
            raise ExperimentError(f"{dotted(path)}: expected at most {DEPTH} levels of tables and lists, found more")
        if isinstance(value, Mapping):
            for key, item in value.items():
                if isinstance(key, str) and len(key) > KEY_CHARACTERS:
                    raise ExperimentError(
                        f"{dotted((*path, key))}: unknown key; expected at most {KEY_CHARACTERS} characters"
                    )
                waiting.append(((*path, key), item, depth + 1))
        elif isinstance(value, list | tuple):
            waiting += [(path, item, depth + 1) for item in value]
