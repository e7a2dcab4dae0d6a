"""One clustering before training, by the last layer that every client trains from the common start.

Islam, Javaherian, Xu, Yuan, Chen, Tzeng, "FedClust: optimizing federated learning on non-IID data through
weight-driven client clustering", IPDPS Workshops 2024, Algorithm 1.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedstrata.algorithms.parts.keys import STRICT, Auto, Linkage, Norm, Selectors, Share, names
from fedstrata.algorithms.parts.oneshot.grouping import Agglomeration, divide
from fedstrata.algorithms.parts.oneshot.signatures import Signed, gathered, nearest, register, sign, signed, unsigned
from fedstrata.clustering import euclidean
from fedstrata.core import (
    Diagnostics,
    Evaluation,
    Mask,
    Plan,
    Problem,
    Report,
    Rows,
    State,
    aggregate,
    cluster_evaluation,
)
from fedstrata.lazy_torch import torch


@dataclass(frozen=True, config=STRICT)
class FedClust:
    """FedClust: one clustering by the last layer that each client trains from the common start.

    That one layer is all that is uploaded for it, so nothing is averaged until the clusters are made: they start from
    the common start. Clients that were absent, newcomers, and clients whose data changed train that start once and
    send the layer too; they join the cluster whose members' layers are nearest.

    Attributes:
        layers: what is uploaded and compared: the last layer.
        cut: distance up to which clusters merge; auto cuts at the largest step of the merge heights, if it is clear.
        linkage: how far apart two groups are.
        quorum: share of all clients that must have sent their layer, in whatever rounds they were asked; those that
            come later are placed by it.
    """

    source: ClassVar[str] = "Islam et al., IPDPS Workshops 2024"

    layers: Selectors = "head"
    cut: Norm | Auto = "auto"
    linkage: Linkage = "average"
    quorum: Share = 0.5

    def init(self, problem: Problem) -> Signed:
        """Everyone in one cluster, no layer sent yet."""
        return unsigned(problem)

    def plan(self, problem: Problem, state: Signed, cohort: torch.Tensor) -> Plan:
        """Who is still to be compared trains the common start and sends one layer; the others train their cluster's."""
        return register(problem, state, cohort, self._mask(problem))

    def update(self, problem: Problem, state: Signed, report: Report) -> tuple[Signed, Diagnostics]:
        """Group the clients as soon as enough of them have sent their layer; then average inside the clusters."""
        labels = self.place(problem, state, report)
        state = sign(state, self._sent(problem, report))
        if state.clustered:
            return aggregate(problem, state, report, labels)
        quorum, layer = gathered(self.quorum, labels), ", ".join(names(self.layers))
        agglomeration = Agglomeration(self.cut, self.linkage, euclidean, "l2", layer)
        return divide(problem, state, report, labels, signed(state, labels), quorum, agglomeration.groups)

    def place(self, problem: Problem, state: Signed, report: Report) -> torch.Tensor:
        """A pending client belongs to the cluster whose members' layers are nearest to its own."""
        return nearest(state, self._sent(problem, report), euclidean, self.linkage)

    def evaluations(self, problem: Problem, state: State, clients: torch.Tensor) -> tuple[Evaluation, ...]:
        """Everyone uses the model of its cluster."""
        return cluster_evaluation(problem, state, clients)

    def _mask(self, problem: Problem) -> Mask:
        return problem.layout.select(*names(self.layers))

    def _sent(self, problem: Problem, report: Report) -> Rows:
        # All start from the same layer, so distances of what it moved by are distances of the layers.
        return report.results[1].updates.only(problem.layout.columns(self._mask(problem)))
