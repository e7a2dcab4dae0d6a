"""A CUDA device that is none: the program for CUDA runs on a CPU, and everything that a device would do is noted.

No card and no build of torch for CUDA is needed. Tensors of the device are wrappers whose values lie in the computer's
memory, or nowhere. A product of a tensor of the device and one of the computer fails, as on CUDA. Copies, kernels,
recordings and waits are noted in order:

    with SimulatedGPU() as gpu:
        Vectorized(module, layout, client_data, device="cuda").run(plan)
    gpu.notes

It is not a model of time. One operation of torch counts as one kernel, which CUDA needs at least.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from fedstrata.core import Report, Rows
from fedstrata.engine.vectorized import cuda_graphs

aten: Any = torch.ops.aten

CUDA = torch.device("cuda", 0)
MEMORY = 80 << 30
"""Bytes of the device, of which the engine works on a part."""

_NO_KERNEL = {
    "_local_scalar_dense",
    "_reshape_alias",
    "_unsafe_view",
    "detach",
    "empty",
    "empty_like",
    "empty_strided",
    "lift_fresh",
    "new_empty",
    "new_empty_strided",
}
"""Operations that start no kernel, besides views."""
_WAITING = {"_local_scalar_dense", "_unique2", "equal", "is_nonzero", "masked_select", "nonzero", "unique_dim"}
"""Operations whose result, or its shape, the computer waits for."""
_SELECTING = {"embedding", "gather", "index", "index_select"}
"""Operations that read as much of their first argument as they write."""
_WRITING = {"copy_", "fill_", "index_copy_", "zero_"}
"""Operations that write their first argument without reading it."""
_IN_PLACE_ONLY = {"_fused_adam_", "_fused_adamw_"}
"""Operations without results, which torch cannot do without values."""


@dataclass(frozen=True)
class Note:
    """One thing that the device did, or that the computer waited for.

    Attributes:
        kind: "kernel", "to device", "to host", "wait" (for a value), "record" or "replay" (one launch of a recording).
        name: The operation of torch.
        recorded: Whether it ran as a part of a recording, without a launch of its own.
        blocking: Whether the computer waits until it is done.
        bytes: The bytes that are read and written, each operand once; of copies, the bytes copied.
        flops: The floating-point operations of matrix products and convolutions.
        half: Whether these have operands of 16 bits.
    """

    kind: str
    name: str
    recorded: bool = False
    blocking: bool = False
    bytes: int = 0
    flops: int = 0
    half: bool = False


class DeviceTensor(Tensor):
    """A tensor of the device.

    Attributes:
        held: The tensor with the values, or one on `meta` without any.
    """

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor, own: str) -> DeviceTensor:
        """Wrap a tensor; `own` is the kind of device that torch's own code takes the wrapper for."""
        made: DeviceTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            held.stride(),
            held.storage_offset(),
            dtype=held.dtype,
            device=torch.device(own),
            storage_size=held.untyped_storage().nbytes(),
        )
        made.held = held
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # torch has an attribute
        """The device that the program sees."""
        return CUDA

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's own is one that is disabled
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Refuse work without a device."""
        raise RuntimeError(f"{func}: expected a simulated device around the use of its tensors")


def fetched(report: Report) -> Report:
    """A report with its updates in the computer's memory; without a device around it they could not be read."""
    results = {
        name: replace(result, updates=Rows(result.updates.clients, result.updates.values))
        for name, result in report.results.items()
    }
    return replace(report, results=results)


class _Indexed(TorchFunctionMode):
    """Gives the device its number, which torch would ask CUDA for."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One call of torch."""
        return func(*tree_map(self._indexed, args), **tree_map(self._indexed, kwargs or {}))

    def _indexed(self, each: Any) -> Any:
        is_unnumbered = isinstance(each, str | torch.device) and str(each) == "cuda"
        return CUDA if is_unnumbered else each


