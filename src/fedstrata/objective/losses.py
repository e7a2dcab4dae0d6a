"""The losses that the library names: outputs and targets of a batch to the mean loss, a scalar with a gradient.

Outputs are (b, classes) and targets (b,) int64 classes, or outputs are (b, length, classes) and targets (b, length),
for networks that classify every token. A target of -100 is left out. For numbers and labels both are (b, outputs)
float32.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

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
