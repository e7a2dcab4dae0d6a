"""One network with the weights of many clients."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from types import MethodType

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedstrata.base.errors import ModelError, UserCodeError, first_line, users_trace
from fedstrata.core import Layout, Mask
from fedstrata.engine.device import without_cudnn
from fedstrata.engine.outside_state import BATCH_NORMS, is_norm, normalises_over_batch
from fedstrata.models import light_copy

_BATCH_BYTES = {"cpu": 1 << 30, "cuda": 16 << 30}
"""Bytes that are worked on at a time, by the kind of device."""

_WORD = (1 << 32) - 1
"""The largest number of 32 bits."""
_STRIDE = 0x9E3779B9
"""2^32 divided by the golden ratio: its multiples are spread evenly over all numbers of 32 bits."""


def budget(device: torch.device) -> int:
    """Bytes that are worked on at a time, at most a quarter of an accelerator's memory.

    What is free at the moment does not count: how many clients are computed together may change last bits.
    """
    most = _BATCH_BYTES[device.type]
    if device.type != "cuda":
        return most
    return min(most, torch.cuda.get_device_properties(device).total_memory // 4)


class Network:
    """A network as a function of its tensors, stacked over clients.

    Args:
        module: The network. Its values do not matter.
        layout: The tensors of the module.
        device: The device that computes.
        precision: The precision of training: "float32", "tf32" for products on CUDA, or "bfloat16" for what is safe in
            it. Weights are float32.
        memory: Bytes that one chunk of clients may take, about.
        im2col: Whether convolutions become matrix products (im2col).
        class_weights: The weight of each class in the loss, (classes,); empty where all count alike.

    Attributes:
        precision: The precision of training.
        class_weights: The weight of each class in the loss, (classes,) on the device; None where all count alike.
        salts: The names of the salts of dropout.
        names: The names of the tensors of the layout, then those of the salts.
        batch_norm: Whether the network takes statistics over a batch, for which it needs two samples.
    """

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        device: torch.device,
        precision: str,
        memory: int,
        im2col: bool,
        class_weights: Sequence[float] = (),
    ) -> None:
        """Copy the module."""
        self.layout = layout
        self.device = device
        self.memory = memory
        self.batch_norm = normalises_over_batch(module)
        self._module = vmappable_copy(module, im2col).to(device).requires_grad_(False)
        self.precision = precision
        self.class_weights = torch.tensor(class_weights, device=device) if class_weights else None
        self.salts = [f"{path}.salt" for path, layer in self._module.named_modules() if isinstance(layer, Dropout)]
        self.names = [*(slot.name for slot in layout.tensors), *self.salts]
        self._step_bytes = dict[tuple[int, ...], tuple[int, int]]()

    def moving(self, trainable: Mask) -> list[int]:
        """The places of the parameters that training moves: those of a mask."""
        slots = enumerate(zip(self.layout.tensors, trainable, strict=True))
        return [place for place, (slot, trained) in slots if trained and slot.kind != "buffer"]

    def logits(self, names: Sequence[str], tensors: Sequence[Tensor], inputs: Tensor, train: bool) -> Tensor:
        """Logits (g, b, classes) float32 of g clients. Training writes new values of buffers into `tensors`.

        Args:
            names: The names of the tensors.
            tensors: The stacked tensors, (g, *shape) each.
            inputs: The samples, (g, b, ...).
            train: Whether the network is in training mode.
        """

        def compute(tensors: Sequence[Tensor], inputs: Tensor) -> Tensor:
            found: Tensor = functional_call(self._module, dict(zip(names, tensors, strict=True)), (inputs,))
            return found

        self._module.train(train)
        bfloat16 = train and self.precision == "bfloat16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=bfloat16, cache_enabled=False):
            if len(inputs) == 1:
                return compute([tensor[0] for tensor in tensors], inputs[0]).float()[None]
            stacked: Tensor = vmap(compute)(list(tensors), inputs)
            return stacked.float()

    def predict(self, rows: Tensor, inputs: Tensor) -> Tensor:
        """Logits (g, b, classes) of models (g, p) for inputs (g, b, ...), in evaluation mode."""
        slots = self.layout.tensors
        parts = rows.split([prod(slot.shape) for slot in slots], dim=1)
        tensors = [part.reshape(len(rows), *slot.shape) for part, slot in zip(parts, slots, strict=True)]
        with torch.no_grad():
            return self.logits(self.names[: len(slots)], tensors, inputs, train=False)

    def models_at_once(self, samples: int, inputs: Tensor) -> int:
        """The number of models that fit into memory with so many samples each, at least one.

        Args:
            samples: The number of samples of each model.
            inputs: At least one sample, (s, ...).
        """
        kept, copies = self.step_bytes(inputs)
        sample = inputs[:1].nbytes + kept
        return max(1, self.memory // (8 * self.layout.p + copies + samples * sample))

    def step_bytes(self, inputs: Tensor) -> tuple[int, int]:
        """Bytes that a training step keeps for every sample, and for every client besides its weights.

        On an accelerator, copies of weights in another order or precision are told from what grows with the samples. On
        the CPU they count as samples do: another number of clients at a time might have other bits.

        Args:
            inputs: At least one sample, (s, ...).

        Raises:
            ModelError: When the network cannot be computed for several clients at once.
        """
        shape = tuple(inputs.shape[1:])
        if shape not in self._step_bytes:
            kept = self._kept(inputs, 2)
            if self.device.type == "cpu":
                self._step_bytes[shape] = kept // 4, 0
            else:
                sample = (self._kept(inputs, 4) - kept) // 4
                self._step_bytes[shape] = sample, max(0, kept - 4 * sample) // 2
        return self._step_bytes[shape]

    def _kept(self, inputs: Tensor, b: int) -> int:
        """Bytes that a step of two clients with b samples each keeps, weights aside."""
        names = self.names
        state = self._module.state_dict()
        tensors = [torch.stack([state[name]] * 2) for name in names]
        for tensor, slot in zip(tensors, self.layout.tensors, strict=False):
            tensor.requires_grad_(slot.kind != "buffer")
        weights = {_place(tensor) for tensor in tensors}
        kept = dict[int, int]()

        def note(saved: Tensor) -> Tensor:
            kept[_place(saved)] = saved.untyped_storage().nbytes()
            return saved

        samples = inputs[:1].repeat(2 * b, *[1] * (inputs.ndim - 1)).unflatten(0, (2, b))
        try:
            with torch.autograd.graph.saved_tensors_hooks(note, lambda saved: saved):
                self.logits(names, tensors, samples, train=True)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise ModelError(
                f"engine.name = 'batched': {type(self._module).__name__} cannot be computed for several clients at "
                f"once ({reason}); use loop or processes"
            ) from error
        except Exception as error:
            name = type(self._module).__name__
            raise UserCodeError(f"the network {name} failed: {first_line(error)}", users_trace(error)) from error
        return sum(size for place, size in kept.items() if place not in weights)


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def vmappable_copy(module: nn.Module, im2col: bool) -> nn.Module:
    """A copy of a network whose dropout depends on a salt, and whose layers may compute in a way that suits a device.

    Batch norms get float32 inputs in any precision. With tensors of several clients in float32, torch cannot compute or
    differentiate others.

    Args:
        module: The network, which stays as it is.
        im2col: Whether convolutions become matrix products (im2col).
    """
    module = light_copy(module)
    # A layer becomes one of another class, so that all else that it has stays: attributes, hooks, a forward of its own.
    for layer in module.modules():
        if type(layer) in _CHANNELWISE:
            Dropout.convert(layer, _CHANNELWISE[type(layer)])
        elif im2col and type(layer) is nn.Conv2d and _is_plain(layer):
            layer.__class__ = Im2colConv2d
    for layer in module.modules():
        if isinstance(layer, BATCH_NORMS):
            layer.register_forward_pre_hook(lambda _, given: (given[0].float(),))
        if im2col and is_norm(layer) and "forward" not in vars(layer):
            # Under vmap, torch's choice of cuDNN asks for the memory format, which vmap does not have. Bound to the
            # layer, so that a copy of it computes with its own tensors.
            layer.forward = MethodType(_forward_without_cudnn, layer)
    return module


def _forward_without_cudnn(layer: nn.Module, *inputs: Tensor) -> Tensor:
    """What the class of a layer computes, without cuDNN."""
    with without_cudnn():
        found: Tensor = type(layer).forward(layer, *inputs)
        return found


class Dropout(nn.Module):
    """Dropout whose masks are a function of a salt, so that every client has masks of its own.

    The dropout of torch draws from a single generator for all clients that are computed together.

    Attributes:
        p: The share of the values that become zero.
        salt: The salt, which every step of training changes.
    """

    p: float
    salt: Tensor
    _channelwise: bool

    @classmethod
    def convert(cls, layer: nn.Module, channelwise: bool) -> None:
        """Turn a dropout of torch into one, in place, with a salt of 0.

        Args:
            layer: The dropout.
            channelwise: Whether whole channels become zero.
        """
        layer.__class__ = cls
        assert isinstance(layer, cls)
        layer._channelwise = channelwise
        layer.register_buffer("salt", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs: Tensor) -> Tensor:
        """Drop some values, scale the others and change the salt. In evaluation mode do nothing."""
        if not self.training or not self.p:
            return inputs
        shape = inputs.shape[:2] + (1,) * (inputs.ndim - 2) if self._channelwise else inputs.shape
        places = _hash(torch.arange(prod(shape), device=inputs.device)).view(shape)
        kept = _hash((places + self.salt) & _WORD) >= int(self.p * (_WORD + 1))
        self.salt.add_(_STRIDE)
        return inputs * kept / max(1 - self.p, torch.finfo(torch.float32).tiny)


_CHANNELWISE: dict[type[nn.Module], bool] = {
    nn.Dropout: False,
    nn.Dropout1d: True,
    nn.Dropout2d: True,
    nn.Dropout3d: True,
}
"""The layers that `Dropout` replaces, and whether they drop whole channels."""


def _hash(words: Tensor) -> Tensor:
    """Mueller's integer hash, one to one on numbers of 32 bits; no product exceeds 63 bits on any device."""
    for _ in range(2):
        words = ((words >> 16) ^ words) * 0x045D9F3B & _WORD
    return (words >> 16) ^ words


