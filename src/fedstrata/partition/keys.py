"""From the keys of an experiment file to a scheme, and back; no data is needed."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from difflib import get_close_matches

from pydantic import ValidationError

from fedstrata.errors import ExperimentError
from fedstrata.limits import KEY_CHARACTERS
from fedstrata.partition.scheme import Scheme
from fedstrata.quoting import dotted, shown
from fedstrata.registry import Registry

PARTITIONS: Registry[type[Scheme]] = Registry(
    "partition",
    {
        "iid": "fedstrata.partition.plain:IID",
        "rotation": "fedstrata.partition.alike:Rotation",
        "concept": "fedstrata.partition.alike:Concept",
        "majority": "fedstrata.partition.skewed:Majority",
        "label_groups": "fedstrata.partition.skewed:LabelGroups",
        "class_pairs": "fedstrata.partition.skewed:ClassPairs",
        "shards": "fedstrata.partition.plain:Shards",
        "dirichlet": "fedstrata.partition.plain:Dirichlet",
        "quantity": "fedstrata.partition.plain:Quantity",
        "natural": "fedstrata.partition.plain:Natural",
    },
)
"""The schemes of partition, by name."""


def scheme_from(keys: Mapping[str, object], key: str = "partition") -> Scheme:
    """Make a scheme of ``{"scheme": name, ...its keys}``; `inside` is such a mapping again.

    Args:
        keys: as in the experiment file.
        key: the place of `keys` in the experiment, for the message.

    Raises:
        ExperimentError: names the key, its value and what is allowed.
    """
    given = dict(keys)
    name = given.pop("scheme", None)
    if not isinstance(name, str) or name not in PARTITIONS:
        found = "is missing" if name is None else f"= {shown(name)}: unknown"
        raise ExperimentError(f"{key}.scheme {found}{_hint(name, PARTITIONS)}; known are {', '.join(PARTITIONS)}")
    kind = PARTITIONS[name]
    allowed = _names(kind)
    for unknown, value in given.items():
        if unknown not in allowed:
            known = f"its keys are {', '.join(allowed)}" if allowed else "it has no keys"
            if unknown == "inside":
                grouped = (scheme for scheme in PARTITIONS if "inside" in _names(PARTITIONS[scheme]))
                known = f"it has no groups to deal inside; {', '.join(grouped)} have"
            hint = _hint(unknown, allowed)
            raise ExperimentError(f"{key}.{dotted([unknown])} = {shown(value)}: unknown to {name}{hint}; {known}")
    inside = given.get("inside")
    if isinstance(inside, Mapping):
        given["inside"] = scheme_from(inside, f"{key}.inside")
    elif inside is not None and not isinstance(inside, Scheme):
        raise ExperimentError(f"{key}.inside = {shown(inside)}: must be a table with a scheme and its keys")
    try:
        return kind(**given)
    except ValidationError as error:
        raise ExperimentError(_line(error, key, name, inside)) from None


def keys_of(scheme: Scheme) -> dict[str, object]:
    """Return the keys that make this scheme, with every default; ``scheme_from(keys_of(s)) == s``."""
    keys: dict[str, object] = {"scheme": next(name for name in PARTITIONS if PARTITIONS[name] is type(scheme))}
    for name in _names(type(scheme)):
        value = getattr(scheme, name)
        if value is not None:
            keys[name] = keys_of(value) if isinstance(value, Scheme) else _listed(value)
    return keys


def _names(kind: type[Scheme]) -> list[str]:
    """List the keys of a scheme, with `inside` last, as a reader of the file meets them."""
    return sorted((field.name for field in fields(kind)), key="inside".__eq__)


def _listed(value: object) -> object:
    """Turn tuples into lists, as a file has them."""
    return [_listed(item) for item in value] if isinstance(value, tuple) else value


def _hint(wrong: object, known: Iterable[str]) -> str:
    """Suggest the name that was probably meant."""
    near = get_close_matches(wrong[:KEY_CHARACTERS], list(known), n=1) if isinstance(wrong, str) else []
    return f" (did you mean {near[0]}?)" if near else ""


def _line(error: ValidationError, key: str, name: str, inside: object) -> str:
    """Put the first problem that pydantic found into one line."""
    first = error.errors(include_url=False)[0]
    place = key
    for step in first["loc"]:
        place += f"[{step}]" if isinstance(step, int) else f".{step}"
    message = first["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    if first["type"] == "missing":
        return f"{place} is missing; {name} needs it"
    if first["loc"] == ():
        return f"{place}: {message}"
    value = inside if first["loc"] == ("inside",) else first["input"]
    return f"{place} = {shown(value)}: {message}"
