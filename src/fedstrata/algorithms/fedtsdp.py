"""Cluster anew whenever predictions tend to cluster: by predictions, then by weights; and share ever fewer layers.

Zhu, Fan, Xie, "Federated two stage decoupling with adaptive personalization layers", Complex & Intelligent Systems
2024, Algorithm 1. The server needs unlabelled samples. A layer is personal or shared as a whole. The paper's Fig. 11
has 3.5 of 4 layers, where half a layer is its weight without its bias, which would leave a client hardly anything of
its own.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import replace
from math import ceil, floor
from typing import Annotated, ClassVar, Literal

from annotated_types import Interval
from pydantic.dataclasses import dataclass

from fedstrata import core
from fedstrata.algorithms.keys import STRICT, Auto, NonNegative, PositiveInteger
from fedstrata.base.errors import ExperimentError
from fedstrata.base.lazy_torch import torch
from fedstrata.base.limits import Share
from fedstrata.clustering import dbscan, euclidean, hopkins, jensen_shannon
from fedstrata.clustering.arrays import renumbered

_MIN_HOPKINS_CLIENTS = 3
"""Of fewer clients the tendency to cluster is not measured."""

_AUTO_RADIUS_FACTOR = 2.0
"""The automatic radius is this many times the median distance to the nearest other client."""

_MIN_SHARED_LAYERS = 1
"""So many layers stay shared; the paper gives no end."""

_TOP_LEVEL_MODULE = re.compile(r"[^.]+(\.\d+)*")
"""The top-level module that a layer is in; of a numbered sequence, one module: `layer1.0` of `layer1.0.conv1`."""

PositiveShare = Annotated[float, Interval(gt=0, le=1)]
Gain = Literal["inverse", "literal"]


@dataclasses.dataclass(frozen=True)
class FedTSDPState(core.State):
    """What the server carries. Clients have their own personal tensors on their devices; models hold the mean of them.

    Attributes:
        sampling_weights: The sampling weight W of each public sample, (samples,) float64.
        shared_layers: The number of shared layers, not rounded: L^s_j of every cluster j, as all shrink at once.
        triggers: How often the clients were clustered.
    """

    sampling_weights: torch.Tensor
    shared_layers: float
    triggers: int


@dataclasses.dataclass(frozen=True)
class Decoupling:
    """The groups that the two stages found.

    Attributes:
        groups: The group of each client, (m,) int64 in 0..g-1, none empty.
        matrices: What each stage compared. The second stage compares clients of one group of the first only; its other
            distances are nan.
        radii: The radius of the first stage, and that of the second in every group of two or more clients, by name.
        metrics: How many groups the first stage found, and the largest radius of the second.
    """

    groups: torch.Tensor
    matrices: tuple[core.Matrix, ...]
    radii: Mapping[str, float]
    metrics: Mapping[str, float]


@dataclass(frozen=True, config=STRICT)
class FedTSDP(core.Algorithm[FedTSDPState]):
    """FedTSDP: two clusterings when the Hopkins statistic asks for them, and personal layers that grow in number.

    Defaults are those of section 4.1.4, but for radius2. That of weight_gain is not Eq. 7's, and those of sample and
    batch are not published.

    Only clients that answered are clustered. Not in the paper: they are three at least. The others keep their cluster
    while one goes on from it, or form one of their own if none does. If several do, they wait at its node, and with
    their next answer they join the one of lowest training loss. So do newcomers, who wait at the root and receive the
    personal layers too.

    Attributes:
        radius1: The radius of the first stage, in nats of Jensen-Shannon divergence (epsilon_1).
        radius2: The radius of the second stage, a distance of models (epsilon_2; 3.5 for the paper's CNN). "auto" is
            twice the median distance to the nearest other client of the first-stage group.
        min_samples: The number of clients within the radius, itself counted, that make a client dense (min_pts). A
            client near no dense one is alone.
        threshold: The Hopkins statistic above which clients are clustered (h_th).
        sample: The share of the clients that the statistic is taken from (m~; the paper: far fewer than m). Taken
            from all clients, with 1, it hardly depends on the draw.
        shrink: The factor on the number of shared layers at every clustering (psi^r; r is an index, no exponent).
        weight_gain: The sampling weight that a drawn sample gains at a clustering: |B| / |D|; or literally |D| / |B|
            (Eq. 7), by which one batch gains nearly all weight.
        batch: The number of public samples that are drawn in a round (|B|).
    """

    keeps_layers: ClassVar[bool] = True  # though none is personal before the first clustering
    source: ClassVar[str] = "Zhu et al., Complex & Intelligent Systems 2024"

    radius1: NonNegative = 0.15
    radius2: NonNegative | Auto = "auto"
    min_samples: PositiveInteger = 2
    threshold: Share = 0.65
    sample: PositiveShare = 0.25
    shrink: Share = 0.98
    weight_gain: Gain = "inverse"
    batch: PositiveInteger = 50

    def init(self, problem: core.Problem) -> FedTSDPState:
        """Everyone in one cluster, every layer shared, public samples equally likely (lines 2 to 4, 8 and 9).

        Raises:
            ExperimentError: When the server has no samples.
        """
        if problem.public is None:
            raise ExperimentError("data.public = 0: algorithm.name = 'fedtsdp' needs samples on the server; try 1000")
        weights = torch.ones(len(problem.public), dtype=torch.float64)
        return core.extend_state(
            core.initial_state(problem),
            FedTSDPState,
            sampling_weights=weights / weights.sum(),
            shared_layers=float(len(layer_tensors(problem.layout))),
            triggers=0,
        )

    def plan(self, problem: core.Problem, state: FedTSDPState, cohort: torch.Tensor) -> core.Plan:
        """Train the cluster's shared tensors with one's own personal ones, and upload both (lines 10 to 12, 33 to 39).

        Lines 5 to 7: the cohort is drawn outside. Line 39 uploads the whole model, Section 2.1 the shared layers only.
        """
        plan = core.fedavg_plan(problem, state, cohort)
        personal = self.personal(problem.layout, state.shared_layers)
        task = replace(
            plan.tasks[core.TRAIN],
            load_local=personal,
            upload_values=personal,
            # All that may become personal: a client that is absent by then goes on from its own last values.
            save_local=self.personal(problem.layout, float(_MIN_SHARED_LAYERS)),
        )
        return replace(plan, tasks={core.TRAIN: task})

    def update(
        self, problem: core.Problem, state: FedTSDPState, report: core.Report
    ) -> tuple[FedTSDPState, core.Diagnostics]:
        """Lines 13 to 32, for the clients that answered."""
        result = report.results[core.TRAIN]
        result = result.only(result.updates.clients.argsort())
        # Personal tensors are sent as values, the others as updates of what was received.
        personal = self.personal(problem.layout, state.shared_layers)
        starts = state.models[result.chosen].index_fill(1, problem.layout.columns(personal), 0.0)
        models = result.updates.values + starts
        labels = core.assign_pending(state, report)
        parents = torch.arange(len(state.models))

        batch, predictions = predict_batch(problem, state, models, self.batch)  # lines 13 to 15
        sample = ceil(self.sample * len(predictions) - 1e-9)  # 0.1 * 30 is 3.0000000000000004
        generator = problem.generator("hopkins", state.round + 1)
        statistic = hopkins(predictions, generator, max(1, sample))  # line 16, Eq. 6
        values = {"hopkins": statistic, "threshold": self.threshold, "shared_layers": state.shared_layers}
        decision = core.Decision(kind="hopkins_not_above_threshold", values=values)
        found: Decoupling | None = None
        if len(batch) and statistic > self.threshold:  # line 17. Without a batch H is 0.5, which may be above.
            # Eq. 9 takes all weights; norms and buffers are left out.
            compared = models[:, problem.layout.conv_and_linear]
            found = self.decouple(result.updates.clients, predictions, compared)  # lines 18 to 26
            labels, parents = continued_clusters(labels, result, found.groups)
            layer = ", ".join(matrix.layer for matrix in found.matrices)
            values |= {**found.radii, **found.metrics, "groups": float(found.groups.max()) + 1}
            decision = core.Decision("hopkins_above_threshold", layer, values)
            # Lines 31 (H-hat, undefined, is read as H) and 32, Eq. 11. This round is still averaged by `personal`.
            fewer = max(float(_MIN_SHARED_LAYERS), self.shrink * state.shared_layers)
            state = replace(
                state,
                sampling_weights=amended_weights(state.sampling_weights, batch, self.weight_gain),  # line 27
                shared_layers=min(state.shared_layers, fewer),  # a network may have no layer to share
                triggers=state.triggers + 1,
            )

        rebased = rebased_result(result, starts, state.models, parents[labels[result.updates.clients]])
        moved, diagnostics = core.aggregate(  # lines 28 to 30
            problem,
            state,
            replace(report, results={core.TRAIN: rebased}),
            labels,
            parents,
            dict.fromkeys(range(len(state.models)), decision),
            sent_as_values=personal,
        )
        metrics = {
            "hopkins": statistic,
            "shared_layers": moved.shared_layers,
            "triggers": float(moved.triggers),
            **(found.metrics if found else {}),
        }
        of_round = tuple(core.Metric(name, value) for name, value in metrics.items())
        matrices = found.matrices if found else ()
        return moved, replace(diagnostics, metrics=(*diagnostics.metrics, *of_round), matrices=matrices)

    def evaluations(
        self, problem: core.Problem, state: FedTSDPState, clients: torch.Tensor
    ) -> dict[str, core.Evaluation]:
        """Everyone uses the shared tensors of its cluster with its own personal ones (Section 4.2)."""
        evaluation = core.cluster_evaluation(problem, state, clients)[core.CLIENT]
        return {core.CLIENT: replace(evaluation, load_local=self.personal(problem.layout, state.shared_layers))}

    def decouple(self, clients: torch.Tensor, predictions: torch.Tensor, models: torch.Tensor) -> Decoupling:
        """Group some clients by the two stages (lines 18 to 26).

        Args:
            clients: Their ids, (m,).
            predictions: The class probabilities of their models on one batch, (m, b, classes).
            models: Their models, (m, q).
        """
        divergences = jensen_shannon(predictions)  # line 19, Section 3.2.1, Eq. 5
        first = dbscan(divergences, self.radius1, self.min_samples)  # line 20, Section 3.2.1
        distances, groups, inside = self.second_stage(first, models)  # Section 3.3.1, lines 21 to 26
        radii = {f"radius2 around client {int(clients[row])}": radius for row, radius in inside.items()}
        return Decoupling(
            groups,
            (
                core.Matrix(0, "predictions", "js", clients, divergences),
                core.Matrix(0, "all", "l2", clients, distances),
            ),
            {"radius1": self.radius1, **radii},
            {"groups_first": float(first.max()) + 1, "radius2": max(inside.values(), default=0.0)},
        )

    def second_stage(
        self, first: torch.Tensor, models: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, dict[int, float]]:
        """Cluster models (m, q) in each first group: distances, groups, and by first row the radii of two or more."""
        distances = torch.full((len(models), len(models)), torch.nan, dtype=torch.float64)
        groups = torch.zeros_like(first)
        radii = dict[int, float]()
        count = 0
        for group in range(int(first.max()) + 1):  # line 21
            rows = (first == group).nonzero().flatten()
            inside = euclidean(models[rows])  # line 23, Eq. 9 and 10 without the constant: nothing is divided
            distances[rows[:, None], rows] = inside.double()
            radius = self._second_radius(inside)
            groups[rows] = count + dbscan(inside, radius, self.min_samples)  # line 24
            count = int(groups.max()) + 1
            if len(rows) > 1:
                radii[int(rows[0])] = radius
        # Lines 25 and 26: all groups, numbered by the smallest member of each.
        return distances, torch.from_numpy(renumbered(groups)), radii

    def _second_radius(self, distances: torch.Tensor) -> float:
        """The radius of the second stage among some clients, from their distances (s, s); the automatic one is ours."""
        if not isinstance(self.radius2, str):
            return self.radius2
        if len(distances) < 2:
            return 0.0
        to_others = distances.clone().fill_diagonal_(torch.inf)
        return _AUTO_RADIUS_FACTOR * float(to_others.amin(dim=1).quantile(0.5))

    def personal(self, layout: core.Layout, shared_layers: float) -> core.Mask:
        """The tensors above so many shared layers, (l,), rounded down. Norms and buffers follow the layer before."""
        above = layer_tensors(layout)[floor(shared_layers + 1e-9) :]
        personal = [tensor for layer in above for tensor in layer]
        return layout.whole(tuple(tensor in personal for tensor in range(len(layout.tensors))))


# Hopkins amended sampling (Section 3.2.2)


def predict_batch(
    problem: core.Problem, state: FedTSDPState, models: torch.Tensor, size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The predictions of all models for one batch of public samples (lines 13 to 15).

    Args:
        problem: What is fixed for the run, with public samples and an engine that predicts.
        state: The state with the sampling weights of the samples.
        models: The models of the clients that answered, (m, p).
        size: The size of the batch. If there are fewer samples, all are taken.

    Returns:
        The positions (b,) of the samples, and class probabilities (m, b, classes). Both are empty for fewer than three
        models, or without public samples or `predict`.
    """
    if len(models) < _MIN_HOPKINS_CLIENTS or problem.public is None or problem.predict is None:
        return torch.empty(0, dtype=torch.int64), torch.empty(len(models), 0)
    generator = problem.generator("public batch", state.round + 1)  # One for all, though line 13 is inside the loop.
    weights = state.sampling_weights
    batch = torch.multinomial(weights, min(size, len(weights)), generator=generator)
    predictions = problem.predict(models, problem.public[batch])
    # A model that overflows is finite and yet predicts nothing: every class alike.
    return batch, predictions.nan_to_num(nan=1 / predictions.shape[2])


def amended_weights(weights: torch.Tensor, batch: torch.Tensor, gain: Gain) -> torch.Tensor:
    """The sampling weights (samples,) after the samples of a batch (b,) were seen to tell clients apart (Eq. 7 and 8).

    Literally, 50 of 10,000 samples would own 99.99 % of all weight after a single clustering.
    """
    share = len(batch) / len(weights)
    step = share if gain == "inverse" else len(weights) / len(batch)
    gained = weights.index_add(0, batch, torch.full((len(batch),), step, dtype=weights.dtype))  # Eq. 7
    return gained / gained.sum()  # Eq. 8


# Personal layers (Section 3.3.2)


def layer_tensors(layout: core.Layout) -> list[list[int]]:
    """The conv and linear tensors of each layer, in the order of the layout.

    A layer is a top-level module (`_TOP_LEVEL_MODULE`) that has such tensors. So a residual block is one layer.
    """
    found: dict[str, list[int]] = {}
    for place, tensor in enumerate(layout.tensors):
        module = _TOP_LEVEL_MODULE.match(tensor.layer)
        if module and tensor.kind in ("conv", "linear"):
            found.setdefault(module[0], []).append(place)
    return list(found.values())


# From new groups to clusters that go on from old ones (not in the paper, but for line 30)


def continued_clusters(
    labels: torch.Tensor, result: core.Result, groups: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The cluster of each client, and the old cluster from which each cluster goes on: that of most of its members.

    Absent clients keep their cluster while it lasts. They wait at its node if several groups go on from it, for nobody
    knows to which they belong. They form a cluster of their own if no group goes on from it.

    Args:
        labels: The old cluster of each client, (n,), once the pending ones that answered are assigned.
        result: Who answered, and the cluster whose model each trained.
        groups: The group of each client that answered, (m,) in 0..g-1. None is empty.

    Returns:
        Labels (n,), -1 = pending, and parents (k',). A cluster that is no parent has nobody left.
    """
    parents = [int(result.chosen[groups == group].bincount().argmax()) for group in range(int(groups.max()) + 1)]
    answered = result.updates.clients
    absent = torch.ones_like(labels, dtype=torch.bool).index_fill(0, answered, False)
    new = torch.full_like(labels, -1).index_copy(0, answered, groups)
    for old in labels[absent & (labels >= 0)].unique().tolist():
        if old not in parents:
            parents.append(old)
        if parents.count(old) == 1:
            new[absent & (labels == old)] = parents.index(old)
    return new, torch.tensor(parents)


def rebased_result(
    result: core.Result, starts: torch.Tensor, models: torch.Tensor, origins: torch.Tensor
) -> core.Result:
    """The answers as if each had been trained from the model that its new cluster goes on from.

    So the mean of the updates is the mean of what was uploaded (line 30). It is bit for bit the mean update of those
    who did start there.

    Args:
        result: Who answered.
        starts: What each update is added to, (m, p).
        models: The models of the old clusters, (k, p).
        origins: The old cluster that the new cluster of each goes on from, (m,).
    """
    moves = result.updates.values + (starts - models[origins])
    return replace(result, updates=core.Rows(result.updates.clients, moves), chosen=origins)
