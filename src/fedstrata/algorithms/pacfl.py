"""One clustering by the principal angles between the subspaces that the clients' data span.

Vahidian, Morafah, Wang, Kungurtsev, Chen, Shah, Lin, "Efficient distribution similarity identification in clustered
federated learning via principal angles between client data subspaces", AAAI 2023, Algorithms 1 and 2 (PACFL).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass

from fedstrata import core
from fedstrata.algorithms.keys import STRICT, Auto, Degrees
from fedstrata.algorithms.one_shot import (
    Distance,
    SignatureState,
    agglomerative_groups,
    aggregate_clustered,
    assign_by_signature,
    member_signatures,
    must_send,
    signature_state,
    split_by_signatures,
    too_few_signatures,
    with_signatures,
)
from fedstrata.base.errors import ContractError
from fedstrata.base.lazy_torch import torch
from fedstrata.base.limits import Share
from fedstrata.clustering import principal_angles
from fedstrata.clustering.hierarchy import Linkage

RESOLUTION = math.degrees(math.acos(1 - 2**-23))
"""Degrees. The vectors are float32, so no cosine below 1 is nearer to 1 than that of this angle."""


@dataclass(frozen=True, config=STRICT)
class PACFL(core.Algorithm[SignatureState]):
    """PACFL: one clustering by the angles between the subspaces that the clients' data span.

    Every client sends the first singular vectors of the samples of each of its classes once, beside its work in the
    first round. Clients that were absent, newcomers, and clients whose data changed send theirs before they train.
    They join the cluster whose members' subspaces are nearest.

    The vectors show the data. The first one of a class is close to its mean sample, up to a factor, where the samples
    are alike. Those of a class with up to three samples span the samples themselves. An absent class has none, so the
    server also learns which classes a client has.

    Attributes:
        cut: The angle in degrees up to which clusters merge. "auto" is where the mean silhouette is highest, if it is
            above 0.25; otherwise all clients are one cluster.
        linkage: How far apart two groups are.
        angle: Which angle between two clients' subspaces counts: the smallest (Eq. 2), or the mean of all principal
            angles (Eq. 3, whose sum grows with the number of classes). Where two clients together have more vectors
            than there are features, their subspaces always meet, and the smallest angle is 0.
        quorum: The share of all clients that must have sent their vectors, in whatever rounds they were selected.
            Those that come later are assigned by them.
    """

    source: ClassVar[str] = "Vahidian et al., AAAI 2023"

    cut: Degrees | Auto = "auto"
    linkage: Linkage = "average"
    angle: Literal["smallest", "mean"] = "smallest"
    quorum: Share = 0.5

    def init(self, problem: core.Problem) -> SignatureState:
        """Everyone in one cluster, no vectors sent yet."""
        return signature_state(problem)

    def plan(self, problem: core.Problem, state: SignatureState, cohort: torch.Tensor) -> core.Plan:
        """Everyone trains the model of its cluster. New clients send their vectors too, and pending ones only those."""
        plan = core.fedavg_plan(problem, state, cohort)
        task = replace(plan.tasks[core.TRAIN], candidates=state.labels[cohort][:, None])
        return replace(plan, tasks={core.TRAIN: task}, client_stats={"subspaces": must_send(state, cohort)})

    def update(
        self, problem: core.Problem, state: SignatureState, report: core.Report
    ) -> tuple[SignatureState, core.Diagnostics]:
        """Group the clients as soon as enough of them have sent their vectors; average inside the clusters."""
        labels = self.assign(problem, state, report)
        state = with_signatures(state, _sent(report))
        if state.clustered:
            return aggregate_clustered(problem, state, report, labels)
        rows = member_signatures(state, labels)
        postponed = too_few_signatures(labels, len(rows.clients), self.quorum)
        if postponed:
            return core.aggregate(problem, state, report, labels, decisions={0: postponed})
        angles = self._angles(problem)(rows.values)
        measure = f"{self.angle} angle"
        groups = agglomerative_groups(rows.clients, angles, self.cut, self.linkage, "data", measure, RESOLUTION)
        return split_by_signatures(problem, state, report, labels, groups)

    def assign(self, problem: core.Problem, state: SignatureState, report: core.Report) -> torch.Tensor:
        """A pending client belongs to the cluster whose members' subspaces are nearest to its own."""
        return assign_by_signature(state, _sent(report), self._angles(problem), self.linkage)

    def _angles(self, problem: core.Problem) -> Distance:
        """The angles between rows of vectors, (m, classes * SINGULAR_VECTORS * features), zero for an absent class."""
        features = problem.features
        if features is None:
            raise ContractError("expected the number of features of a sample, found a problem without")
        return lambda rows: principal_angles(rows.unflatten(1, (-1, features)), self.angle)


def _sent(report: core.Report) -> core.Rows:
    """The singular vectors that came in a round."""
    return report.client_stats.get("subspaces", core.Rows(torch.empty(0, dtype=torch.int64), torch.empty(0, 0)))
