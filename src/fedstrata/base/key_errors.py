"""One line about a wrong key: its place, its value, and what pydantic expected of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import reduce
from operator import getitem
from typing import Any, cast, get_args

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from fedstrata.base.quoting import dotted, shown

_UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")
"""The types of pydantic's errors about a key that does not exist."""

_BESIDE_OTHERS = "beside_others"
"""The type of our own errors about a key that does not go with others. It may have its default."""

_OF_TABLES = ("model_type", "dict_type", "dataclass_type", "is_instance_of")
"""The types of pydantic's errors that name a class of Python where a file has a table."""

_COMPARED_CHARACTERS = 100
"""So much of a name is compared with others: the time grows with the square of it."""


def explain(
    failure: ValidationError, given: Mapping[str, Any], kind: Any, place: str = "", chosen_by: str | None = None
) -> str:
    """Say in one line what the first wrong key should have been.

    Args:
        failure: The error of pydantic.
        given: The keys that were validated.
        kind: The pydantic model or dataclass that they were validated by.
        place: The place of these keys in the experiment; empty at the top.
        chosen_by: The key of the same table that has chosen the kind, such as ``name``; None where there is none.
    """
    errors = failure.errors(include_url=False)
    # A misspelt key also leaves the one that was meant without a value, so what is missing comes last.
    error = min(errors, key=lambda each: each["type"] == "missing")
    path = _path(error, given)
    key = dotted([*place.split("."), *path] if place else path)
    if error["type"] in _UNKNOWN_KEY:
        known = _known_keys(kind, path)
        allowed = f"expected one of {', '.join(known)}" if known else "there are no others"
        may_be_meant = [chosen_by, *known] if chosen_by is not None and len(path) == 1 else known
        return f"{key}: unknown key; {nearest(str(path[-1]), may_be_meant) or allowed}"
    if error["type"] == "missing":
        return f"{key}: expected a value, found none"
    # Each type of a union adds an error of its own.
    alike = [_expected(each) for each in errors if _path(each, given) == path]
    value = error["input"] if error["type"] == _BESIDE_OTHERS else reduce(getitem, path, cast(Any, given))
    said = ", or ".join(dict.fromkeys(alike)).replace(", or expected ", ", or ")
    return f"{key} = {shown(value)}: {said}" if path else f"{key}: {said}"


def wrong_key(key: str, value: object, expected: str) -> ValidationError:
    """Return what a validator of several keys raises about one of them.

    Args:
        key: The key, dotted where it is in a table of what is validated.
        value: Its value, which may be the default.
        expected: What its value should be beside the others.
    """
    problem = PydanticCustomError(_BESIDE_OTHERS, "expected {expected}", {"expected": expected})
    details = InitErrorDetails(type=problem, loc=tuple(key.split(".")), input=value)
    return ValidationError.from_exception_data(key, [details])


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
    is_key = isinstance(name, str) and key.endswith(f".{name}")
    place = dotted(key.split(".")) if is_key else f"{key} = {shown(name)}"
    return f"{place}: unknown {what}; expected one of {', '.join(names)}{near and f'; {near}'}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Ask for the name that was probably meant; an empty string when none is near."""
    near = get_close_matches(name[:_COMPARED_CHARACTERS], list(known), n=1)
    return f"did you mean {near[0]}?" if near else ""


def _path(error: Any, given: Any) -> tuple[str | int, ...]:
    """The keys and positions that lead to a wrong value, without the parts that name the types of a union."""
    if error["type"] in ("missing", _BESIDE_OTHERS):
        return tuple(error["loc"])
    path: list[str | int] = []
    for step in error["loc"]:
        is_key = isinstance(given, Mapping) and step in given
        if not is_key and not (isinstance(given, list | tuple) and isinstance(step, int)):
            break
        path.append(step)
        given = given[step]
    return tuple(path)


def _known_keys(kind: Any, path: tuple[str | int, ...]) -> list[str]:
    """The keys of the table that holds the last key of a path."""
    for step in path[:-1]:
        kind = get_args(kind)[0] if isinstance(step, int) else kind.__pydantic_fields__[step].annotation
    return [field.alias or name for name, field in kind.__pydantic_fields__.items()]


def _expected(error: Any) -> str:
    """What an error of pydantic says, in its own words."""
    if error["type"] in _OF_TABLES:
        return "expected a table"
    # A file has lists where a table of ours holds a tuple.
    said = error["msg"].replace("tuple", "list").replace("Tuple", "List")
    said = re.sub("^(Input should be|Value error,)", "expected", said)
    return re.sub("^expected (?=greater|less)", "expected a number ", said)
