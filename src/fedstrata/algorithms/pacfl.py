"""One clustering by the principal angles between the subspaces that the clients' data span.

Vahidian, Morafah, Wang, Kungurtsev, Chen, Shah, Lin, "Efficient distribution similarity identification in clustered
federated learning via principal angles between client data subspaces", AAAI 2023, Algorithms 1 and 2 (PACFL).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass

from fedstrata.algorithms.parts.keys import STRICT, Auto, Degrees, Linkage, Share
from fedstrata.algorithms.parts.oneshot.grouping import Agglomeration, Distance, divide
from fedstrata.algorithms.parts.oneshot.signatures import Signed, gathered, nearest, sign, signed, unknown, unsigned
from fedstrata.clustering import principal_angles
from fedstrata.core import (
    SINGULAR_VECTORS,
    Diagnostics,
    Evaluation,
    Plan,
    Problem,
    Report,
    Rows,
    State,
    aggregate,
    cluster_evaluation,
    fedavg_plan,
)
from fedstrata.lazy_torch import torch

FINEST = math.degrees(math.acos(1 - 2**-23))
"""Degrees: a cosine in float32, which the vectors are, cannot be nearer to 1 than that of this angle."""


@dataclass(frozen=True, config=STRICT)
class PACFL:
    """PACFL: one clustering by the angles between the subspaces that the clients' data span.

    Every client sends the first singular vectors of the samples of each of its classes once, beside its work in the
    first round. Clients that were absent, newcomers, and clients whose data changed send theirs before they train;
    they join the cluster whose members' subspaces are nearest.

    Attributes:
        cut: degrees up to which clusters merge; auto cuts at the largest step of the merge heights, if it is clear.
        linkage: how far apart two groups are.
        angle: which angle between two clients' subspaces counts: the smallest (Eq. 2), or the mean of all principal
            angles (Eq. 3, whose sum grows with the number of classes). Where two clients' vectors together are more
            than the features, the subspaces always meet: then the smallest is 0.
        quorum: share of all clients that must have sent their vectors, in whatever rounds they were asked; those that
            come later are placed by them.
    """

    source: ClassVar[str] = "Vahidian et al., AAAI 2023"

    cut: Degrees | Auto = "auto"
    linkage: Linkage = "average"
    angle: Literal["smallest", "mean"] = "smallest"
    quorum: Share = 0.5

    def init(self, problem: Problem) -> Signed:
        """Everyone in one cluster, no vectors sent yet.

        Raises:
            LayoutError: when the network has no linear layer, of which the last tells the number of classes.
        """
        self._angles(problem)
        return unsigned(problem)

    def plan(self, problem: Problem, state: Signed, cohort: torch.Tensor) -> Plan:
        """Everyone trains the model of its cluster; the unknown send their vectors, and pending ones only those."""
        plan = fedavg_plan(problem, state, cohort)
        task = replace(plan.tasks[0], candidates=state.labels[cohort][:, None])
        return replace(plan, tasks=(task,), client_stats={"subspaces": unknown(state, cohort)})

    def update(self, problem: Problem, state: Signed, report: Report) -> tuple[Signed, Diagnostics]:
        """Group the clients as soon as enough of them have sent their vectors; average inside the clusters."""
        labels = self.place(problem, state, report)
        state = sign(state, _sent(report))
        if state.clustered:
            return aggregate(problem, state, report, labels)
        quorum, angle = gathered(self.quorum, labels), f"{self.angle} angle"
        agglomeration = Agglomeration(self.cut, self.linkage, self._angles(problem), angle, "data", FINEST)
        return divide(problem, state, report, labels, signed(state, labels), quorum, agglomeration.groups)

    def place(self, problem: Problem, state: Signed, report: Report) -> torch.Tensor:
        """A pending client belongs to the cluster whose members' subspaces are nearest to its own."""
        return nearest(state, _sent(report), self._angles(problem), self.linkage)

    def evaluations(self, problem: Problem, state: State, clients: torch.Tensor) -> tuple[Evaluation, ...]:
        """Everyone uses the model of its cluster."""
        return cluster_evaluation(problem, state, clients)

    def _angles(self, problem: Problem) -> Distance:
        """Angles between rows of vectors, (m, classes * SINGULAR_VECTORS * features); who lacks a class has zeros there."""
        layout = problem.layout
        head = next(slot for slot, last in zip(layout.tensors, layout.select("head"), strict=True) if last)
        vectors = SINGULAR_VECTORS * head.shape[0]
        return lambda rows: principal_angles(rows.unflatten(1, (vectors, -1)), self.angle)


def _sent(report: Report) -> Rows:
    return report.client_stats.get("subspaces", Rows(torch.empty(0, dtype=torch.int64), torch.empty(0, 0)))
