"""Networks for scoring, whose convolutions of few channels are pooled as they are computed; on a CPU that is faster.

Vectors of sixteen numbers hold sixteen channels: with six most of a vector is idle, in the convolution and in the
pooling, which then takes almost as long. But the greatest of four neighbours is the greatest of four convolutions with
stride two, whose kernels are the same one, shifted. These have four times as many channels together, and what was
beside each other in an image then lies in four blocks. Training gains nothing: gradients have to be spread again.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, max_pool2d, pad

COLOURS, FEW = 4, 8
"""Channels of images and of convolutions, up to which the one step is faster; eight fill half a vector."""

SHIFTS = ((0, 0), (0, 1), (1, 0), (1, 1))
"""Down and right."""


def pooled(module: nn.Module) -> nn.Module:
    """A network for scoring: of the same layers where they are a chain, else the module itself.

    Only of a plain chain is it known who reads what its layers compute. The chain stays as it is from now on.
    """
    if type(module) is not nn.Sequential or _heard(module):
        return module
    layers = list[nn.Module]()
    for layer in module:
        if layers and isinstance(before := layers[-1], nn.Conv2d) and _few(before) and _halves(layer):
            layers[-1] = PooledConvolution(before)
        else:
            layers.append(pooled(layer))
    return nn.Sequential(*layers)


class PooledConvolution(nn.Module):
    """A convolution, then the greatest of each 2 x 2 of its results.

    Args:
        conv: with stride 1, and plain; its tensors are read each time.
    """

    def __init__(self, conv: nn.Conv2d) -> None:
        """Keep the convolution."""
        super().__init__()
        self._conv = conv

    def forward(self, images: Tensor) -> Tensor:
        """Map finite (b, channels, height, width) to (b, units, height', width'), in the order of torch's in memory."""
        weight, bias = self._conv.weight, self._conv.bias
        last = images.ndim == 4 and images.stride(1) == 1
        order = torch.channels_last if last else torch.contiguous_format
        if not (images.is_contiguous(memory_format=order) and weight.is_contiguous()):
            return max_pool2d(self._conv(images), 2)
        kernels = torch.cat([pad(weight, (right, 1 - right, down, 1 - down)) for down, right in SHIFTS])
        biases = None if bias is None else bias.repeat(len(SHIFTS))
        neighbours = conv2d(images.contiguous(), kernels, biases, stride=2, padding=self._conv.padding)
        one, two, three, four = neighbours.chunk(len(SHIFTS), dim=-3)
        return torch.maximum(torch.maximum(one, two), torch.maximum(three, four)).contiguous(memory_format=order)


def plain(conv: nn.Conv2d) -> bool:
    """Whether its weight and bias are all there is to a convolution, but for stride and zeros around images."""
    own = isinstance(conv.weight, nn.Parameter) and (conv.bias is None or isinstance(conv.bias, nn.Parameter))
    padded = conv.padding_mode == "zeros" and not isinstance(conv.padding, str)
    return own and padded and conv.groups == 1 and conv.dilation == (1, 1)


def _few(conv: nn.Conv2d) -> bool:
    small = conv.in_channels <= COLOURS and conv.out_channels <= FEW
    return small and type(conv) is nn.Conv2d and plain(conv) and conv.stride == (1, 1) and not _heard(conv)


def _halves(layer: nn.Module) -> bool:
    """Whether a layer takes the greatest of each 2 x 2, and nothing else."""
    if type(layer) is not nn.MaxPool2d or _heard(layer):
        return False
    halves = all(size in (2, (2, 2)) for size in (layer.kernel_size, layer.stride))
    whole = layer.padding in (0, (0, 0)) and layer.dilation in (1, (1, 1))
    return halves and whole and not (layer.ceil_mode or layer.return_indices)


def _heard(module: nn.Module) -> bool:
    """Whether somebody is to be called when a module is, or in its place."""
    instead = vars(module).keys() & {"forward", "_conv_forward"}
    return bool(instead or module._forward_hooks or module._forward_pre_hooks)