class Im2colConv2d(nn.Conv2d):
    """A convolution with dilation 1 and one group, padded with zeros, as one product over its unfolded inputs (im2col).

    For many clients that is one batched product. A convolution would have a group per client, for which cuDNN has few
    fast programs.
    """

    def forward(self, images: Tensor) -> Tensor:
        """Map (b, channels, height, width) to (b, units, height', width')."""
        units, _, high, wide = self.weight.shape
        # Channels are innermost from here on, as in memory, so that whole pixels are copied.
        pixels = images.movedim(1, 3)
        down, right = (int(side) for side in self.padding)
        if down or right:
            pixels = nn.functional.pad(pixels, (0, 0, right, right, down, down))
        patches = pixels.unfold(1, high, self.stride[0]).unfold(2, wide, self.stride[1])
        patches = patches.permute(0, 1, 2, 4, 5, 3)  # (b, height', width', high, wide, channels)
        weight = self.weight.permute(2, 3, 1, 0).reshape(-1, units)
        found = patches.flatten(3) @ weight
        return (found if self.bias is None else found + self.bias).permute(0, 3, 1, 2)


def _is_plain(conv: nn.Conv2d) -> bool:
    """Whether a convolution has no dilation, one group, and zeros around its inputs."""
    zeros = conv.padding_mode == "zeros" and not isinstance(conv.padding, str)
    return zeros and conv.groups == 1 and conv.dilation == (1, 1)
