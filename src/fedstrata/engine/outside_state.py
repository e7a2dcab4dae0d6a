"""Networks that need care: what one keeps outside the row of its values, and layers that normalise over a batch.

Counters, attributes of a user's own layers, the objects in them, and what a loss remembers are of no client. So each
client begins with what they were when the network was made, whichever clients the same network has trained before, and
in whichever process. A batch of a single sample has no variance that a layer could normalise by.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from io import BytesIO
from multiprocessing.reduction import ForkingPickler
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedstrata.base.errors import ExperimentError, first_line
from fedstrata.core import Layout

MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))
"""What every layer holds, such as its tensors, the layers in it, and hooks."""

_WITHOUT_STATE = ("torch.", "fedstrata.")
"""The modules whose layers keep nothing in attributes but settings."""


@dataclass(frozen=True)
class _Place:
    """Where a layer or a function keeps things.

    Attributes:
        owner: What it is, for messages.
        held: Everything that is there, by name. It changes.
        ignored: The names that are not looked at.
    """

    owner: str
    held: dict[str, Any]
    ignored: frozenset[str] = frozenset()

    @property
    def now(self) -> dict[str, Any]:
        """What is there now, by name."""
        return {name: value for name, value in self.held.items() if name not in self.ignored}


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

    def copied(self, value: Any) -> tuple[Any, list[Any]]:
        """A copy of a value, and all the copies that are in it."""
        copies = dict(self.fixed)
        with self:
            copied = copy.deepcopy(value, copies)
        return copied, [part for key, part in copies.items() if key not in self.fixed]

    def first_copies(self, places: Sequence[_Place]) -> list[dict[str, Any]]:
        """Copies of what is in each place now, by name.

        Raises:
            ExperimentError: When something cannot be copied, or has weights that nothing would train.
        """
        for place in places:
            for name, value in place.now.items():
                where = f"the attribute {name!r} of {place.owner}"
                try:
                    _, copies = self.copied(value)
                except Exception as error:  # whatever the user's own class raises
                    raise ExperimentError(
                        f"{where}: expected something that copy.deepcopy copies, as each client begins with a copy of "
                        f"its own, found {type(value).__name__}: {first_line(error)}"
                    ) from error
                if any(isinstance(part, Tensor) and part.requires_grad for part in copies):
                    raise ExperimentError(
                        f"{where}: expected no weights, as torch sees those of layers alone, and nothing would train "
                        "them; use nn.ModuleList, nn.ModuleDict or nn.ParameterList, or freeze them by "
                        "requires_grad_(False)"
                    )
        found: list[dict[str, Any]] = self.copied([place.now for place in places])[0]
        return found

    def described(self, value: Any) -> object:
        """Something that is equal for values in which everything is, as far as that can be told."""
        content = BytesIO()
        try:
            _Describer(content, dict.fromkeys(self.fixed, "fixed")).dump(value)
        except Exception:  # whatever the things that a network holds raise when they are pickled
            return value if isinstance(value, FunctionType | type) else object()
        return content.getvalue()


def _memory(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())


class _Describer(ForkingPickler):
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
            ExperimentError: When the network keeps something that cannot be copied, or weights where torch does not
                look for them, so that they would never be trained.
        """
        layers = dict(module.named_modules())
        state = module.state_dict(keep_vars=True)
        copier = _Copier([*layers.values(), *module.parameters(), *(state[slot.name] for slot in layout.tensors)])
        places = list[_Place]()
        for path, layer in layers.items():
            owner = f"the layer {path!r}" if path else "the network"
            if not type(layer).__module__.startswith(_WITHOUT_STATE):
                places.append(_Place(owner, layer.__dict__, MODULE_ATTRIBUTES))
            sent = {name for name, buffer in layer._buffers.items() if buffer is None or id(buffer) in copier.fixed}
            sent.add("num_batches_tracked")
            if layer._buffers.keys() - sent:
                places.append(_Place(owner, layer._buffers, frozenset(sent)))
        return cls(tuple(places), copier.first_copies(places), copier)

    @classmethod
    def of_functions(cls, functions: Mapping[str, Callable[..., Any]]) -> OutsideState:
        """What some functions have in attributes now, or the objects whose methods they are.

        Args:
            functions: The functions, by their keys in ``[local]``.

        Raises:
            ExperimentError: As above.
        """
        owners = {key: getattr(function, "__self__", function) for key, function in functions.items()}
        places = [_Place(f"local.{key}", vars(owner)) for key, owner in owners.items() if hasattr(owner, "__dict__")]
        copier = _Copier()
        return cls(tuple(places), copier.first_copies(places), copier)

    def restore(self) -> None:
        """Give back what there was."""
        values = self.copier.copied(self.values)[0] if any(self.values) else self.values
        for place, kept in zip(self.places, values, strict=True):
            for name in place.held.keys() - place.ignored - kept.keys():
                del place.held[name]
            place.held.update(kept)

    def changed(self) -> str:
        """The name of something that is no longer as it was; empty where nothing has changed."""
        for place, kept in zip(self.places, self.values, strict=True):
            now = place.now
            if others := kept.keys() ^ now.keys():
                return min(others)
            for name, value in kept.items():
                if self.copier.described(value) != self.copier.described(now[name]):
                    return name
        return ""


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
