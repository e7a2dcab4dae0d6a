"""Networks that need care: what one keeps outside the row of its values, and layers that normalise over a batch.

Counters, and attributes of a user's own layers, are of no client. So each client begins with what they were when the
network was made, whichever clients the same network has trained before, and in whichever process. A batch of a single
sample has no variance that a layer could normalise by.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedstrata.core import Layout

MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))
"""What every layer holds, such as its tensors, the layers in it, and hooks."""

_WITHOUT_STATE = ("torch.", "fedstrata.")
"""The modules whose layers keep nothing in attributes but settings."""


@dataclass(frozen=True)
class OutsideState:
    """What a network had outside its row at one time.

    Attributes:
        buffers: The buffers that no row has, each with its layer, its name there and its values.
        attributes: The attributes of layers of the user's own, likewise.
    """

    buffers: tuple[tuple[nn.Module, str, Tensor], ...]
    attributes: tuple[tuple[nn.Module, dict[str, Any]], ...]

    @classmethod
    def of(cls, module: nn.Module, layout: Layout) -> OutsideState:
        """What a network has now.

        The numbers that BatchNorm counts its batches in are left out: no layer that is allowed reads them.
        """
        sent = {slot.name for slot in layout.tensors}
        buffers = list[tuple[nn.Module, str, Tensor]]()
        for path, buffer in module.named_buffers():
            owner, _, name = path.rpartition(".")
            if path not in sent and name != "num_batches_tracked":
                buffers.append((module.get_submodule(owner), name, buffer.clone()))
        users = [layer for layer in module.modules() if not type(layer).__module__.startswith(_WITHOUT_STATE)]
        return cls(tuple(buffers), tuple((layer, _attributes(layer)) for layer in users))

    def restore(self) -> None:
        """Give the network back what it had."""
        for layer, name, values in self.buffers:
            layer._buffers[name] = values.clone()
        for layer, attributes in self.attributes:
            held = vars(layer)
            for name in [name for name in held if name not in MODULE_ATTRIBUTES and name not in attributes]:
                del held[name]
            held.update({name: _copied(value) for name, value in attributes.items()})

    def changed(self) -> str:
        """The name of something that is no longer as it was; empty where nothing has changed."""
        for layer, name, values in self.buffers:
            now = layer._buffers.get(name)
            if now is None or not torch.equal(now, values):
                return name
        for layer, attributes in self.attributes:
            now_held = _attributes(layer)
            if names := now_held.keys() ^ attributes.keys():
                return min(names)
            for name, value in attributes.items():
                if not _same(now_held[name], value):
                    return name
        return ""


def _attributes(layer: nn.Module) -> dict[str, Any]:
    """The attributes of a layer that are of its own class."""
    return {name: _copied(value) for name, value in vars(layer).items() if name not in MODULE_ATTRIBUTES}


def _copied(value: Any) -> Any:
    """A value that stays as it is when a layer changes its own in place; what lists and dicts hold is not copied."""
    if isinstance(value, Tensor):
        # A view of a parameter has its values.
        is_view = value._base is not None or value.grad_fn is not None
        return value if is_view or isinstance(value, nn.Parameter) else value.detach().clone()
    return copy.copy(value) if isinstance(value, list | dict | set) else value


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal, as far as that can be told."""
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return one is other or (isinstance(one, Tensor) and isinstance(other, Tensor) and torch.equal(one, other))
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, bool | int | float | str | bytes) and isinstance(other, bool | int | float | str | bytes):
        return type(one) is type(other) and one == other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    return one is other or (isinstance(one, set) and one == other)


BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
"""The layers of torch that normalise over a batch."""

INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
"""The layers of torch that normalise over each sample, and may have a running variance too."""


def is_norm(layer: nn.Module) -> bool:
    """Whether a layer may call torch's batch norm: one of torch's, or one of the user's own with a running variance."""
    return isinstance(layer, (*BATCH_NORMS, *INSTANCE_NORMS)) or isinstance(getattr(layer, "running_var", None), Tensor)


def normalises_over_batch(module: nn.Module) -> bool:
    """Whether a network needs batches of two samples: it has a BatchNorm, or one of its own with a running variance."""
    return any(is_norm(layer) and not isinstance(layer, INSTANCE_NORMS) for layer in module.modules())
