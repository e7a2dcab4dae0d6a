"""One line about what is wrong with a key: its place, its value, and what is allowed."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from fedstrata.limits import KEY_CHARACTERS
from fedstrata.quoting import dotted, shown

__all__ = ["dotted", "explain", "nearest", "shown", "unknown"]

EXTRA = ("extra_forbidden", "unexpected_keyword_argument")

EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a string",
    "string_too_short": "a string that is not empty",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "greater_than": "a number greater than {gt:.15g}",
    "greater_than_equal": "a number of at least {ge:.15g}",
    "less_than": "a number less than {lt:.15g}",
    "less_than_equal": "a number of at most {le:.15g}",
    "literal_error": "{expected}",
}
"""What pydantic's errors ask for, in the words of the file."""


def explain(failure: ValidationError, given: dict[str, Any], kind: Any, place: str = "") -> str:
    """Say what the first wrong key should have been, and how many more there are.

    Args:
        failure: what pydantic found.
        given: the keys that it was shown.
        kind: the table or algorithm whose keys they should have been.
        place: of these keys in the experiment, with a dot at the end.
    """
    wrong: dict[tuple[str, ...], list[Any]] = {}
    for error in failure.errors(include_url=False):
        wrong.setdefault(_path(error, given), []).append(error)
    path, errors = next(iter(wrong.items()))
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    key = place + dotted(path)
    if errors[0]["type"] in EXTRA:
        known = _keys(kind, path)
        allowed = f"expected one of {', '.join(known)}" if known else "there are no others"
        return f"{key}: unknown key; {nearest(path[-1], known) or allowed}{more}"
    # Each type of a union complains on its own.
    expected = ", or ".join(dict.fromkeys(_expected(error) for error in errors))
    if errors[0]["type"] == "missing":
        return f"{key}: expected a value, found none{more}"
    return f"{key} = {shown(_at(given, path))}: expected {expected}{more}"


def unknown(key: str, name: str, what: str, known: Iterable[str]) -> str:
    """Say that a name is not among those that are known; the last part of a key may be that name."""
    names = list(known)
    question = f"; {near}" if (near := nearest(name, names)) else ""
    place = dotted(key.split(".")) if key.endswith(f".{name}") else f"{key} = {shown(name)}"
    return f"{place}: unknown {what}; expected one of {', '.join(names)}{question}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Ask for the name that was probably meant; an empty string when none is near."""
    near = get_close_matches(name[:KEY_CHARACTERS], list(known), n=1)
    return f"did you mean {near[0]}?" if near else ""


def _path(error: Any, given: Any) -> tuple[str, ...]:
    """The key that an error is about, without the parts that name the types of a union."""
    if error["type"] == "missing":
        return tuple(str(step) for step in error["loc"])
    path = []
    for step in error["loc"]:
        if isinstance(given, dict) and step in given:
            path.append(step)
            given = given[step]
    return tuple(path)


def _at(given: Any, path: tuple[str, ...]) -> Any:
    for step in path:
        given = given.get(step)
    return given


def _keys(kind: Any, path: tuple[str, ...]) -> list[str]:
    for step in path[:-1]:
        kind = kind.__pydantic_fields__[step].annotation
    return [field.alias or name for name, field in kind.__pydantic_fields__.items()]


def _expected(error: Any) -> str:
    template = EXPECTED.get(error["type"])
    expected: str = error["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if template is not None:
        expected = template.format(**error.get("ctx", {}))
    return f"a list of which each is {expected}" if any(isinstance(step, int) for step in error["loc"]) else expected
