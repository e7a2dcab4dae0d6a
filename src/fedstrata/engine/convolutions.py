"""A convolution with few channels and the max pooling after it as one step, which is faster on a CPU.

Vectors of sixteen numbers hold sixteen channels: with six most of a vector is idle, in the convolution and in the
pooling, which then takes almost as long. But the greatest of four neighbours is the greatest of four convolutions with
stride two, whose kernels are the same one, shifted. These have four times as many channels together, and what was
beside each other in an image then lies in four blocks.
"""

from __future__ import annotations

from copy import deepcopy
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import conv2d, max_pool2d, pad

FEW = 8
"""Channels up to which the one step is faster: half of those in a vector."""

SHIFTS = ((0, 0), (0, 1), (1, 0), (1, 1))
"""Down and right, in the order in which max pooling prefers equal neighbours."""

BELOW_ZERO = -(2.0**-149)
"""The float32 next to 0."""


def pooled(module: nn.Module) -> nn.Module:
    """A network that computes the same in fewer steps: itself, or a copy whose tensors have the same names."""
    if not any(_pairs(chain) for chain in module.modules()):
        return module
    module = deepcopy(module)
    for chain in list(module.modules()):
        for name, conv, pool in _pairs(chain):
            chain.add_module(name, PooledConvolution(conv))
            chain.add_module(pool, nn.Identity())
    return module


def plain(conv: nn.Conv2d) -> bool:
    """Whether its weight and bias are all there is to a convolution, but for stride and zeros around images."""
    padded = conv.padding_mode == "zeros" and not isinstance(conv.padding, str)
    # Neither `weight_norm` nor what parametrises a layer in other ways leaves it a weight of its own.
    own = isinstance(conv.weight, nn.Parameter) and not hasattr(conv, "parametrizations")
    return padded and own and conv.groups == 1 and conv.dilation == (1, 1)


class PooledConvolution(nn.Module):
    """A convolution, then the greatest of each 2 x 2 of its results.

    Args:
        conv: with stride 1, and plain.
    """

    def __init__(self, conv: nn.Conv2d) -> None:
        """Take over weight and bias under their names."""
        super().__init__()
        self.weight, self.bias, self._padding = conv.weight, conv.bias, conv.padding

    def forward(self, images: Tensor) -> Tensor:
        """Map (b, channels, height, width) to (b, units, height', width'), in memory in the order of the images."""
        if images.dtype != torch.float32 or torch.is_autocast_enabled("cpu"):
            return max_pool2d(conv2d(images, self.weight, self.bias, padding=self._padding), 2)
        found: Tensor = _Pooled.apply(  # type: ignore[no-untyped-call]  # torch leaves it without annotations
            images.contiguous(), self.weight, self.bias, self._padding
        )
        order = torch.channels_last if images.stride(1) == 1 else torch.contiguous_format
        return found.contiguous(memory_format=order)


class _Pooled(torch.autograd.Function):
    """The step and its derivative, for tensors whose channels come first in memory."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]) -> Tensor:
        kernels = torch.cat([pad(weight, (right, 1 - right, down, 1 - down)) for down, right in SHIFTS])
        biases = None if bias is None else bias.repeat(len(SHIFTS))
        neighbours = conv2d(images, kernels, biases, stride=2, padding=padding)
        left, right, below_left, below_right = neighbours.chunk(len(SHIFTS), dim=1)
        upper, lower = torch.maximum(left, right), torch.maximum(below_left, below_right)
        # In place, for it is memory that takes the time: the derivative needs no more than who exceeds whom.
        left.sub_(right)
        below_left.sub_(below_right)
        torch.sub(upper, lower, out=right)
        ctx.save_for_backward(images, weight, neighbours)
        ctx.padding, ctx.biased = padding, bias is not None
        return torch.maximum(upper, lower, out=upper)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        images, weight, excess = ctx.saved_tensors
        high, wide = (
            image + 2 * around - kernel + 1
            for image, around, kernel in zip(images.shape[2:], ctx.padding, weight.shape[2:], strict=True)
        )
        whole = _spread(gradient.contiguous(), excess)
        if high % 2 or wide % 2:
            whole = pad(whole, (0, wide % 2, 0, high % 2))
        wanted = [*ctx.needs_input_grad[:2], ctx.biased and ctx.needs_input_grad[2]]
        found = torch.ops.aten.convolution_backward(
            whole, images, weight, weight.shape[:1], [1, 1], ctx.padding, [1, 1], False, [0, 0], 1, wanted
        )
        return (*found, None)


def _spread(gradient: Tensor, excess: Tensor) -> Tensor:
    """Gradients of the greatest of neighbours, where each of these lies: (b, units, 2 height', 2 width').

    Args:
        gradient: (b, units, height', width').
        excess: (b, 4 units, height', width'): of left over right, of the upper two over the lower, of left over right
            below; the rest does not matter.
    """
    left, upper, below_left, _ = excess.chunk(len(SHIFTS), dim=1)
    above = _first(gradient, upper)
    # Complex numbers lay two tensors beside each other many times faster than a stack does.
    beside = gradient.new_empty((*gradient.shape[:3], 2, gradient.shape[3]), dtype=torch.complex64)
    for row, (part, more) in enumerate(((above, left), (gradient - above, below_left))):
        first = _first(part, more)
        torch.complex(first, part - first, out=beside[:, :, :, row])
    return torch.view_as_real(beside).flatten(4).flatten(2, 3)


def _first(gradient: Tensor, excess: Tensor) -> Tensor:
    """What of a gradient belongs to the first of two, which is not less than the other; elsewhere 0."""
    found: Tensor = torch.ops.aten.threshold_backward(gradient, excess, BELOW_ZERO)
    return found


def _pairs(chain: nn.Module) -> list[tuple[str, nn.Conv2d, str]]:
    """Convolutions that one step can replace, with their names and those of the poolings that follow."""
    if type(chain) is not nn.Sequential:
        return []
    return [
        (name, conv, after)
        for (name, conv), (after, pool) in pairwise(chain.named_children())
        if type(conv) is nn.Conv2d and plain(conv) and conv.stride == (1, 1) and conv.out_channels <= FEW
        if type(pool) is nn.MaxPool2d and repr(pool) == repr(nn.MaxPool2d(2)) and not pool.return_indices
    ]
