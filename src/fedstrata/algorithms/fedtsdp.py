"""Cluster anew whenever predictions tend to cluster: by predictions, then by weights; and share ever fewer layers.

Zhu, Fan, Xie, "Federated two stage decoupling with adaptive personalization layers", Complex & Intelligent Systems
2024, Algorithm 1. The server needs unlabelled samples. A tensor is personal or shared: fractions of rows are not
offered.
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

from fedstrata.algorithms.keys import STRICT, Auto, Norm, PositiveInteger
from fedstrata.base.errors import ExperimentError
from fedstrata.base.lazy_torch import torch
from fedstrata.base.limits import Share
from fedstrata.clustering import dbscan, euclidean, hopkins, jensen_shannon
from fedstrata.clustering.arrays import renumbered
from fedstrata.core import (
    CLIENT,
    TRAIN,
    Decision,
    Diagnostics,
    Evaluation,
    Layout,
    Mask,
    Matrix,
    Metric,
    Plan,
    Problem,
    Report,
    Result,
    Rows,
    State,
    aggregate,
    assign_pending,
    cluster_evaluation,
    extend_state,
    fedavg_plan,
    initial_state,
)

_MIN_HOPKINS_CLIENTS = 3
"""Of fewer clients the tendency to cluster is not measured."""

_AUTO_RADIUS_FACTOR = 2.0
"""The automatic radius is this many times the median distance to the nearest other client."""

_TOP_LEVEL_MODULE = re.compile(r"[^.]+(\.\d+)*")
"""The module of a network's top level that a layer is in; of a numbered sequence, one of its modules."""

PositiveShare = Annotated[float, Interval(gt=0, le=1)]
Gain = Literal["inverse", "literal", "unnormalised"]


