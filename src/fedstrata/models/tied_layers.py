"""Whether the output layer of a network has its weight from an earlier layer."""

from __future__ import annotations

from fedstrata.base.lazy_torch import torch
from fedstrata.core.layout import Layout


def tied_warning(network: torch.nn.Module, layout: Layout) -> str | None:
    """Say so if the selector "head" leaves out a weight of the last linear layer, because it is tied.

    Tied parameters appear in a layout once, at their first place, such as the embedding whose weight the output layer
    of a language model reads.

    Args:
        network: The network.
        layout: Its layout.

    Returns:
        A line, or None where "head" selects the whole of the last linear layer.
    """
    tensors = network.state_dict(keep_vars=True)
    first = {id(tensors[slot.name]): slot.name for slot in layout.tensors if slot.kind == "linear"}
    weights = [(name, first[id(tensor)]) for name, tensor in tensors.items() if tensor.ndim > 1 and id(tensor) in first]
    if not weights or weights[-1][0] == weights[-1][1]:
        return None
    last, source = weights[-1]
    return (
        f"the network {type(network).__name__} has {last!r} from {source!r}, so the selector 'head' stands for "
        f"{_selected(layout)} only. Select layers by their names"
    )


def _selected(layout: Layout) -> str:
    """The tensors that "head" selects."""
    names = [slot.name for slot, sent in zip(layout.tensors, layout.select("head"), strict=True) if sent]
    return ", ".join(map(repr, names))
