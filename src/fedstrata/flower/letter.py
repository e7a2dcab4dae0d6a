"""What is written on one message, before it is made a message of Flower's and after it has been one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from torch import Tensor

from fedstrata.core import Layout, Mask
from fedstrata.errors import InputError

Value = bool | int | float | str | list[int] | list[float] | list[str]
Record = Mapping[str, Value]

V = TypeVar("V", bool, int, float, str)


@dataclass(frozen=True)
class Letter:
    """Records of plain values, and tensors in groups.

    Attributes:
        settings: name of a record -> its values.
        arrays: name of a group -> its tensors by name.
    """

    settings: Mapping[str, Record] = field(default_factory=dict)
    arrays: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)

    def record(self, name: str) -> Record:
        """One record.

        Raises:
            InputError: when it is not there.
        """
        if name not in self.settings:
            raise InputError(f"expected the record {name}, found {', '.join(sorted(self.settings)) or 'none'}")
        return self.settings[name]


def one(record: Record, key: str, kind: type[V]) -> V:
    """A value of a record.

    Raises:
        InputError: when it is missing or of another type.
    """
    value = record.get(key)
    # isinstance would take a bool for an int.
    if type(value) is not kind:
        raise InputError(f"expected {key} to be of type {kind.__name__}, found {value!r}")
    return value


def several(record: Record, key: str, kind: type[V]) -> list[V]:
    """A list of values of a record.

    Raises:
        InputError: when it is missing, or holds something else.
    """
    values = record.get(key)
    if not isinstance(values, list) or any(type(value) is not kind for value in values):
        raise InputError(f"expected {key} to be a list of {kind.__name__}, found {values!r}")
    return [value for value in values if isinstance(value, kind)]


def chosen(mask: Mask) -> list[int]:
    """The tensors of a mask by their numbers."""
    return [tensor for tensor, inside in enumerate(mask) if inside]


def mask_of(record: Record, key: str, layout: Layout) -> Mask:
    """The mask that `chosen` made a list.

    Raises:
        InputError: when it names a tensor that the network does not have.
    """
    tensors = set(several(record, key, int))
    if not tensors <= set(range(len(layout.tensors))):
        raise InputError(f"expected {key} to name tensors 0 to {len(layout.tensors) - 1}, found {sorted(tensors)}")
    return tuple(tensor in tensors for tensor in range(len(layout.tensors)))


def named(row: Tensor, mask: Mask, layout: Layout) -> dict[str, Tensor]:
    """Some tensors of a row (p,), each in its shape."""
    spans = zip(layout.tensors, layout.spans, mask, strict=True)
    return {slot.name: row[span].reshape(slot.shape) for slot, span, inside in spans if inside}


def unnamed(tensors: Mapping[str, Tensor], mask: Mask, layout: Layout, row: Tensor) -> None:
    """Write tensors into a row (p,); only those of the mask, and all of them.

    Raises:
        InputError: when one is missing, is not asked for, or has another shape or type.
    """
    wanted = {slot.name for slot, inside in zip(layout.tensors, mask, strict=True) if inside}
    if missing := sorted(wanted - set(tensors)):
        raise InputError(f"expected the tensor {missing[0]}, found none of that name")
    if strange := sorted(set(tensors) - wanted):
        raise InputError(f"expected no tensor {strange[0]}: it was not asked for")
    for slot, span in zip(layout.tensors, layout.spans, strict=True):
        if slot.name in wanted:
            values = tensors[slot.name]
            if values.dtype != row.dtype or tuple(values.shape) != slot.shape:
                found = f"{values.dtype} {tuple(values.shape)}"
                raise InputError(f"expected {slot.name} to be {row.dtype} {slot.shape}, found {found}")
            row[span] = values.reshape(-1)