@dataclasses.dataclass(frozen=True)
class FedTSDPState(State):
    """Adds what the server carries from round to round. Personal tensors are on the clients' devices, not here.

    Attributes:
        sampling_weights: The sampling weight W of each public sample, (samples,) float64.
        shared_layers: The number of shared layers L, not rounded.
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
    matrices: tuple[Matrix, ...]
    radii: Mapping[str, float]
    metrics: Mapping[str, float]


@dataclass(frozen=True, config=STRICT)
class FedTSDP:
    """FedTSDP: two clusterings when the Hopkins statistic asks for them, and personal layers that grow in number.

    Only clients that answered are clustered, three at least. The others keep their cluster while one goes on from it.
    If several do, they wait at its node, and with their next answer they join the one of lowest training loss. So do
    newcomers, who wait at the root. Newcomers start personal layers from the received model, others from their own.

    Attributes:
        radius1: The radius of the first stage, in nats of Jensen-Shannon divergence (epsilon_1).
        radius2: The radius of the second stage, a distance of models (epsilon_2; 3.5 for the paper's CNN). "auto" is
            twice the median distance to the nearest other client of the first-stage group.
        min_samples: The number of clients within the radius, itself counted, that make a client dense (min_pts).
        threshold: The Hopkins statistic above which clients are clustered (h_th).
        sample: The share of the clients that the statistic is taken from (m~). Taken from all clients, it hardly
            depends on the draw.
        require_split: Whether a clustering that leaves everyone in one cluster counts as none: no layer becomes
            personal and no sampling weight changes. With ``sample = 1.0`` the statistic then rarely misleads where
            clients are alike.
        shrink: The factor on the number of shared layers at every clustering (psi).
        shrink_mode: The factor as it is, or to the power of the round.
        granularity: Whether half a layer, its weight without its bias, may be shared, or only whole layers.
        min_shared: The smallest number of layers that stay shared.
        stages: Both stages, or one alone (Fig. 9).
        compared: Whether the second stage compares full models, or what is shared of them.
        weight_gain: The sampling weight that a drawn sample gains at a clustering: |B| / |D|; literally |D| / |B|
            (Eq. 7); or the latter on weights that start at 1 and are never normalised.
        batch: The number of public samples that are drawn in a round (|B|).
        noise: Whether a client near no other is alone, or joins the nearest cluster.
    """

    keeps_layers: ClassVar[bool] = True  # as soon as it makes some personal
    source: ClassVar[str] = "Zhu et al., Complex & Intelligent Systems 2024"

    radius1: Norm = 0.15
    radius2: Norm | Auto = "auto"
    min_samples: PositiveInteger = 2
    threshold: Share = 0.65
    sample: PositiveShare = 0.25
    require_split: bool = False
    shrink: Share = 0.98
    shrink_mode: Literal["constant", "power"] = "constant"
    granularity: Literal["layer", "tensor"] = "layer"
    min_shared: PositiveInteger = 1
    stages: Literal["both", "first", "second"] = "both"
    compared: Literal["full", "shared"] = "full"
    weight_gain: Gain = "inverse"
    batch: PositiveInteger = 50
    noise: Literal["singleton", "nearest"] = "singleton"

    def init(self, problem: Problem) -> FedTSDPState:
        """Everyone in one cluster, every layer shared, every public sample as likely as another (lines 2 to 4).

        Raises:
            ExperimentError: When the server has no samples.
        """
        if problem.public is None:
            raise ExperimentError("data.public = 0: algorithm.name = 'fedtsdp' needs samples on the server; try 1000")
        weights = torch.ones(len(problem.public), dtype=torch.float64)
        if self.weight_gain != "unnormalised":
            weights = weights / weights.sum()
        return extend_state(
            initial_state(problem),
            FedTSDPState,
            sampling_weights=weights,
            shared_layers=float(len(layer_tensors(problem.layout))),
            triggers=0,
        )

    def plan(self, problem: Problem, state: FedTSDPState, cohort: torch.Tensor) -> Plan:
        """Train the cluster's shared tensors with one's own personal ones, and upload both (lines 10 to 12, 33 to 39).

        The tensors that would be personal after this round are stored too: they keep each client's own last values.
        """
        plan = fedavg_plan(problem, state, cohort)
        personal = self._personal(problem, state.shared_layers)
        task = replace(
            plan.tasks[TRAIN],
            load_local=personal,
            upload_values=personal,
            # All that may become personal: a client that is absent by then goes on from its own last values.
            save_local=self._personal(problem, float(self.min_shared)),
        )
        return replace(plan, tasks={TRAIN: task})

    def update(self, problem: Problem, state: FedTSDPState, report: Report) -> tuple[FedTSDPState, Diagnostics]:
        """Lines 13 to 32, for the clients that answered."""
        result = report.results[TRAIN]
        result = result.only(result.updates.clients.argsort())
        # Personal tensors are sent as values, the others as updates of what was received.
        personal = self._personal(problem, state.shared_layers)
        starts = state.models[result.chosen].index_fill(1, problem.layout.columns(personal), 0.0)
        models = result.updates.values + starts
        batch, predictions = predict_batch(problem, state, models, self.batch)  # lines 13 to 15
        statistic = hopkins_of_predictions(problem, state, predictions, self.sample)  # line 16

        labels = assign_pending(state, report)
        parents = torch.arange(len(state.models))
        found: Decoupling | None = None
        shared_layers = state.shared_layers
        if len(batch) and statistic > self.threshold:  # line 17
            compared = models[:, problem.layout.columns(self._compared(problem, state))]
            found = self.decouple(result.updates.clients, predictions, compared)
            labels, parents = continued_clusters(labels, result, found.groups)
            if len(parents) > 1 or len(state.models) > 1 or not self.require_split:
                state = self._triggered(state, batch)
        decision = self._decision(statistic, shared_layers, found)
        rebased = rebased_result(result, starts, state.models, parents[labels[result.updates.clients]])
        decisions = dict.fromkeys(range(len(state.models)), decision)
        moved, diagnostics = aggregate(  # lines 28 to 30
            problem,
            state,
            replace(report, results={TRAIN: rebased}),
            labels,
            parents,
            decisions,
            sent_as_values=personal,
        )
        metrics = {
            "hopkins": statistic,
            "shared_layers": moved.shared_layers,
            "triggers": float(moved.triggers),
        }
        matrices: tuple[Matrix, ...] = ()
        if found is not None:
            metrics |= found.metrics
            matrices = found.matrices
        of_round = tuple(Metric(name, value) for name, value in metrics.items())
        return moved, replace(diagnostics, metrics=(*diagnostics.metrics, *of_round), matrices=matrices)

    def assign(self, problem: Problem, state: State, report: Report) -> torch.Tensor:
        """A pending client belongs to the leaf whose model has the lowest loss on its training data."""
        return assign_pending(state, report)

    def evaluations(self, problem: Problem, state: FedTSDPState, clients: torch.Tensor) -> dict[str, Evaluation]:
        """Everyone uses the shared tensors of its cluster with its own personal ones."""
        evaluation = cluster_evaluation(problem, state, clients)[CLIENT]
        return {CLIENT: replace(evaluation, load_local=self._personal(problem, state.shared_layers))}

    def decouple(self, clients: torch.Tensor, predictions: torch.Tensor, models: torch.Tensor) -> Decoupling:
        """Group some clients by the two stages (lines 18 to 26).

        Args:
            clients: Their ids, (m,).
            predictions: The class probabilities of their models on one batch, (m, b, classes).
            models: Their models, (m, q).
        """
        groups = torch.zeros_like(clients)
        matrices = list[Matrix]()
        radii = dict[str, float]()
        metrics = dict[str, float]()
        if self.stages != "second":  # Section 3.2, lines 19 and 20
            divergences = jensen_shannon(predictions)  # Eq. 5
            groups = self.dense_groups(divergences, self.radius1)
            matrices.append(Matrix(0, "predictions", "js", clients, divergences))
            radii["radius1"] = self.radius1
            metrics["groups_first"] = float(groups.max()) + 1
        if self.stages != "first":  # Section 3.3.1, lines 21 to 26
            distances, groups, inside = self._second_stage(groups, models)
            matrices.append(Matrix(0, "all", "l2", clients, distances))
            radii |= {f"radius2 around client {int(clients[row])}": radius for row, radius in inside.items()}
            metrics["radius2"] = max(inside.values(), default=0.0)
        return Decoupling(torch.from_numpy(renumbered(groups)), tuple(matrices), radii, metrics)

    def _second_stage(
        self, first: torch.Tensor, models: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, dict[int, float]]:
        """Cluster models (m, q) by weights inside each first group: distances, groups, and the radius by first row."""
        distances = torch.full((len(models), len(models)), torch.nan, dtype=torch.float64)
        groups = torch.zeros_like(first)
        radii = dict[int, float]()
        found = 0
        for group in range(int(first.max()) + 1):
            rows = (first == group).nonzero().flatten()
            inside = euclidean(models[rows])  # Eq. 9 and 10, without the constant: nothing is divided
            distances[rows[:, None], rows] = inside.double()
            radius = self._second_radius(inside)
            groups[rows] = found + self.dense_groups(inside, radius)
            found = int(groups.max()) + 1
            if len(rows) > 1:
                radii[int(rows[0])] = radius
        return distances, groups, radii

    def _second_radius(self, distances: torch.Tensor) -> float:
        """The radius of the second stage among some clients, from their distances (s, s)."""
        if not isinstance(self.radius2, str):
            return self.radius2
        if len(distances) < 2:
            return 0.0
        to_others = distances.clone().fill_diagonal_(torch.inf)
        return _AUTO_RADIUS_FACTOR * float(to_others.amin(dim=1).quantile(0.5))

    def dense_groups(self, distances: torch.Tensor, radius: float) -> torch.Tensor:
        """DBSCAN of distances (m, m): groups (m,) int64 in 0..g-1."""
        labels = dbscan(distances, radius, self.min_samples)
        alone = labels.bincount()[labels] == 1
        if self.noise == "singleton" or self.min_samples == 1 or bool(alone.all()):
            return labels
        to_others = distances.clone().fill_diagonal_(torch.inf)
        labels[alone] = labels[~alone][to_others[alone][:, ~alone].argmin(dim=1)]
        return torch.from_numpy(renumbered(labels))

    def _triggered(self, state: FedTSDPState, batch: torch.Tensor) -> FedTSDPState:
        """The state after a clustering: other sampling weights (line 27), fewer shared layers (lines 31 and 32)."""
        return replace(
            state,
            sampling_weights=amended_weights(state.sampling_weights, batch, self.weight_gain),
            shared_layers=self._fewer_layers(state),
            triggers=state.triggers + 1,
        )

    def _decision(self, statistic: float, shared_layers: float, found: Decoupling | None) -> Decision:
        """What the tree says about the round, with the number of shared layers before it."""
        values = {"hopkins": statistic, "threshold": self.threshold, "shared_layers": shared_layers}
        if found is None:
            return Decision(kind="hopkins_not_above_threshold", values=values)
        layer = ", ".join(matrix.layer for matrix in found.matrices)
        values |= {**found.radii, **found.metrics, "groups": float(found.groups.max()) + 1}
        return Decision(kind="hopkins_above_threshold", layer=layer, values=values)

    def _fewer_layers(self, state: FedTSDPState) -> float:
        """The number of shared layers after a clustering in the next round (Eq. 11)."""
        factor = self.shrink if self.shrink_mode == "constant" else self.shrink ** (state.round + 1)
        return min(state.shared_layers, max(float(self.min_shared), factor * state.shared_layers))

    def _personal(self, problem: Problem, shared_layers: float) -> Mask:
        """The personal tensors when so many layers are shared, (l,)."""
        return personal_above(problem.layout, shared_layers, halves=self.granularity == "tensor")

    def _compared(self, problem: Problem, state: FedTSDPState) -> Mask:
        """The conv and linear tensors that the second stage compares, (l,)."""
        parameters = problem.layout.conv_and_linear_mask
        if self.compared == "full":
            return parameters
        personal = self._personal(problem, state.shared_layers)
        return tuple(tensor and not own for tensor, own in zip(parameters, personal, strict=True))


# Hopkins amended sampling (Section 3.2.2)


def predict_batch(
    problem: Problem, state: FedTSDPState, models: torch.Tensor, size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The predictions of all models for one batch of public samples (lines 13 and 14).

    Args:
        problem: What is fixed for the run, with public samples and an engine that predicts.
        state: The state with the sampling weights of the samples.
        models: The models of the clients that answered, (m, p).
        size: The size of the batch. If there are fewer samples, all are taken.

    Returns:
        The positions (b,) of the samples, and class probabilities (m, b, classes). Both are empty for fewer than three
        models.
    """
    if len(models) < _MIN_HOPKINS_CLIENTS or problem.public is None or problem.predict is None:
        return torch.empty(0, dtype=torch.int64), torch.empty(len(models), 0)
    draw = problem.generator("public batch", state.round + 1)
    weights = state.sampling_weights
    batch = torch.multinomial(weights, min(size, len(weights)), generator=draw)
    predictions = problem.predict(models, problem.public[batch])
    # A model that overflows is finite and yet predicts nothing: every class alike.
    return batch, predictions.nan_to_num(nan=1 / predictions.shape[2])


def hopkins_of_predictions(problem: Problem, state: State, predictions: torch.Tensor, share: float) -> float:
    """The Hopkins statistic of predictions (m, b, classes), by a share of the clients and as many random points."""
    count = ceil(share * len(predictions) - 1e-9)  # 0.1 * 30 is 3.0000000000000004
    return hopkins(predictions, problem.generator("hopkins", state.round + 1), max(1, count))  # Eq. 6


def amended_weights(weights: torch.Tensor, batch: torch.Tensor, gain: Gain) -> torch.Tensor:
    """The sampling weights (samples,) after the samples of a batch (b,) were seen to tell clients apart (Eq. 7 and 8).

    Literally, 50 of 10,000 samples would own 99.99 % of all weight after a single clustering.
    """
    share = len(batch) / len(weights)
    step = share if gain == "inverse" else len(weights) / len(batch)
    gained = weights.index_add(0, batch, torch.full((len(batch),), step, dtype=weights.dtype))  # Eq. 7
    return gained if gain == "unnormalised" else gained / gained.sum()  # Eq. 8


# Personal layers (Section 3.3.2)


def layer_tensors(layout: Layout) -> list[list[int]]:
    """The conv and linear tensors of each layer, in the order of the layout.

    A layer is a module of the network's top level that has such tensors; of a numbered sequence, each of its modules.
    So a residual block is one layer.
    """
    found: dict[str, list[int]] = {}
    for place, tensor in enumerate(layout.tensors):
        module = _TOP_LEVEL_MODULE.match(tensor.layer)
        if module and tensor.kind in ("conv", "linear"):
            found.setdefault(module[0], []).append(place)
    return list(found.values())


def personal_above(layout: Layout, shared_layers: float, halves: bool) -> Mask:
    """The tensors above so many shared layers, (l,). Norms and buffers belong to the layer before them.

    Args:
        layout: The layout of the network.
        shared_layers: How many layers are shared; rounded down.
        halves: Whether to round to halves: a layer's weight without its bias. A layer without a bias, or of several
            modules, has no half and is personal.
    """
    whole, half = divmod(floor(2 * shared_layers + 1e-9), 2)
    above = layer_tensors(layout)[whole:]
    personal = [tensor for layer in above for tensor in layer]
    if halves and half and above:
        modules = {layout.tensors[tensor].layer for tensor in above[0]}
        if len(modules) == 1 and len(above[0]) > 1:
            personal = personal[1:]
    return layout.whole(tuple(tensor in personal for tensor in range(len(layout.tensors))))


# From new groups to clusters that go on from old ones


def continued_clusters(labels: torch.Tensor, result: Result, groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
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


def rebased_result(result: Result, starts: torch.Tensor, models: torch.Tensor, origins: torch.Tensor) -> Result:
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
    return replace(result, updates=Rows(result.updates.clients, moves), chosen=origins)
