"""One clustering before training, by the last layer that every client trains from the common start.

Islam, Javaherian, Xu, Yuan, Chen, Tzeng, "FedClust: optimizing federated learning on non-IID data through
weight-driven client clustering", IPDPS Workshops 2024, Algorithm 1.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedstrata import core
from fedstrata.algorithms.keys import STRICT, Auto, NonNegative, Selectors, selector_tuple
from fedstrata.algorithms.one_shot import (
    SIGNATURE_TASK,
    SignatureState,
    agglomerative_groups,
    aggregate_clustered,
    assign_by_signature,
    member_signatures,
    signature_plan,
    signature_state,
    split_by_signatures,
    too_few_signatures,
    with_signatures,
)
from fedstrata.base.lazy_torch import torch
from fedstrata.base.limits import Share
from fedstrata.clustering import euclidean
from fedstrata.clustering.hierarchy import Linkage


@dataclass(frozen=True, config=STRICT)
class FedClust(core.Algorithm[SignatureState]):
    """FedClust: one clustering by the last layer that each client trains from the common start.

    Only that layer is uploaded for the clustering, so nothing is averaged until the clusters are made. They start from
    the common start. Clients that were absent, newcomers, and clients whose data changed train that start once and
    send the layer too. They join the cluster whose members' layers are nearest.

    Attributes:
        layers: What is uploaded and compared; by default the last layer.
        cut: The distance up to which clusters merge. "auto" is where the mean silhouette is highest, if it is above
            0.25; otherwise all clients are one cluster.
        linkage: How far apart two groups are.
        quorum: The share of all clients that must have sent their layer, in whatever rounds they were selected. Those
            that come later are assigned by it.
    """

    source: ClassVar[str] = "Islam et al., IPDPS Workshops 2024"

    layers: Selectors = "head"
    cut: NonNegative | Auto = "auto"
    linkage: Linkage = "average"
    quorum: Share = 0.5

    def init(self, problem: core.Problem) -> SignatureState:
        """Everyone in one cluster, no layer sent yet."""
        return signature_state(problem)

    def plan(self, problem: core.Problem, state: SignatureState, cohort: torch.Tensor) -> core.Plan:
        """Whoever has not sent its layer trains the common start; the others train the model of their cluster."""
        return signature_plan(problem, state, cohort, self._mask(problem))

    def update(
        self, problem: core.Problem, state: SignatureState, report: core.Report
    ) -> tuple[SignatureState, core.Diagnostics]:
        """Group the clients as soon as enough of them have sent their layer; then average inside the clusters."""
        labels = self.assign(problem, state, report)
        state = with_signatures(state, self._sent(problem, report))
        if state.clustered:
            return aggregate_clustered(problem, state, report, labels)
        rows = member_signatures(state, labels)
        postponed = too_few_signatures(labels, len(rows.clients), self.quorum)
        if postponed:
            return core.aggregate(problem, state, report, labels, decisions={0: postponed}, asked=False)
        layer = ", ".join(selector_tuple(self.layers))
        groups = agglomerative_groups(rows.clients, euclidean(rows.values), self.cut, self.linkage, layer, "l2")
        return split_by_signatures(problem, state, report, labels, groups, asked=False)

    def assign(self, problem: core.Problem, state: SignatureState, report: core.Report) -> torch.Tensor:
        """A pending client belongs to the cluster whose members' layers are nearest to its own."""
        return assign_by_signature(state, self._sent(problem, report), euclidean, self.linkage)

    def _mask(self, problem: core.Problem) -> core.Mask:
        """The tensors that are compared, (l,)."""
        return problem.layout.select(*selector_tuple(self.layers))

    def _sent(self, problem: core.Problem, report: core.Report) -> core.Rows:
        """The updates of the compared layers, (m, q)."""
        # All start from the same layer, so the distances of its updates are those of the layers.
        return report.results[SIGNATURE_TASK].updates.take_columns(problem.layout.columns(self._mask(problem)))
