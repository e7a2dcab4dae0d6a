"""FedTSDP as some of its figures have it. Experiments name these classes by their import path.

Half layers are those of Fig. 11, where 3.5 of 4 layers are shared: of the last one the weight without its bias. One
stage alone is that of Fig. 9.
"""

from __future__ import annotations

from math import floor

import torch
from pydantic.dataclasses import dataclass

from fedstrata import core
from fedstrata.algorithms.fedtsdp import Decoupling, FedTSDP, layer_tensors
from fedstrata.algorithms.keys import STRICT
from fedstrata.clustering import dbscan, jensen_shannon


@dataclass(frozen=True, config=STRICT)
class HalfLayers(FedTSDP):
    """FedTSDP with half layers: a layer's weight may be shared without its bias (Fig. 11)."""

    def personal(self, layout: core.Layout, shared_layers: float) -> core.Mask:
        """The tensors above so many shared layers, (l,), rounded down to halves.

        A layer without a bias, or of several modules, has no half and is personal.
        """
        whole, half = divmod(floor(2 * shared_layers + 1e-9), 2)
        above = layer_tensors(layout)[whole:]
        personal = [tensor for layer in above for tensor in layer]
        if half and above:
            modules = {layout.tensors[tensor].layer for tensor in above[0]}
            if len(modules) == 1 and len(above[0]) > 1:
                personal = personal[1:]
        return layout.whole(tuple(tensor in personal for tensor in range(len(layout.tensors))))


@dataclass(frozen=True, config=STRICT)
class FirstStage(HalfLayers):
    """FedTSDP with its first stage alone, by predictions (Fig. 9)."""

    def decouple(self, clients: torch.Tensor, predictions: torch.Tensor, models: torch.Tensor) -> Decoupling:
        """Lines 19 and 20."""
        divergences = jensen_shannon(predictions)
        groups = dbscan(divergences, self.radius1, self.min_samples)
        matrix = core.Matrix(0, "predictions", "js", clients, divergences)
        return Decoupling(groups, (matrix,), {"radius1": self.radius1}, {"groups_first": float(groups.max()) + 1})


@dataclass(frozen=True, config=STRICT)
class SecondStage(HalfLayers):
    """FedTSDP with its second stage alone, by weights (Fig. 9)."""

    def decouple(self, clients: torch.Tensor, predictions: torch.Tensor, models: torch.Tensor) -> Decoupling:
        """Lines 21 to 26, of all clients together."""
        distances, groups, inside = self.second_stage(torch.zeros_like(clients), models)
        radii = {f"radius2 around client {int(clients[row])}": radius for row, radius in inside.items()}
        matrix = core.Matrix(0, "all", "l2", clients, distances)
        return Decoupling(groups, (matrix,), radii, {"radius2": max(inside.values(), default=0.0)})