class SimulatedGPU(TorchDispatchMode):
    """A device for as long as its block lasts.

    Args:
        values: Whether values are computed. Without them the computer reads zeros, and noise where it copies whole
            tensors of floating point into its memory: clients that do not move would be a case of their own.
        own: The kind of device that torch's own code takes tensors for. "meta" is stricter; "cpu" is what autocast
            needs, and then a copy to the computer cannot be told from none.
    """

    def __init__(self, values: bool = True, own: str = "meta") -> None:
        """Start with nothing done."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.notes = list[Note]()
        self._values = values
        self._own = own
        self._inner = torch.device("cpu" if values else "meta")
        self._pinned = dict[int, Any]()  # storages are held, so that no other one gets their place
        self._landing = list[tuple[Tensor, Tensor]]()
        self._recording: Recording | None = None
        self._patches = ExitStack()

    def __enter__(self) -> SimulatedGPU:
        """Put the device where torch and the engine look for one."""
        _forget_streams()
        stand_ins: dict[str, Any] = {
            "_lazy_init": lambda: None,
            "is_available": lambda: True,
            "synchronize": lambda *_: self.synchronize(),
            "Stream": lambda *_: SimpleNamespace(wait_stream=lambda _: None, synchronize=self.synchronize),
            "stream": lambda _: ExitStack(),
            "current_stream": lambda *_: SimpleNamespace(),
            "get_device_properties": lambda _: SimpleNamespace(total_memory=MEMORY),
            "CUDAGraph": lambda: Recording(self),
            "graph": self._record,
        }
        for name, stand_in in stand_ins.items():
            self._patches.enter_context(patch.object(torch.cuda, name, stand_in))
        self._patches.enter_context(patch.object(cuda_graphs, "_FAILED_DEVICES", set()))
        self._patches.enter_context(patch("fedstrata.engine.vectorized.network._place", _place))
        if self._own == "cpu":
            autocast = torch.autocast
            mapped = lambda _, *args, **kwargs: autocast("cpu", *args, **kwargs)  # noqa: E731
            self._patches.enter_context(patch.object(torch, "autocast", mapped))
        self._patches.enter_context(_Indexed())
        self._patches.callback(
            torch.__future__.set_overwrite_module_params_on_conversion,
            torch.__future__.get_overwrite_module_params_on_conversion(),
        )
        torch.__future__.set_overwrite_module_params_on_conversion(True)  # parameters become wrappers
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        """Take the device away."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._patches.close()
        _forget_streams()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One operation of torch."""
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        given = _tensors(args, kwargs)
        inside = any(isinstance(tensor, DeviceTensor) for tensor in given)
        if name == "is_pinned":
            return _storage(args[0]) in self._pinned
        if name == "_pin_memory" or kwargs.get("pin_memory"):
            kwargs = {key: value for key, value in kwargs.items() if key != "pin_memory"}
            return self._pin(args[0].clone() if name == "_pin_memory" else func(*args, **kwargs))
        if name == "copy_" and not (inside and all(isinstance(tensor, DeviceTensor) for tensor in args[:2])):
            return self._copy(func, *args, **kwargs) if inside else func(*args, **kwargs)
        if name == "_to_copy" and not inside and self._is_own(kwargs.get("device")):
            return self._up(func, args[0], kwargs)
        if name == "_to_copy" and inside and self._is_the_computer(kwargs.get("device")):
            return self._down(func, args[0], kwargs)
        if not inside and not self._is_own(kwargs.get("device")):
            return func(*args, **kwargs)
        return self._compute(func, name, args, kwargs)

    def synchronize(self) -> None:
        """Finish everything."""
        for target, values in self._landing:
            target.copy_(values)
        self._landing.clear()

    def note(self, kind: str, name: str, **facts: Any) -> None:
        """Note something, or keep it with the recording that is being made."""
        if self._recording is None:
            self.notes.append(Note(kind, name, **facts))
        else:
            self._recording.notes.append(Note(kind, name, recorded=True, **facts))

    def _wrapped(self, each: Any) -> Any:
        return DeviceTensor(each, self._own) if isinstance(each, Tensor) else each

    def _is_own(self, device: Any) -> bool:
        if device is None:
            return False
        kind = torch.device(device).type
        return kind == "cuda" or (kind == self._own == "meta")

    def _is_the_computer(self, device: Any) -> bool:
        """Whether a copy leaves the device; torch's own code asks for `own` where it means where a tensor is."""
        return device is not None and torch.device(device).type == "cpu" != self._own

    def _pin(self, tensor: Tensor) -> Tensor:
        self._pinned[_storage(tensor)] = tensor.untyped_storage()
        return tensor

    def _up(self, func: Any, tensor: Tensor, kwargs: Mapping[str, Any]) -> Any:
        """Copy to the device."""
        self._refuse_while_recording("a copy to the device")
        blocking = not (kwargs.get("non_blocking") and _storage(tensor) in self._pinned)
        self.note("to device", "_to_copy", blocking=blocking, bytes=tensor.nbytes)
        held = func(tensor, **{**kwargs, "device": self._inner, "non_blocking": False})
        return self._wrapped(held)

    def _down(self, func: Any, tensor: DeviceTensor, kwargs: Mapping[str, Any]) -> Tensor:
        """Copy to the computer, which waits."""
        self._refuse_while_recording("a copy to the host")
        self.synchronize()
        self.note("to host", "_to_copy", blocking=True, bytes=tensor.nbytes)
        held = tensor.held if self._values else torch.zeros(tensor.shape, dtype=tensor.dtype)
        copied: Tensor = func(held, **{**kwargs, "non_blocking": False})
        return copied

    def _copy(self, func: Any, target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        """Copy between the device and the computer into a tensor that is there."""
        self._refuse_while_recording("a copy across the bus")
        if isinstance(target, DeviceTensor):
            blocking = not (non_blocking and _storage(source) in self._pinned)
            self.note("to device", "copy_", blocking=blocking, bytes=source.nbytes)
            func(target.held, source if self._values else source.to("meta"))
            return target
        assert isinstance(source, DeviceTensor)
        blocking = not (non_blocking and _storage(target) in self._pinned)
        self.note("to host", "copy_", blocking=blocking, bytes=source.nbytes)
        if self._values:
            target.fill_(torch.nan)  # what is read before the device is waited for
            self._landing.append((target, source.held.clone()))
        elif target.is_floating_point():
            target.normal_(generator=torch.Generator().manual_seed(0))
        if blocking:
            self.synchronize()
        return target

    def _compute(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Do work on the device."""
        given = _tensors(args, kwargs)
        strangers = [each for each in given if not isinstance(each, DeviceTensor)]
        if any(each.ndim for each in strangers):
            raise RuntimeError(f"{name}: expected all tensors on the same device, found cuda and cpu")
        outer = {id(each.held): each for each in given if isinstance(each, DeviceTensor)}
        if name in _WAITING or (name == "index" and any(_is_mask(each) for each in given[1:])):
            self._refuse_while_recording(name)
            self.synchronize()
            self.note("wait", name, blocking=True)
        strip: Callable[[Any], Any] = lambda each: each.held if isinstance(each, DeviceTensor) else each  # noqa: E731
        args, kwargs = tree_map(strip, args), tree_map(strip, kwargs)
        if self._is_own(kwargs.get("device")):
            kwargs["device"] = self._inner
        if name == "_local_scalar_dense" and not self._values:
            return 0
        if self._recording is not None:
            self._recording.before(func, args, kwargs)
        found = None if name in _IN_PLACE_ONLY and not self._values else func(*args, **kwargs)
        if self._recording is not None:
            self._recording.after(func, args, kwargs, found)
        if name not in _NO_KERNEL and not _is_view(func):
            self.note("kernel", name, **_cost(func, name, args, kwargs, found))
        return tree_map(lambda each: outer[id(each)] if id(each) in outer else self._wrapped(each), found)

    def _refuse_while_recording(self, what: str) -> None:
        if self._recording is not None:
            raise RuntimeError(f"operation not permitted when stream is capturing: {what}")

    @contextmanager
    def _record(self, graph: Recording, pool: object = None, stream: object = None) -> Iterator[None]:
        """Record what is done in a block, without doing it."""
        self.synchronize()
        self._recording = graph
        try:
            yield
        finally:
            self._recording = None
            graph.undo()
        self.notes.append(Note("record", "graph", blocking=True))


class Recording:
    """A CUDA graph: operations with the places of what they read and write.

    Attributes:
        notes: What one replay does.
    """

    def __init__(self, gpu: SimulatedGPU) -> None:
        """Start empty."""
        self.notes = list[Note]()
        self._gpu = gpu
        self._work = list[tuple[Any, Any, Any, list[Tensor]]]()
        self._before = list[tuple[Tensor, Tensor]]()

    def pool(self) -> int:
        """A handle that is equal for the same pool."""
        return 0

    def before(self, func: Any, args: Any, kwargs: Any) -> None:
        """Remember what an operation changes."""
        for tensor in _changed(func, args, kwargs):
            self._before.append((tensor, tensor.clone()))

    def after(self, func: Any, args: Any, kwargs: Any, found: Any) -> None:
        """Remember an operation and where its results are."""
        if not _is_view(func):
            self._work.append((func, args, kwargs, _tensors(found)))

    def undo(self) -> None:
        """Put everything back: recording does not do the work."""
        for tensor, values in reversed(self._before):
            tensor.copy_(values)
        self._before.clear()

    def replay(self) -> None:
        """Do the work."""
        self._gpu.notes.append(Note("replay", "graph"))
        self._gpu.notes += self.notes
        if not self._gpu._values:
            return
        with torch.no_grad(), torch.utils._python_dispatch._disable_current_modes():
            for func, args, kwargs, own in self._work:
                for target, values in zip(own, _tensors(func(*args, **kwargs)), strict=True):
                    if target is not values:
                        target.copy_(values)


def _forget_streams() -> None:
    cuda_graphs._stream.cache_clear()
    cuda_graphs._living.cache_clear()


def _storage(tensor: Tensor) -> int:
    number: int = tensor.untyped_storage()._cdata
    return number


def _place(tensor: Tensor) -> int:
    """Where a tensor lies; on `meta` too, where there are no addresses."""
    return _storage(tensor.held if isinstance(tensor, DeviceTensor) else tensor)


def _tensors(*found: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(found) if isinstance(leaf, Tensor)]


def _is_mask(tensor: Tensor) -> bool:
    return tensor.dtype in (torch.bool, torch.uint8)


def _is_view(func: Any) -> bool:
    """Whether the results of an operation share memory with its arguments, which stay as they are."""
    return any(each.alias_info is not None and not each.alias_info.is_write for each in func._schema.returns)


def _changed(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """The arguments that an operation changes."""
    silent = ("running_mean", "running_var") if func._overloadpacket is aten.native_batch_norm else ()
    found = list[Tensor]()
    for place, argument in enumerate(func._schema.arguments):
        if argument.name in silent or (argument.alias_info is not None and argument.alias_info.is_write):
            found += _tensors(args[place] if place < len(args) else kwargs.get(argument.name))
    return found


def _size(tensor: Tensor) -> int:
    """The bytes of a tensor; what is repeated by strides of 0 is read once."""
    return min(tensor.nbytes, tensor.untyped_storage().nbytes())


def _cost(func: Any, name: str, args: Any, kwargs: Any, found: Any) -> dict[str, Any]:
    """The bytes and operations of a kernel."""
    given, made = _tensors(args, kwargs), _tensors(found) or _changed(func, args, kwargs)
    written = sum(map(_size, made))
    read = sum(map(_size, given))
    if name in _SELECTING:
        read = sum(map(_size, given[1:])) + written
    elif name in _WRITING:
        read = sum(map(_size, given[1:]))
        written = _size(given[-1]) if name == "index_copy_" else written
    elif "out" in kwargs:
        read -= _size(kwargs["out"])
    flops = _flops(func, args, kwargs, found)
    half = bool(flops) and given[0].dtype in (torch.bfloat16, torch.float16)
    return {"bytes": read + written, "flops": flops, "half": half}


def _flops(func: Any, args: Any, kwargs: Any, found: Any) -> int:
    """The floating-point operations of a product or a convolution; 0 for all else."""
    if func._overloadpacket is aten.convolution_backward:
        # Torch's formula takes no notice of groups.
        gradient, _, weight, *_, wanted = args
        return int(sum(wanted[:2]) * 2 * gradient.numel() * weight[0].numel())
    formula = flop_registry.get(func._overloadpacket)
    return int(formula(*args, **kwargs, out_val=found)) if formula else 0
