"""Layers that stand in for others where many clients are computed at once."""

from __future__ import annotations

from copy import deepcopy
from math import prod

import torch
from torch import Tensor, nn

WORD = (1 << 32) - 1
STRIDE = 0x9E3779B9
"""2^32 divided by the golden ratio: the multiples of it are spread evenly over all words."""


def stand_ins(module: nn.Module, products: bool) -> nn.Module:
    """A copy of a network whose dropout hangs on a salt, and whose convolutions may be matrix products.

    Its batch norms are given float32 in any precision: beside tensors of their own in float32, several clients' at
    once, torch computes or differentiates no others.

    Args:
        module: its own tensors do not matter, and are not touched.
        products: whether convolutions are unfolded.
    """
    module = deepcopy(module)
    made = dict[nn.Module, nn.Module]()
    for path, layer in list(module.named_modules(remove_duplicate=False)):
        if type(layer) in CHANNELWISE:
            made.setdefault(layer, Dropout(layer.p, CHANNELWISE[type(layer)]))
        elif products and type(layer) is nn.Conv2d and _is_plain(layer):
            made.setdefault(layer, Products(layer))
        if layer in made:
            module.set_submodule(path, made[layer], strict=True)
    for layer in module.modules():
        if isinstance(layer, NORMS):
            layer.register_forward_pre_hook(lambda _, given: (given[0].float(),))
    return module


NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
"""Layers that take statistics over a batch."""


class Dropout(nn.Module):
    """Dropout whose masks are a function of a salt, which every client has of its own.

    The usual one draws from a single generator for all that are computed together.

    Args:
        p: share of the values that become zero.
        channelwise: whether whole channels do.
    """

    salt: Tensor

    def __init__(self, p: float, channelwise: bool) -> None:
        """Start with a salt that is replaced."""
        super().__init__()
        self.p = p
        self._channelwise = channelwise
        self.register_buffer("salt", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs: Tensor) -> Tensor:
        """Drop some values and scale the others, and turn the salt; in evaluation mode do nothing."""
        if not self.training or not self.p:
            return inputs
        shape = inputs.shape[:2] + (1,) * (inputs.ndim - 2) if self._channelwise else inputs.shape
        places = _scatter(torch.arange(prod(shape), device=inputs.device)).view(shape)
        kept = _scatter((places + self.salt) & WORD) >= int(self.p * (WORD + 1))
        self.salt.add_(STRIDE)
        return inputs * kept / max(1 - self.p, torch.finfo(torch.float32).tiny)


CHANNELWISE: dict[type[nn.Module], bool] = {
    nn.Dropout: False,
    nn.Dropout1d: True,
    nn.Dropout2d: True,
    nn.Dropout3d: True,
}
"""Layers that `Dropout` stands in for, and whether they drop whole channels."""


def _scatter(words: Tensor) -> Tensor:
    """Words of 32 bits in an order that looks random, one to one.

    Mueller's integer hash: no product exceeds 63 bits, so that it is the same on every device.
    """
    for _ in range(2):
        words = ((words >> 16) ^ words) * 0x045D9F3B & WORD
    return (words >> 16) ^ words


class Products(nn.Module):
    """A convolution as one matrix product over its unfolded inputs.

    For many clients that is one batched product; a convolution would have a group per client, for which cuDNN has
    few fast programs.

    Args:
        conv: with dilation 1 and one group, padded with zeros.
    """

    def __init__(self, conv: nn.Conv2d) -> None:
        """Take over weight and bias under their names."""
        super().__init__()
        self.weight = conv.weight
        self.bias = conv.bias
        down, right = (int(side) for side in conv.padding)
        self._stride = conv.stride
        self._margins = (right, right, down, down)

    def forward(self, images: Tensor) -> Tensor:
        """Map (b, channels, height, width) to (b, units, height', width')."""
        units, _, high, wide = self.weight.shape
        # Channels innermost from here on, as images lie in memory: what is copied together then lies together.
        pixels = images.movedim(1, 3)
        if any(self._margins):
            pixels = nn.functional.pad(pixels, (0, 0, *self._margins))
        patches = pixels.unfold(1, high, self._stride[0]).unfold(2, wide, self._stride[1])
        patches = patches.permute(0, 1, 2, 4, 5, 3)  # (b, height', width', high, wide, channels)
        weight = self.weight.permute(2, 3, 1, 0).reshape(-1, units)
        found = patches.flatten(3) @ weight
        return (found if self.bias is None else found + self.bias).permute(0, 3, 1, 2)


def _is_plain(conv: nn.Conv2d) -> bool:
    """Whether a convolution has nothing beyond weight, bias, stride and zero padding."""
    own = isinstance(conv.weight, nn.Parameter) and (conv.bias is None or isinstance(conv.bias, nn.Parameter))
    zeros = conv.padding_mode == "zeros" and not isinstance(conv.padding, str)
    return own and zeros and conv.groups == 1 and conv.dilation == (1, 1)
