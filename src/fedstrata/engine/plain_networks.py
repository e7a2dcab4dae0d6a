"""Training of plain networks without autograd, which takes longer than the arithmetic of a small network.

A plain network is a sequence of linear layers and ReLUs in float32 on the CPU, which may flatten its inputs first, with
the cross-entropy of classes. All of its tensors are trained. Its gradients are computed by the operations that autograd
would run, on tensors of the same memory layout. So they have the same bits. A step of SGD writes the product that is a
gradient straight into the weights, in one pass over them. All other networks are left to autograd.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, zip_longest

import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules

from fedstrata.engine.optimizer import Gradients
from fedstrata.objective.training import IGNORED

_MEAN = 1
"""The mean over samples, as torch's own functions call it."""

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""The attributes of a module that hold functions to be called beside it."""


@dataclass(frozen=True, eq=False)
class _Linear:
    """A linear layer, with the ReLU that may follow it.

    Attributes:
        weight: The weights, (outputs, inputs).
        bias: The bias, (outputs,), or None.
        rectified: Whether a ReLU follows.
    """

    weight: Tensor
    bias: Tensor | None
    rectified: bool

    def outputs(self, inputs: Tensor) -> Tensor:
        """The outputs (b, outputs) for inputs (b, inputs)."""
        weight = self.weight.t()
        found = torch.mm(inputs, weight) if self.bias is None else torch.addmm(self.bias, inputs, weight)
        return found.relu_() if self.rectified else found

    def descend(self, gradient: Tensor, inputs: Tensor, lr: float, kept: float) -> None:
        """Take a step of SGD.

        Args:
            gradient: The gradient for the outputs before the ReLU, (b, outputs).
            inputs: The inputs, (b, inputs).
            lr: The learning rate.
            kept: The share of each weight that its decay leaves.
        """
        by_output = gradient.t()
        self.weight.addmm_(by_output, inputs, beta=kept, alpha=-lr)
        if self.bias is not None:
            self.bias.addmv_(by_output, _ones(len(inputs)), beta=kept, alpha=-lr)


class PlainNetwork:
    """A plain network, all of whose tensors move.

    Args:
        layers: Its linear layers.
        flattens: Whether it flattens its inputs.
    """

    def __init__(self, layers: Sequence[_Linear], flattens: bool) -> None:
        """Keep the layers."""
        self._layers = layers
        self._flattens = flattens

    def reads(self, inputs: Tensor, targets: Tensor) -> bool:
        """Whether `gradients` takes such inputs and targets."""
        weight = self._layers[0].weight
        return (
            inputs.dtype == weight.dtype
            and inputs.device == weight.device
            and (inputs.ndim == 2 or (self._flattens and inputs.ndim > 2))
            and inputs.shape[1:].numel() == weight.shape[1]
            and targets.dtype == torch.int64
            and targets.shape == inputs.shape[:1]
        )

    @torch.inference_mode()
    def gradients(self, inputs: Tensor, targets: Tensor) -> Gradients:
        """The gradient of the mean cross-entropy for each tensor, layer by layer.

        Args:
            inputs: The inputs of a batch, (b, ...).
            targets: Their classes, (b,). None of them is left out.
        """
        found = list[Tensor]()  # from the last tensor to the first
        for layer, gradient, read in self._backward(inputs, targets):
            if layer.bias is not None:
                found.append(gradient.sum(0))
            found.append(torch.mm(gradient.t(), read))
        return tuple(reversed(found))

    @torch.inference_mode()
    def descend(self, inputs: Tensor, targets: Tensor, lr: float, weight_decay: float) -> None:
        """Take a step of SGD along the gradient of the mean cross-entropy.

        Args:
            inputs: The inputs of a batch, (b, ...).
            targets: Their classes, (b,). None of them is left out.
            lr: The learning rate.
            weight_decay: The weight of each tensor in its own gradient.
        """
        kept = 1 - lr * weight_decay
        for layer, gradient, read in self._backward(inputs, targets):
            layer.descend(gradient, read, lr, kept)

    def _backward(self, inputs: Tensor, targets: Tensor) -> Iterator[tuple[_Linear, Tensor, Tensor]]:
        """From the last layer to the first, each with the gradient for its outputs before the ReLU and its inputs.

        A layer may change as soon as it is there.
        """
        # The inputs of each layer, then the outputs of the last one.
        values = [inputs.flatten(1) if self._flattens else inputs]
        for layer in self._layers:
            values.append(layer.outputs(values[-1]))
        gradient = self._gradient_of_outputs(values[-1], targets)
        for number, layer in reversed(list(enumerate(self._layers))):
            if layer.rectified:
                gradient = torch.ops.aten.threshold_backward(gradient, values[number + 1], 0)
            below = torch.mm(gradient, layer.weight) if number else gradient
            yield layer, gradient, values[number]
            gradient = below

    def _gradient_of_outputs(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The gradient of the mean cross-entropy for the outputs, (b, classes)."""
        aten = torch.ops.aten
        logarithms = torch.log_softmax(outputs, 1)
        # The loss itself is not needed: its own gradient is 1, and it is a mean over so many samples.
        gradient = aten.nll_loss_backward(_scalar(1), logarithms, targets, None, _MEAN, IGNORED, _scalar(len(targets)))
        found: Tensor = aten._log_softmax_backward_data(gradient, logarithms, 1, outputs.dtype)
        return found


