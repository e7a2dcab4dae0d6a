"""Networks cut after some of their layers, or in the middle of one: what is below is shared, what is above is not."""

from __future__ import annotations

import re
from math import floor

from fedstrata.core import Layout, Mask

MODULE = re.compile(r"[^.]+(\.\d+)*")
"""A module of the top level; in a numbered sequence, one of its modules."""


def layers(layout: Layout) -> list[list[int]]:
    """The conv and linear tensors of each layer, in forward order.

    A layer is a module of the network's top level that has such tensors; of a numbered sequence, each of its modules.
    So a residual block is one layer.
    """
    found: dict[str, list[int]] = {}
    for tensor, slot in enumerate(layout.tensors):
        module = MODULE.match(slot.layer)
        if module and slot.kind in ("conv", "linear"):
            found.setdefault(module[0], []).append(tensor)
    return list(found.values())


def above(layout: Layout, shared: float, halves: bool) -> Mask:
    """The tensors above so many shared layers, (l,); norms and buffers belong to the layer before them.

    Args:
        layout: of the network.
        shared: how many layers are below; rounded down.
        halves: whether to round to halves: a layer's weight without its bias. A layer without a bias, or of several
            modules, has no half and stays above.
    """
    whole, half = divmod(floor(2 * shared + 1e-9), 2)
    stack = layers(layout)[whole:]
    personal = [tensor for layer in stack for tensor in layer]
    if halves and half and stack and len({layout.tensors[tensor].layer for tensor in stack[0]}) == 1 < len(stack[0]):
        personal = personal[1:]
    return layout.whole(tuple(tensor in personal for tensor in range(len(layout.tensors))))
