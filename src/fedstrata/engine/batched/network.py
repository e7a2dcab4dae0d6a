"""One network with the weights of many clients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedstrata.core import Layout
from fedstrata.engine.batched.layers import Dropout, stand_ins
from fedstrata.engine.batched.replay import capacity
from fedstrata.errors import ModelError

MEMORY = {"cpu": 1 << 30, "cuda": 16 << 30}
"""Bytes that are worked on at a time, unless told otherwise; see `budget`."""


def budget(device: torch.device) -> int:
    """Bytes that are worked on at a time, unless told otherwise; of an accelerator's memory at most a quarter.

    Of all that it has: by what is free at the moment, engines would differ that are to train together.
    """
    most, total = MEMORY[device.type], capacity(device)
    return most if total is None else min(most, total // 4)


class Network:
    """A network as a function of its tensors, stacked over clients.

    Args:
        module: of the layout; its own values do not matter.
        layout: the tensors of the module.
        device: where it computes.
        precision: of training: ``"float32"``, or ``"bfloat16"`` for what is safe in it. Weights are float32.
        memory: bytes that one chunk of clients may take, about.
        products: whether convolutions become matrix products.

    Attributes:
        identity: equal for networks that compute the same function in the same way.
        salts: names of the salts of dropout.
        names: of the tensors of the layout, then of the salts.
        norm: whether statistics over a batch are taken, for which it needs two samples.
        frozen: names of the parameters that never move.
    """

    def __init__(
        self, module: nn.Module, layout: Layout, device: torch.device, precision: str, memory: int, products: bool
    ) -> None:
        """Copy the module."""
        self.layout, self.device, self.memory = layout, device, memory
        self.frozen = {name for name, parameter in module.named_parameters() if not parameter.requires_grad}
        self.norm = any(slot.kind == "buffer" for slot in layout.tensors)
        way = (sorted(self.frozen), device, precision, memory, products)
        self.identity = f"{_described(module)} {layout} {way}"
        self._module = stand_ins(module, products).to(device).requires_grad_(False)
        self._half = precision == "bfloat16"
        salts = [f"{path}.salt" for path, layer in self._module.named_modules() if isinstance(layer, Dropout)]
        self.salts, self.names = salts, [*(slot.name for slot in layout.tensors), *salts]
        self._bytes: dict[tuple[int, ...], int] = {}

    def logits(self, names: Sequence[str], tensors: Sequence[Tensor], inputs: Tensor, train: bool) -> Tensor:
        """Logits (g, b, classes) float32 of g clients; what training leaves in buffers is written into `tensors`.

        Args:
            names: of the tensors.
            tensors: every one stacked, (g, *shape).
            inputs: (g, b, ...).
            train: the mode.
        """

        def compute(tensors: Sequence[Tensor], inputs: Tensor) -> Tensor:
            found: Tensor = functional_call(self._module, dict(zip(names, tensors, strict=True)), (inputs,))
            return found

        self._module.train(train)
        half = torch.autocast(self.device.type, torch.bfloat16, enabled=self._half and train, cache_enabled=False)
        with half:
            if len(inputs) == 1:
                return compute([tensor[0] for tensor in tensors], inputs[0]).float()[None]
            stacked: Tensor = vmap(compute)(list(tensors), inputs)
            return stacked.float()

    def models_of(self, samples: int, inputs: Tensor) -> int:
        """How many models may be asked about so many samples each at a time; at least one.

        Args:
            samples: of each model.
            inputs: at least one sample, (s, ...).
        """
        sample = inputs[:1].nbytes + self.weigh(inputs)
        return max(1, self.memory // (8 * self.layout.p + samples * sample))

    def weigh(self, inputs: Tensor) -> int:
        """Bytes that a training step keeps for every sample, by a step of two clients, whose weights are no part of it.

        Args:
            inputs: at least one sample, (s, ...); one is shown twice.

        Raises:
            ModelError: when the network cannot be computed for several clients at once.
        """
        shape = tuple(inputs.shape[1:])
        if shape not in self._bytes:
            names, state = self.names, self._module.state_dict()
            tensors = [torch.stack([state[name]] * 2) for name in names]
            for tensor, slot in zip(tensors, self.layout.tensors, strict=False):
                tensor.requires_grad_(slot.kind != "buffer")
            weights, kept = {_place(tensor) for tensor in tensors}, dict[int, int]()

            def note(saved: Tensor) -> Tensor:
                kept[_place(saved)] = saved.untyped_storage().nbytes()
                return saved

            try:
                with torch.autograd.graph.saved_tensors_hooks(note, lambda saved: saved):
                    self.logits(names, tensors, inputs[:1].expand(4, *shape).unflatten(0, (2, 2)), train=True)
            except RuntimeError as error:
                reason = str(error).splitlines()[0]
                raise ModelError(
                    f"engine.name = 'batched': {type(self._module).__name__} cannot be computed for several clients at "
                    f"once ({reason}); use loop or processes"
                ) from error
            self._bytes[shape] = sum(size for place, size in kept.items() if place not in weights) // 4
        return self._bytes[shape]


def _described(module: nn.Module) -> list[object]:
    """What a network does, as far as it can be read off: the kinds of its layers, and all that is no tensor in them."""
    known = (dict, set, Tensor, nn.Module)
    described = list[object]()
    for path, layer in module.named_modules(remove_duplicate=False):
        settings = {key: value for key, value in vars(layer).items() if not isinstance(value, known)}
        described.append((path, type(layer), settings | {"training": None}))
    return described


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
