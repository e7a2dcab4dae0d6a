"""Some rounds of FedAvg, one hierarchical clustering of the updates, then FedAvg inside the clusters.

Briggs, Fan, Andras, "Federated learning with hierarchical clustering of local updates to improve training on non-IID
data", IJCNN 2020, Algorithm 1 (FL+HC).
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedstrata import core
from fedstrata.algorithms.keys import STRICT, Auto, NonNegative, PositiveInteger
from fedstrata.algorithms.one_shot import (
    agglomerative_groups,
    split_once,
    why_not_yet,
)
from fedstrata.base.lazy_torch import torch
from fedstrata.base.limits import Share
from fedstrata.clustering import CLIENT_MEASURES, ClientMeasureName
from fedstrata.clustering.hierarchy import Linkage

_ROUNDING = 1e-12
"""A smaller difference of a cosine from 1 is rounding. Equal updates would else be as far apart as that, and a step."""


@dataclasses.dataclass(frozen=True)
class FLHCState(core.State):
    """Adds the round of the clustering.

    Attributes:
        clustered: The round in which the clients were grouped; 0 before it.
    """

    clustered: int


@dataclass(frozen=True, config=STRICT)
class FLHC(core.Algorithm[FLHCState]):
    """FL+HC: one hierarchical clustering of whole updates after some rounds of FedAvg.

    Clients that did not answer in the round of the clustering are pending. They take the cluster of lowest training
    loss, as newcomers do: their updates of other rounds cannot be compared.

    Attributes:
        round: The round of the clustering (n + 1). Until then all train one model. It is put off until enough clients
            answer.
        cut: The distance up to which clusters merge. "auto" is where the mean silhouette is highest, if it is above
            0.25; otherwise all clients are one cluster.
        linkage: How far apart two groups are.
        measure: What clients are compared by. A name with d, such as dl2, compares updates; one without compares
            weights. A cosine counts as the distance 1 minus cosine.
        quorum: The share of the clients selected in the round of the clustering that must have answered.
    """

    source: ClassVar[str] = "Briggs et al., IJCNN 2020"

    round: PositiveInteger = 10
    cut: NonNegative | Auto = "auto"
    linkage: Linkage = "average"
    measure: ClientMeasureName = "dl2"
    quorum: Share = 0.5

    def init(self, problem: core.Problem) -> FLHCState:
        """Everyone in one cluster."""
        return core.extend_state(core.initial_state(problem), FLHCState, clustered=0)

    def update(
        self, problem: core.Problem, state: FLHCState, report: core.Report
    ) -> tuple[FLHCState, core.Diagnostics]:
        """FedAvg; in the round of the clustering, group the clients by their updates first (Algorithm 1)."""
        labels = self.assign(problem, state, report)
        if state.clustered:
            return core.aggregate(problem, state, report, labels)
        updates = report.results[core.TRAIN].updates
        postponed = why_not_yet(state, report, labels, len(updates.clients), self.quorum, first_round=self.round)
        if postponed:
            return core.aggregate(problem, state, report, labels, decisions={0: postponed})
        columns = problem.layout.conv_and_linear
        rows = updates.at(updates.clients.argsort()).take_columns(columns)
        measure = CLIENT_MEASURES[self.measure]
        # All clients have trained the only model.
        values = measure.compare(rows.values if measure.of_updates else state.models[0, columns] + rows.values)
        distances = measure.distances(values)
        if measure.larger_is_closer:
            distances = torch.where(distances < _ROUNDING, 0.0, distances)
        groups = agglomerative_groups(rows.clients, distances, self.cut, self.linkage, "all", self.measure)
        groups = replace(groups, matrices=(replace(groups.matrices[0], values=values),))
        moved, diagnostics = split_once(problem, state, report, labels, groups)
        return replace(moved, clustered=moved.round), diagnostics
