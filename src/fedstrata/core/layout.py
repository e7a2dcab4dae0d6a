"""The tensors of a network, flattened into the columns of a row."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from math import prod
from typing import Literal

from fedstrata.base.errors import LayoutError
from fedstrata.base.lazy_torch import torch

Kind = Literal["conv", "linear", "norm", "buffer"]
"""What a tensor is part of: a convolution, a linear layer, a normalisation layer, or buffers (running statistics)."""

COMPARED: tuple[Kind, ...] = ("conv", "linear")
"""Tensors of these kinds are compared between clients. The others are only averaged."""

Mask = tuple[bool, ...]
"""One bool per tensor of a layout, (l,)."""


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a network.

    Attributes:
        name: Its name in the state dict, e.g. ``"conv1.weight"``.
        layer: The module that holds it, e.g. ``"conv1"``.
        kind: Tensors of kind conv and linear are compared between clients. Norm and buffer are only averaged.
        shape: Its shape; ``()`` for a scalar.
        batch_norm: Whether it belongs to a BatchNorm layer of torch's.
    """

    name: str
    layer: str
    kind: Kind
    shape: tuple[int, ...]
    batch_norm: bool = False


@dataclass(frozen=True)
class Layout:
    """Which columns of a flattened model belong to which tensor, layer and kind.

    Attributes:
        tensors: The tensors in the order in which the network defines them, (l,). Each is flattened in C order.
        frozen: The digest of the tensors that are never trained, which no row has; empty where there are none.
    """

    tensors: tuple[TensorSpec, ...]
    frozen: str = ""

    @cached_property
    def spans(self) -> tuple[slice, ...]:
        """The columns of each tensor, (l,)."""
        spans = []
        start = 0
        for slot in self.tensors:
            spans.append(slice(start, start + prod(slot.shape)))
            start = spans[-1].stop
        return tuple(spans)

    @property
    def p(self) -> int:
        """The number of columns: parameters and buffers."""
        return self.spans[-1].stop if self.tensors else 0

    @cached_property
    def layers(self) -> tuple[str, ...]:
        """The conv and linear layers in the order in which the network defines them."""
        return tuple(dict.fromkeys(slot.layer for slot in self.tensors if slot.kind in COMPARED))

    @property
    def linear_layers(self) -> tuple[str, ...]:
        """Those of them that are linear."""
        return tuple(dict.fromkeys(slot.layer for slot in self.tensors if slot.kind == "linear"))

    @property
    def everything(self) -> Mask:
        """The mask of all tensors, norm and buffer included."""
        return (True,) * len(self.tensors)

    @property
    def nothing(self) -> Mask:
        """The mask of no tensor."""
        return (False,) * len(self.tensors)

    @property
    def buffers(self) -> Mask:
        """The mask of running statistics."""
        return tuple(slot.kind == "buffer" for slot in self.tensors)

    def select(self, *selectors: str) -> Mask:
        """The conv and linear tensors that any of the selectors names.

        A name of a layer or tensor wins over a selector of the same name.

        Args:
            selectors: ``conv``, ``linear``, ``head`` (last linear), ``first_linear``, ``smallest_linear`` (fewest
                parameters, the deepest on a tie), ``all`` (conv and linear), a name of a layer or tensor, or a
                pattern of such names (``"features.*"``).

        Raises:
            LayoutError: When a selector matches no conv or linear tensor.
        """
        masks = [self._one(selector) for selector in selectors]
        return tuple(any(column) for column in zip(*masks, strict=True)) if masks else self.nothing

    def whole(self, mask: Mask) -> Mask:
        """A mask together with the norm and buffer tensors that follow each selected layer.

        Those before the first layer belong to it.
        """
        chosen = list(mask)
        follows = next((chosen[place] for place, slot in enumerate(self.tensors) if slot.kind in COMPARED), False)
        for place, slot in enumerate(self.tensors):
            follows = chosen[place] if slot.kind in COMPARED else follows
            chosen[place] = chosen[place] or follows
        return tuple(chosen)

    def _one(self, selector: str) -> Mask:
        names = [(slot.layer, slot.name) if slot.kind in COMPARED else () for slot in self.tensors]
        linear = self.linear_layers
        layers = {
            "conv": [slot.layer for slot in self.tensors if slot.kind == "conv"],
            "linear": linear,
            "head": linear[-1:],
            "first_linear": linear[:1],
            "smallest_linear": [min(reversed(linear), key=self._parameters, default="")],
            "all": self.layers,
        }
        if any(selector in own for own in names):
            mask = tuple(selector in own for own in names)
        elif selector in layers:
            mask = tuple(slot.kind in COMPARED and slot.layer in layers[selector] for slot in self.tensors)
        else:
            mask = tuple(any(fnmatchcase(name, selector) for name in own) for own in names)
        if not any(mask):
            error = LayoutError(
                f"{selector!r} matches no layer; this model has {', '.join(self.layers)}; "
                f"allowed are their names and patterns, {', '.join(layers)}"
            )
            error.selector = selector
            raise error
        return mask

    def _parameters(self, layer: str) -> int:
        """The number of parameters of a layer, weights and biases."""
        return sum(prod(slot.shape) for slot in self.tensors if slot.layer == layer and slot.kind != "buffer")

    @property
    def conv_and_linear(self) -> torch.Tensor:
        """The columns by which clients are compared: those of all conv and linear tensors, ascending (q,) int64."""
        return self.columns(self.select("all"))

    def column_mask(self, mask: Mask) -> torch.Tensor:
        """A mask over tensors as a mask over columns, (p,) bool."""
        return torch.zeros(self.p, dtype=torch.bool).index_fill_(0, self.columns(mask), True)

    def columns(self, mask: Mask) -> torch.Tensor:
        """The columns of the tensors of a mask, ascending (q,) int64."""
        chosen = [span for span, is_chosen in zip(self.spans, mask, strict=True) if is_chosen]
        return torch.cat([torch.empty(0, dtype=torch.int64), *(torch.arange(each.start, each.stop) for each in chosen)])
