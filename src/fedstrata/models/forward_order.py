"""Whether a network defines its layers in the order in which it computes them."""

from __future__ import annotations

from collections.abc import Sequence

from fedstrata.base.lazy_torch import torch
from fedstrata.core.layout import Layout


def order_warning(network: torch.nn.Module, layout: Layout, inputs: torch.Tensor) -> str | None:
    """Say so if the first or the last linear layer of a layout is not the one that computes first or last.

    Selectors such as "head" and "first_linear" go by the layout, which has the order of definition.

    Args:
        network: The network, which stays as it is.
        layout: Its layout.
        inputs: Samples that it takes, (b, ...).

    Returns:
        A line, or None where both orders agree, or some linear layer does not compute by being called.
    """
    linear = layout.linear_layers
    computed = _calls(network, linear, inputs)
    if len(linear) < 2 or set(computed) != set(linear):
        return None
    for place, which, selector in ((-1, "last", "head"), (0, "first", "first_linear")):
        if computed[place] != linear[place]:
            return (
                f"the network {type(network).__name__} defines {linear[place]!r} as its {which} linear layer, and "
                f"computes {computed[place]!r} {which}: selectors such as {selector!r} go by the order of definition. "
                "Define layers in the order in which they compute, or select them by their names"
            )
    return None


def _calls(network: torch.nn.Module, layers: Sequence[str], inputs: torch.Tensor) -> list[str]:
    """The layers in the order in which they are called, each as often as it is."""
    called = list[str]()
    modules = dict(network.named_modules())
    handles = [
        modules[layer].register_forward_hook(lambda module, given, found, layer=layer: called.append(layer))
        for layer in layers
        if layer in modules
    ]
    training = network.training
    try:
        with torch.no_grad():
            network.eval()(inputs)
    finally:
        network.train(training)
        for handle in handles:
            handle.remove()
    return called