@cache
def _scalar(number: int) -> Tensor:
    """A number as a float32 tensor without axes."""
    return torch.tensor(float(number))


@cache
def _ones(count: int) -> Tensor:
    """So many ones, (count,)."""
    return torch.ones(count)


def plain_network(module: nn.Module, moving: Sequence[Tensor]) -> PlainNetwork | None:
    """A network whose gradients can be computed without autograd; None for every other network.

    It has the same tensors in memory. Hooks that the network gets later are not called.

    Args:
        module: Any network.
        moving: Those of its parameters that move.
    """
    # Such modes and hooks change what is computed, or are told of it.
    if torch.is_autocast_enabled("cpu") or torch.is_anomaly_enabled() or modules._has_any_global_hook():
        return None
    if any("forward" in vars(each) or any(getattr(each, hooks) for hooks in _HOOKS) for each in module.modules()):
        return None
    parts = list(_parts(module))
    flattens = bool(parts) and _is_flattening(parts[0])
    layers = _linear_layers(parts[flattens:])
    tensors = [tensor for layer in layers for tensor in (layer.weight, layer.bias) if tensor is not None]
    if not layers or list(map(id, tensors)) != list(map(id, moving)) or not all(map(_is_plain, tensors)):
        return None
    return PlainNetwork(layers, flattens)


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    """The modules that a sequence applies in turn, with those of sequences inside it."""
    if type(module) is not nn.Sequential:
        yield module
        return
    for part in module:
        yield from _parts(part)


def _is_flattening(part: nn.Module) -> bool:
    """Whether a module makes a row of each sample."""
    return type(part) is nn.Flatten and (part.start_dim, part.end_dim) == (1, -1)


def _linear_layers(parts: Sequence[nn.Module]) -> list[_Linear]:
    """The layers of a sequence of linear layers and ReLUs; empty where anything else is in it."""
    layers = list[_Linear]()
    for part, following in zip_longest(parts, parts[1:]):
        if type(part) is nn.Linear:
            layers.append(_Linear(part.weight, part.bias, type(following) is nn.ReLU))
        elif type(part) is not nn.ReLU or not layers:
            return []
    # Autograd computes a hidden layer of one unit in another way for a batch of one sample.
    fit = all(above.weight.shape[1] == below.weight.shape[0] > 1 for below, above in pairwise(layers))
    return layers if fit else []


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is an ordinary parameter in float32 on the CPU, whose gradient nobody else looks at."""
    return (
        type(tensor) is nn.Parameter
        and tensor.dtype == torch.float32
        and tensor.device.type == "cpu"
        and tensor.is_contiguous()
        and not tensor._backward_hooks
    )
