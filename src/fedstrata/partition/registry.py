"""The schemes of partition by name, and the way from the keys of an experiment file to a scheme and back."""

from collections.abc import Mapping
from dataclasses import fields

from pydantic import ValidationError

from fedstrata.base.errors import ExperimentError
from fedstrata.base.key_errors import explain, nearest, unknown
from fedstrata.base.quoting import dotted
from fedstrata.base.registry import Registry
from fedstrata.partition.scheme import Scheme

PARTITIONS: Registry[type[Scheme]] = Registry(
    {
        "iid": "fedstrata.partition.ungrouped:IID",
        "rotation": "fedstrata.partition.grouped:Rotation",
        "concept": "fedstrata.partition.grouped:Concept",
        "majority": "fedstrata.partition.grouped:Majority",
        "label_groups": "fedstrata.partition.grouped:LabelGroups",
        "class_pairs": "fedstrata.partition.grouped:ClassPairs",
        "shards": "fedstrata.partition.ungrouped:Shards",
        "dirichlet": "fedstrata.partition.ungrouped:Dirichlet",
        "quantity": "fedstrata.partition.ungrouped:Quantity",
        "natural": "fedstrata.partition.ungrouped:Natural",
    },
    group="fedstrata.partitions",
)
"""The schemes of partition, by name."""


def scheme_from(keys: Mapping[str, object], place: str = "partition") -> Scheme:
    """Make a scheme of ``{"scheme": name, ...its keys}``. The key `inside` is such a mapping again.

    Args:
        keys: The keys, as in the experiment file.
        place: The place of the keys in the experiment, for the message.

    Raises:
        ExperimentError: When there is no such scheme, or a key does not fit it.
    """
    options = dict(keys)
    name = options.pop("scheme", None)
    if name is None:
        for key in options:
            if near := nearest(key, ["scheme"]):
                raise ExperimentError(f"{place}.{dotted([key])}: unknown key; {near}")
        raise ExperimentError(f"{place}.scheme: expected one of {', '.join(PARTITIONS)}, found none")
    if not isinstance(name, str) or name not in PARTITIONS:
        raise ExperimentError(unknown(f"{place}.scheme", name, "partition", PARTITIONS))
    kind = PARTITIONS[name]
    inside = options.get("inside")
    if isinstance(inside, Mapping) and "inside" in _key_names(kind):
        options["inside"] = scheme_from(inside, f"{place}.inside")
    try:
        return kind(**options)
    except ValidationError as failure:
        raise ExperimentError(explain(failure, keys, kind, place, chosen_by="scheme")) from None


def keys_of(scheme: Scheme) -> dict[str, object]:
    """Return the keys that make this scheme, with every default; ``scheme_from(keys_of(s)) == s``."""
    keys: dict[str, object] = {"scheme": next(name for name in PARTITIONS if PARTITIONS[name] is type(scheme))}
    for name in _key_names(type(scheme)):
        value = getattr(scheme, name)
        if value is not None:
            keys[name] = keys_of(value) if isinstance(value, Scheme) else _as_lists(value)
    return keys


def _key_names(kind: type[Scheme]) -> list[str]:
    """List the keys of a scheme, with `inside` last as in an experiment file."""
    return sorted((field.name for field in fields(kind)), key="inside".__eq__)


def _as_lists(value: object) -> object:
    """Turn tuples into lists, as a file has them."""
    return [_as_lists(item) for item in value] if isinstance(value, tuple) else value
