"""A shared network whose batch normalisation belongs to each client.

Li, Jiang, Zhang, Kamp, Dou, "FedBN: federated learning on non-IID features via local batch normalization", ICLR 2021,
Algorithm 1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedstrata import core
from fedstrata.algorithms.keys import STRICT
from fedstrata.algorithms.personal_layers import personal_evaluation, personal_plan
from fedstrata.base.lazy_torch import torch


@dataclass(frozen=True, config=STRICT)
class FedBN(core.Algorithm[core.State]):
    """FedBN: FedAvg on all layers but batch normalisation, which stays on the client.

    It is meant for clients whose samples look different, such as images of several scanners. Weights, biases and
    running statistics of BatchNorm stay on the client. A network without any is averaged whole, as by FedAvg; the
    metric `personal_layers` counts them. Nothing is decided. An absent client keeps its normalisation as it was. A
    client that takes part for the first time starts it from theta^0.
    """

    source: ClassVar[str] = "Li et al., ICLR 2021"

    def plan(self, problem: core.Problem, state: core.State, cohort: torch.Tensor) -> core.Plan:
        """Everyone trains the whole network and keeps its batch normalisation."""
        return personal_plan(problem, state, cohort, batch_norms(problem.layout))

    def update(
        self, problem: core.Problem, state: core.State, report: core.Report
    ) -> tuple[core.State, core.Diagnostics]:
        """Average all other layers; nothing is decided."""
        moved, diagnostics = core.aggregate(problem, state, report, self.assign(problem, state, report))
        pairs = zip(problem.layout.tensors, batch_norms(problem.layout), strict=True)
        layers = {slot.layer for slot, personal in pairs if personal}
        counted = core.Metric("personal_layers", float(len(layers)))
        return moved, replace(diagnostics, metrics=(*diagnostics.metrics, counted))

    def evaluations(
        self, problem: core.Problem, state: core.State, clients: torch.Tensor
    ) -> dict[str, core.Evaluation]:
        """Everyone uses its own batch normalisation in the shared network."""
        return personal_evaluation(problem, state, clients, batch_norms(problem.layout))


def batch_norms(layout: core.Layout) -> core.Mask:
    """The tensors of torch's BatchNorm layers, and of layers that keep a running mean or variance, (l,).

    Layers that keep something else in a buffer, such as the mask of pruned weights, are no normalisation.
    """
    layers = {slot.layer for slot in layout.tensors if slot.kind == "buffer" and _is_running(slot.name)}
    return tuple(slot.batch_norm or slot.layer in layers for slot in layout.tensors)


def _is_running(name: str) -> bool:
    """Whether a buffer, by its name in the state dict, is a running mean or variance."""
    return name.rpartition(".")[2] in ("running_mean", "running_var")
