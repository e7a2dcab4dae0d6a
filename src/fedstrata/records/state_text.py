"""A state as plain JSON and tensors, and back. Nothing is unpickled."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import torch

from fedstrata.base.errors import ContractError, first_line
from fedstrata.core import State

_SAVEABLE = (
    "fields of a state are tensors, numbers, texts, dataclasses and tuples of these, or mappings from whole numbers "
    "or texts"
)


def require_saveable(state: State) -> None:
    """Refuse a state that would not be the same when it is read again.

    Raises:
        ContractError: With the field that cannot be saved.
    """
    for field in dataclasses.fields(state):
        before, after = dict[str, torch.Tensor](), dict[str, torch.Tensor]()
        name = f"{type(state).__name__}.{field.name}"
        try:
            kind = get_type_hints(type(state))[field.name]
            text = json.dumps(encode(getattr(state, field.name), name, before), default=dict)
            plain = json.loads(text)
            again = decode(_kind_with(kind, plain), plain, before, name)
            same = json.dumps(encode(again, name, after), default=dict) == text and before.keys() == after.keys()
        # What the encoder, the decoder and a type that cannot be found raise.
        except (TypeError, ValueError, KeyError, AttributeError, NameError, StopIteration) as error:
            raise ContractError(f"{name} cannot be saved: {first_line(error)}; {_SAVEABLE}") from None
        if not same:
            raise ContractError(f"{name} is another value when it is read again; {_SAVEABLE}")


def apart(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors, each with memory of its own: a state may hold one of them twice, or a part of another."""
    found = dict[str, torch.Tensor]()
    known = set[int]()
    for name, values in tensors.items():
        place = values.untyped_storage().data_ptr()
        found[name] = values.clone() if place in known else values.contiguous()
        known.add(place)
    return found


def encode(value: Any, name: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Return a value as plain JSON. A tensor goes to `tensors`, and its name stands in its place."""
    if isinstance(value, torch.Tensor):
        tensors[name] = value
        return name
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return {field.name: encode(getattr(value, field.name), f"{name}.{field.name}", tensors) for field in fields}
    if isinstance(value, Mapping):
        return {key: encode(item, f"{name}.{key}", tensors) for key, item in value.items()}
    if isinstance(value, tuple):
        # The clients of a cluster are ids alone, and they may be very many.
        if all(type(item) is int for item in value):
            return list(value)
        return [encode(item, f"{name}.{place}", tensors) for place, item in enumerate(value)]
    if value is not None and not isinstance(value, bool | int | float | str):
        raise TypeError(f"it holds {type(value).__name__}")
    return value


def decode(kind: Any, plain: Any, tensors: Mapping[str, torch.Tensor], name: str) -> Any:
    """Return the value of a type that `encode` made plain.

    Raises:
        ValueError: When it is of another type. The text says which.
    """
    origin = get_origin(kind)
    inner = get_args(kind)
    if origin in (Union, UnionType):
        if plain is None and NoneType in inner:
            return None
        return decode(next(option for option in inner if option is not NoneType), plain, tensors, name)
    if kind is torch.Tensor:
        return tensors[plain]
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = get_type_hints(kind)
        fields = {field.name for field in dataclasses.fields(kind)}
        # A run of a version without such a field is as one that has its default.
        new = {field.name for field in dataclasses.fields(kind) if field.default is not dataclasses.MISSING}
        _expect(name, plain, dict)
        if fields - new != plain.keys() - new or plain.keys() - fields:
            differ = ", ".join(sorted(fields ^ plain.keys()))
            raise ValueError(f"{name} is of another version: only one of the two has {differ}")
        of_fields = {key: _kind_with(hints[key], item) for key, item in plain.items()}
        return kind(**{key: decode(of_fields[key], item, tensors, f"{name}.{key}") for key, item in plain.items()})
    if origin is tuple:
        _expect(name, plain, list)
        if inner[0] is int and all(type(item) is int for item in plain):
            return tuple(plain)
        kinds = [inner[0]] * len(plain) if inner[1:] == (Ellipsis,) else inner
        return tuple(decode(kind, item, tensors, name) for kind, item in zip(kinds, plain, strict=True))
    if inner and isinstance(origin, type) and issubclass(origin, Mapping):
        _expect(name, plain, dict)
        # The keys of JSON are texts.
        of_keys = int if inner[0] is int else str
        return {of_keys(key): decode(inner[1], item, tensors, name) for key, item in plain.items()}
    if kind in (int, float, str, bool):
        _expect(name, plain, (int, float) if kind is float else kind)
    return plain


def _kind_with(kind: Any, plain: Any) -> Any:
    """The type of a field, or the first subclass of it that has all fields of a value: such a one may be there too."""
    if not (dataclasses.is_dataclass(kind) and isinstance(kind, type) and isinstance(plain, dict)):
        return kind
    kinds = (kind, *kind.__subclasses__())
    return next((each for each in kinds if plain.keys() <= {field.name for field in dataclasses.fields(each)}), kind)


def _expect(name: str, plain: Any, kind: type | tuple[type, ...]) -> None:
    if not isinstance(plain, kind):
        raise ValueError(f"{name} is {type(plain).__name__}")
