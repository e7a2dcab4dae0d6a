"""One step of local training: the proximal term, clipping, and the rules of torch's optimisers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedstrata.core import LocalTraining

Gradients = tuple[Tensor, ...]
"""The gradient of each parameter, in the order of the parameters."""

CLIP_EPSILON = 1e-6
"""What torch's `clip_grad_norm_` adds to a norm before it divides by it."""


def stepper(
    parameters: list[Tensor], anchors: list[Tensor], training: LocalTraining, prox_weight: float
) -> Callable[[Gradients], None]:
    """The function that takes one step along gradients. The optimiser's state begins anew.

    The proximal term is a part of the gradient that is clipped, and weight decay is not.

    Args:
        parameters: The tensors that move.
        anchors: The received values of these tensors.
        training: The optimiser and its options.
        prox_weight: The weight of the proximal term, mu; 0 is none.
    """
    optimizer = _optimizer(parameters, training)

    def step(gradients: Gradients) -> None:
        # Of an embedding with sparse=True; neither clipping nor momentum computes with such gradients.
        gradients = tuple(each.to_dense() if each.is_sparse else each for each in gradients)
        with torch.no_grad():
            if prox_weight:
                away = torch._foreach_sub(parameters, anchors)
                gradients = tuple(torch._foreach_add(gradients, away, alpha=prox_weight))
            if training.clip_norm:
                norm = torch.nn.utils.get_total_norm(gradients)
                factor = (training.clip_norm / (norm + CLIP_EPSILON)).clamp(max=1.0)
                gradients = tuple(torch._foreach_mul(gradients, factor))
            if optimizer is None:
                if training.weight_decay:
                    gradients = tuple(torch._foreach_add(gradients, parameters, alpha=training.weight_decay))
                # The same bits as torch's SGD, without what its step costs beside small networks.
                torch._foreach_add_(parameters, gradients, alpha=-training.lr)
                return
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = _in_memory_order_of(parameter, gradient)
        optimizer.step()

    return step


def _optimizer(parameters: list[Tensor], training: LocalTraining) -> torch.optim.Optimizer | None:
    """Torch's optimiser; None for SGD without momentum."""
    lr, weight_decay = training.lr, training.weight_decay
    if training.optimizer != "sgd":
        kind = torch.optim.AdamW if training.optimizer == "adamw" else torch.optim.Adam
        return kind(parameters, lr=lr, weight_decay=weight_decay, fused=True)
    if training.momentum:
        return torch.optim.SGD(parameters, lr=lr, momentum=training.momentum, weight_decay=weight_decay, fused=True)
    return None


def _in_memory_order_of(parameter: Tensor, gradient: Tensor) -> Tensor:
    """A gradient whose values lie in memory as those of its parameter.

    torch's fused optimisers read both in the order of memory and do not look at strides. The gradient of a convolution
    of channels-last images is channels-last, its weight is not: values would meet weights that they do not belong to.
    """
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)
