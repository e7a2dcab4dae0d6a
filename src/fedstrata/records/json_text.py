"""Values as JSON text that every reader accepts."""

from __future__ import annotations

from collections.abc import Mapping
from json import JSONEncoder
from math import isfinite
from typing import Any


def finite(value: Any) -> Any:
    """Return a value that every JSON reader accepts: a number that is not finite becomes null."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def to_json(value: Any) -> str:
    """Return a value as JSON in one line, as `finite` makes it."""
    try:
        return JSONEncoder(allow_nan=False).encode(value)
    except (TypeError, ValueError):  # It has mappings of another kind, or numbers that are not finite.
        return JSONEncoder(allow_nan=False).encode(finite(value))


def to_indented_json(value: Any, depth: int = 1) -> str:
    """Return a value as JSON in lines that are indented by one space a level, as `finite` makes it.

    It is the text that ``json.dumps`` writes with an indent, which takes many times as long: with one, it does not use
    its code in C. Keys are texts.
    """
    if not isinstance(value, Mapping | list | tuple) or not value:
        return to_json(value)
    line = "\n" + depth * " "
    end = "\n" + (depth - 1) * " "
    items = value.values() if isinstance(value, Mapping) else value
    if not any(isinstance(item, Mapping | list | tuple) for item in items):
        try:
            text = JSONEncoder(separators=("," + line, ": "), allow_nan=False).encode(value)
            return text[0] + line + text[1:-1] + end + text[-1]
        except (TypeError, ValueError):
            pass
    parts = [to_indented_json(item, depth + 1) for item in items]
    if isinstance(value, Mapping):
        parts = [f"{to_json(str(key))}: {part}" for key, part in zip(value, parts, strict=True)]
        return "{" + line + ("," + line).join(parts) + end + "}"
    return "[" + line + ("," + line).join(parts) + end + "]"
