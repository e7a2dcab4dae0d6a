"""When a cluster may be bipartitioned by the model stability of its members.

Gong, Xing, Liu, Xi, Chen, "Towards hierarchical clustered federated learning with model stability on mobile
devices", IEEE TMC 2024, section IV-B.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedstrata.algorithms.shared.model_stability import Stability, moving_layers
from fedstrata.algorithms.shared.recursive_bipartition import MAY_SPLIT, max_norm, mean_norm
from fedstrata.base.lazy_torch import torch
from fedstrata.clustering.similarity import STILL
from fedstrata.core import Decision, Mask, Problem, Result


@dataclass(frozen=True)
class StabilityThresholds:
    """When a cluster may split by the stability of its members.

    Attributes:
        epsilon: The stability below which a layer is stable.
        rho: The ratio of the mean to the largest update norm from which on the members agree.
        members: Whether a layer must be stable in "each" of the members, or in their "mean".
        eps2: The largest update norm below which the members have converged.
    """

    epsilon: float
    rho: float
    members: str
    eps2: float = 0.0


def stability_of_cluster(values: torch.Tensor, members: str) -> torch.Tensor:
    """What must be below epsilon for each layer, (layers,), given the stability of members (m, layers)."""
    return values.amax(dim=0) if members == "each" else values.mean(dim=0)


def stability_trigger(
    problem: Problem, usable: Result, stability: Stability, thresholds: StabilityThresholds, tensors: Mask
) -> tuple[Decision, ...]:
    """Whether a cluster may split: as soon as one layer of its members is stable (section IV-B, timing).

    Args:
        problem: What is fixed for the run.
        usable: The usable answers of its members.
        stability: How much the updates of every client still turn.
        thresholds: When the cluster may split.
        tensors: The tensors that are compared, (l,). They stand for their layers.

    Returns:
        A decision for each stable layer, the most stable first. All are of kind `MAY_SPLIT`, or all say why the cluster
        may not split: "members_agree" or "members_converged". If no layer is stable, one decision of kind
        "no_stable_layer" about the layer that is nearest to it.
    """
    values = stability.values[usable.updates.clients]
    means = values.mean(dim=0)
    compared = stability_of_cluster(values, thresholds.members)
    places = _compared_layers_that_move(problem, usable, tensors)
    order = [place for place in means.argsort(stable=True).tolist() if place in places]
    stable = [place for place in order if compared[place] < thresholds.epsilon]  # Eq. 15, one layer for all members
    norms = _update_norms(problem, usable, thresholds)
    if not stable:
        kind = "no_stable_layer"
    elif norms["ratio"] >= thresholds.rho:
        kind = "members_agree"
    elif norms["max_norm"] < thresholds.eps2:
        kind = "members_converged"
    else:
        kind = MAY_SPLIT
    decisions = list[Decision]()
    for place in stable or [min(places, key=lambda place: float(compared[place]))]:
        seen = {
            "stability": float(means[place]),
            "max_stability": float(values[:, place].max()),
            "epsilon": thresholds.epsilon,
            "every_member": float(thresholds.members == "each"),
        }
        decisions.append(Decision(kind=kind, layer=problem.layout.layers[place], values={**seen, **norms}))
    return tuple(decisions)


def _compared_layers_that_move(problem: Problem, usable: Result, tensors: Mask) -> list[int]:
    """The places of the layers that are compared and that somebody moves; all that are compared if nobody moves any.

    A layer that is frozen, or dead, has the stability 0, but says nothing about anybody.
    """
    layout = problem.layout
    named = {tensor.layer for tensor, chosen in zip(layout.tensors, tensors, strict=True) if chosen}
    compared = [place for place, layer in enumerate(layout.layers) if layer in named]
    moving = moving_layers(problem, usable.updates)
    return [place for place in compared if place in moving] or compared


def _update_norms(problem: Problem, usable: Result, thresholds: StabilityThresholds) -> dict[str, float]:
    """The norms of the members' updates over all layers, and the thresholds that they are compared with."""
    conv_and_linear = problem.layout.conv_and_linear
    mean = mean_norm(problem, usable)
    largest = max_norm(usable.updates.take_columns(conv_and_linear).values)
    ratio = mean / largest if largest > STILL else 1.0  # Members none of whom moves agree.
    norms = {"mean_norm": mean, "max_norm": largest, "ratio": ratio, "rho": thresholds.rho}
    return {**norms, "eps2": thresholds.eps2} if thresholds.eps2 else norms
