"""One line about a wrong key: its place, its value, and what was expected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import ValidationError

from fedstrata.base.limits import KEY_CHARACTERS
from fedstrata.base.quoting import dotted, shown

_UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")
"""The types of pydantic's errors about a key that does not exist."""

_EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a string",
    "string_too_short": "a string that is not empty",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "dataclass_type": "a table",
    "is_instance_of": "a table with a scheme and its keys",
    "greater_than": "a number greater than {gt:.15g}",
    "greater_than_equal": "a number of at least {ge:.15g}",
    "less_than": "a number less than {lt:.15g}",
    "less_than_equal": "a number of at most {le:.15g}",
    "literal_error": "{expected}",
}
"""What was expected, in the words of the file, by the type of pydantic's error."""

_KeyPath = tuple[str | int, ...]
"""The keys and list positions that lead to a value."""


def explain(
    failure: ValidationError, given: Mapping[str, Any], kind: Any, place: str = "", chosen_by: str | None = None
) -> str:
    """Say what the first wrong key should have been, and how many more there are.

    Args:
        failure: The error of pydantic.
        given: The keys that were validated.
        kind: The pydantic model or dataclass that they were validated by.
        place: The place of these keys in the experiment; empty at the top.
        chosen_by: The key of the same table that has chosen the kind, such as ``name``; None where there is none.
    """
    wrong: dict[_KeyPath, list[Any]] = {}
    for error in failure.errors(include_url=False):
        wrong.setdefault(_path(error, given), []).append(error)
    # A misspelt key also leaves the one that was meant without a value, so what is missing comes last.
    path, errors = min(wrong.items(), key=lambda each: each[1][0]["type"] == "missing")
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    key = dotted([*place.split("."), *path] if place else path)
    if errors[0]["type"] in _UNKNOWN_KEY:
        known = _known_keys(kind, path)
        allowed = f"expected one of {', '.join(known)}" if known else "there are no others"
        may_be_meant = [chosen_by, *known] if chosen_by is not None and len(path) == 1 else known
        return f"{key}: unknown key; {nearest(str(path[-1]), may_be_meant) or allowed}{more}"
    # Each type of a union adds an error of its own.
    expected = ", or ".join(dict.fromkeys(_expected(error, path) for error in errors))
    if errors[0]["type"] == "missing":
        return f"{key}: expected a value, found none{more}"
    if not path:
        return f"{key}: expected {expected}{more}"
    return f"{key} = {shown(_at(given, path))}: expected {expected}{more}"


def unknown(key: str, name: object, what: str, known: Iterable[str]) -> str:
    """Say that a name is not among those that are known.

    Args:
        key: The key whose value or last part is the name.
        name: The name.
        what: What should have been named, such as "algorithm".
        known: The names that exist.
    """
    names = list(known)
    near = nearest(name, names) if isinstance(name, str) else ""
    place = dotted(key.split(".")) if key.endswith(f".{name}") else f"{key} = {shown(name)}"
    return f"{place}: unknown {what}; expected one of {', '.join(names)}{near and f'; {near}'}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Ask for the name that was probably meant; an empty string when none is near."""
    near = get_close_matches(name[:KEY_CHARACTERS], list(known), n=1)
    return f"did you mean {near[0]}?" if near else ""


def _path(error: Any, given: Any) -> _KeyPath:
    """The key that an error is about, without the parts that name the types of a union."""
    if error["type"] == "missing":
        return tuple(error["loc"])
    path: list[str | int] = []
    union = False
    for step in error["loc"]:
        is_key = isinstance(given, Mapping) and step in given
        is_position = isinstance(given, list | tuple) and isinstance(step, int) and step < len(given)
        if is_key or is_position:
            path.append(step)
            given = given[step]
        else:
            union = True
    # The errors of all types of a union are reported together, at the key itself.
    while union and path and isinstance(path[-1], int):
        path.pop()
    return tuple(path)


def _at(given: Any, path: _KeyPath) -> Any:
    for step in path:
        given = given[step]
    return given


def _known_keys(kind: Any, path: _KeyPath) -> list[str]:
    """The keys of the table that holds the last key of a path."""
    for step in path[:-1]:
        kind = get_args(kind)[0] if isinstance(step, int) else kind.__pydantic_fields__[step].annotation
    return [field.alias or name for name, field in kind.__pydantic_fields__.items()]


def _expected(error: Any, path: _KeyPath) -> str:
    template = _EXPECTED.get(error["type"])
    expected: str = error["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if template is not None:
        expected = template.format(**error.get("ctx", {}))
    in_list = any(isinstance(step, int) for step in error["loc"][len(path) :])
    return f"a list of which each is {expected}" if in_list else expected
