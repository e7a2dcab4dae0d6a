"""Networks that need care: what one keeps outside the row of its values, and layers that normalise over a batch.

Counters, attributes of a user's own layers, the objects in them, and what a loss remembers are of no client. So each
client begins with what they were when the network was made, whichever clients the same network has trained before, and
in whichever process. A batch of a single sample has no variance that a layer could normalise by.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from io import BytesIO
from multiprocessing.reduction import ForkingPickler
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedstrata.base.errors import ModelError, first_line
from fedstrata.core import Layout

MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))
"""What every layer holds, such as its tensors, the layers in it, and hooks."""

_WITHOUT_STATE = ("torch.", "fedstrata.")
"""The modules whose layers keep nothing in attributes but settings."""


class _Copier(TorchFunctionMode):
    """Copies things as `copy.deepcopy` does, but for what stands for itself, and for views of tensors that do.

    Args:
        fixed: What stands for itself: layers, weights, and the buffers that are sent.
    """

    def __init__(self, fixed: Iterable[object] = ()) -> None:
        """Note where the tensors are."""
        super().__init__()
        self.fixed = {id(part): part for part in fixed}
        self._memory = {_memory(part) for part in self.fixed.values() if isinstance(part, Tensor)}

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch."""
        # A view has the values of its tensor; a copy of it would not follow them.
        if function is Tensor.__deepcopy__ and _memory(args[0]) in self._memory:
            return args[0]
        return function(*args, **(kwargs or {}))

    def copied(self, value: Any) -> tuple[Any, list[object]]:
        """A copy of a value, and all the copies that are in it."""
        copies = dict(self.fixed)
        with self:
            copied = copy.deepcopy(value, copies)
        return copied, [part for key, part in copies.items() if key not in self.fixed]

    def described(self, value: Any) -> object:
        """Something that is equal for values in which everything is, as far as that can be told."""
        content = BytesIO()
        try:
            Describer(content, dict.fromkeys(self.fixed, "fixed")).dump(value)
        except Exception:  # whatever the things that a network holds raise when they are pickled
            return value if isinstance(value, FunctionType | type) else object()
        return content.getvalue()


def _memory(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())


class Describer(ForkingPickler):
    """Writes a thing with digests in place of tensors.

    Args:
        file: The file that is written.
        named: What is written in place of some of its parts, by their `id`.
    """

    def __init__(self, file: BytesIO, named: Mapping[int, object]) -> None:
        """Write nothing yet."""
        super().__init__(file)
        self._named = named

    def persistent_id(self, part: object) -> object:
        """What stands for a part; None for one that is written as it is."""
        if id(part) in self._named or not isinstance(part, Tensor):
            return self._named.get(id(part))
        content = part.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
        return type(part), part.dtype, tuple(part.shape), blake2b(content).hexdigest()


_Place = tuple[dict[str, Any], frozenset[str]]
"""Everything that a layer or a function holds now, by name; and the names in it that are not looked at."""


@dataclass(frozen=True)
class OutsideState:
    """What a network, or some functions, had outside of a row at one time.

    Attributes:
        places: Where it was.
        values: What was in each place, by name, as copies that nothing else has.
        copier: Copies them once more.
    """

    places: tuple[_Place, ...]
    values: list[dict[str, Any]]
    copier: _Copier

    @classmethod
    def of(cls, module: nn.Module, layout: Layout) -> OutsideState:
        """What a network has now.

        The numbers that BatchNorm counts its batches in are left out: no layer that is allowed reads them.

        Raises:
            ModelError: When the network keeps something that cannot be copied, or weights where torch does not look
                for them, so that they would never be trained.
        """
        layers = dict(module.named_modules())
        state = module.state_dict(keep_vars=True)
        copier = _Copier([*layers.values(), *module.parameters(), *(state[slot.name] for slot in layout.tensors)])
        places = list[_Place]()
        for path, layer in layers.items():
            if not type(layer).__module__.startswith(_WITHOUT_STATE):
                places.append((layer.__dict__, MODULE_ATTRIBUTES))
                _refuse_hidden_weights(path, _now(places[-1]), copier)
            sent = {name for name, buffer in layer._buffers.items() if buffer is None or id(buffer) in copier.fixed}
            sent.add("num_batches_tracked")
            if layer._buffers.keys() - sent:
                places.append((layer._buffers, frozenset(sent)))
        return cls(tuple(places), copier.copied(list(map(_now, places)))[0], copier)

    @classmethod
    def of_functions(cls, functions: Iterable[Callable[..., Any]]) -> OutsideState:
        """What some functions have in attributes now, or the objects whose methods they are."""
        owners = (getattr(function, "__self__", function) for function in functions)
        places = [(vars(owner), frozenset[str]()) for owner in owners if hasattr(owner, "__dict__")]
        copier = _Copier()
        return cls(tuple(places), copier.copied(list(map(_now, places)))[0], copier)

    def restore(self) -> None:
        """Give back what there was."""
        values = self.copier.copied(self.values)[0] if any(self.values) else self.values
        for (held, ignored), kept in zip(self.places, values, strict=True):
            for name in held.keys() - ignored - kept.keys():
                del held[name]
            held.update(kept)

    def changed(self) -> str:
        """The name of something that is no longer as it was; empty where nothing has changed."""
        for place, kept in zip(self.places, self.values, strict=True):
            now = _now(place)
            if others := kept.keys() ^ now.keys():
                return min(others)
            for name, value in kept.items():
                if self.copier.described(value) != self.copier.described(now[name]):
                    return name
        return ""


def _now(place: _Place) -> dict[str, Any]:
    """What is in a place now, by name."""
    held, ignored = place
    return {name: value for name, value in held.items() if name not in ignored}


def _refuse_hidden_weights(path: str, attributes: Mapping[str, Any], copier: _Copier) -> None:
    """Refuse attributes of a layer that are not copied for every client, or hold weights that nothing would train."""
    for name, value in attributes.items():
        place = f"the attribute {f'{path}.{name}'.lstrip('.')!r} of the network"
        try:
            _, copies = copier.copied(value)
        except Exception as error:  # whatever the user's own class raises
            raise ModelError(
                f"{place}: expected something that copy.deepcopy copies, as each client begins with a copy of its own, "
                f"found {type(value).__name__}: {first_line(error)}"
            ) from error
        if any(isinstance(part, Tensor) and part.requires_grad for part in copies):
            raise ModelError(
                f"{place}: expected no weights, as torch does not see those of lists, dicts and other objects, and "
                "nothing would train them; use nn.ModuleList, nn.ModuleDict or nn.ParameterList, or freeze them by "
                "requires_grad_(False)"
            )


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
