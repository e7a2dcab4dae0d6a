"""Things taken apart for a journey: tensors on their own, and a small frame that says where each belongs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class _Place:
    """Where a tensor was: its number, and its axes from the outermost in memory to the innermost."""

    number: int
    axes: tuple[int, ...]


@dataclass(frozen=True)
class _Made:
    """A dataclass by its fields; the frame of one cannot be one, for its tensors are not there to be checked."""

    kind: type
    parts: Mapping[str, Any]


def pack(thing: Any) -> tuple[Any, list[Tensor]]:
    """Take a thing made of dataclasses, mappings, tuples and tensors apart.

    Returns:
        The frame, which holds everything else as it is; and the tensors, each contiguous.
    """
    tensors: list[Tensor] = []

    def frame(part: Any) -> Any:
        if isinstance(part, Tensor):
            axes = tuple(sorted(range(part.ndim), key=part.stride, reverse=True))
            tensors.append(part.permute(axes).contiguous())
            return _Place(len(tensors) - 1, axes)
        if is_dataclass(part) and not isinstance(part, type):
            return _Made(type(part), {field.name: frame(getattr(part, field.name)) for field in fields(part)})
        if isinstance(part, Mapping):
            return {key: frame(value) for key, value in part.items()}
        return tuple(map(frame, part)) if isinstance(part, tuple) else part

    return frame(thing), tensors


def unpack(frame: Any, tensors: Sequence[Tensor]) -> Any:
    """Put together what `pack` took apart; every tensor lies in memory as the one that was packed."""
    if isinstance(frame, _Place):
        tensor = tensors[frame.number]
        return tensor.permute(sorted(range(tensor.ndim), key=frame.axes.__getitem__))
    if isinstance(frame, _Made):
        return frame.kind(**{name: unpack(part, tensors) for name, part in frame.parts.items()})
    if isinstance(frame, Mapping):
        return {key: unpack(value, tensors) for key, value in frame.items()}
    return tuple(unpack(part, tensors) for part in frame) if isinstance(frame, tuple) else frame
