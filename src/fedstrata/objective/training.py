"""The losses and the augmentations that the library names, which training calls.

A *loss* takes the outputs and targets of a batch to the mean loss, a scalar with a gradient. Outputs are (b, classes)
and targets (b,) int64 classes, or outputs are (b, length, classes) and targets (b, length), for networks that classify
every token. A target of -100 is left out. For numbers and labels both are (b, outputs) float32.

A *transform* takes the normalised inputs of a batch (b, ...) to those that are trained on, (b, ...). It draws from
torch's global generator, which the engine seeds by the run, the round and the client. Every sample of a batch gets a
draw of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.functional import pad

IGNORED = -100
"""The class of tokens that are left out, as torch has it: padding."""


def counted_share(targets: Tensor) -> Tensor:
    """The share of each sample's targets that are not left out, (b,); it is 1 where no token is padding."""
    if targets.is_floating_point():
        return torch.ones(len(targets), device=targets.device)
    counted = (targets != IGNORED).float()
    return counted if targets.ndim == 1 else counted.flatten(1).mean(1)


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The cross-entropy in nats, for one class per sample or token."""
    return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten(), ignore_index=IGNORED)


def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean squared error, for numbers."""
    return functional.mse_loss(outputs, targets)


def mae(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean absolute error, for numbers with outliers."""
    return functional.l1_loss(outputs, targets)


def huber(outputs: Tensor, targets: Tensor) -> Tensor:
    """The Huber loss with delta 1: squared for small errors, absolute for large ones."""
    return functional.huber_loss(outputs, targets)


def bce(outputs: Tensor, targets: Tensor) -> Tensor:
    """The binary cross-entropy in nats, for labels that are 0 or 1; outputs are logits."""
    return functional.binary_cross_entropy_with_logits(outputs, targets)


_MARGIN = 4
"""The pixels by which `crop` moves an image at most, as is usual for CIFAR (He et al., 2016, Section 4.2)."""
_NOISE = 0.05
"""The standard deviation of `noise`, in units of the standard deviation of a channel."""


def none(inputs: Tensor) -> Tensor:
    """The inputs as they are."""
    return inputs


def flip(images: Tensor) -> Tensor:
    """Mirror half of the images (b, channels, height, width), left to right."""
    _require_images(images, "flip")
    mirrored = torch.rand(len(images)) < 0.5
    return torch.where(mirrored[:, None, None, None].to(images.device), images.flip(3), images)


def crop(images: Tensor) -> Tensor:
    """Move each image (b, channels, height, width) by up to 4 pixels both ways; zeros, the mean, move in."""
    _require_images(images, "crop")
    height, width = images.shape[2:]
    padded = pad(images, (_MARGIN,) * 4)
    down, right = torch.randint(0, 2 * _MARGIN + 1, (2, len(images))).tolist()
    moved = [
        image[:, top : top + height, left : left + width] for image, top, left in zip(padded, down, right, strict=True)
    ]
    return torch.stack(moved)


def crop_flip(images: Tensor) -> Tensor:
    """Move each image by up to 4 pixels, then mirror half of them."""
    return flip(crop(images))


def noise(inputs: Tensor) -> Tensor:
    """Add normal noise of 0.05 standard deviations of a channel, for signals and tables."""
    if not inputs.is_floating_point():
        raise ValueError("'noise' needs numbers, found tokens")
    return inputs + _NOISE * torch.randn(inputs.shape).to(inputs.device)


def _require_images(inputs: Tensor, name: str) -> None:
    if inputs.ndim != 4:
        raise ValueError(f"{name!r} needs images (b, channels, height, width), found {tuple(inputs.shape)}")
