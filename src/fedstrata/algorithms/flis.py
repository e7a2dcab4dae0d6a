"""One clustering before training, by what the clients' models predict for the server's unlabelled samples.

Morafah, Vahidian, Wang, Lin, "FLIS: clustered federated learning via inference similarity for non-IID data
distribution", IEEE Open Journal of the Computer Society 2023; its hierarchical form, FLIS (HC). Its other form (DC)
makes clusters that overlap, from which clients choose by test accuracy, and is not built.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedstrata import core
from fedstrata.algorithms.keys import STRICT, Auto, Degrees
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
from fedstrata.base.errors import ContractError, ExperimentError
from fedstrata.base.lazy_torch import torch
from fedstrata.base.limits import Share
from fedstrata.clustering.hierarchy import Linkage


@dataclass(frozen=True, config=STRICT)
class FLIS(core.Algorithm[SignatureState]):
    """FLIS (HC): one clustering by the classes that the clients' first models predict for public samples.

    A client that is selected for the first time trains the common start and sends the model. The predictions of these
    first models are collected over the rounds until enough clients have sent theirs. Meanwhile no model moves, and a
    client that has sent its first model has nothing to do. Then all of them are grouped, whether they answered in that
    round or not. The first models that came in that very round are averaged inside the clusters; of the others only
    the predictions were kept. Clients that were absent until then, newcomers, and clients whose data changed are
    pending. They train the common start once, and join the cluster whose members' first models agree with theirs most.

    Attributes:
        cut: The angle in degrees up to which clusters merge. Its cosine is the similarity of two models. "auto" is
            where the mean silhouette is highest, if it is above 0.25 beyond what a few samples change.
        linkage: How far apart two groups are.
        quorum: The share of all clients that must have sent their first model, in whatever rounds they were selected.
            Those that come later are assigned by it.
    """

    source: ClassVar[str] = "Morafah et al., IEEE Open Journal of the Computer Society 2023"

    cut: Degrees | Auto = "auto"
    linkage: Linkage = "average"
    quorum: Share = 0.5

    def init(self, problem: core.Problem) -> SignatureState:
        """Everyone in one cluster, no model sent yet.

        Raises:
            ExperimentError: When the server has no public samples.
        """
        if problem.public is None:
            raise ExperimentError(
                "data.public = 0: algorithm.name = 'flis' compares models by what they predict for unlabelled samples "
                "on the server, found none; set data.public to some hundreds"
            )
        return signature_state(problem)

    def plan(self, problem: core.Problem, state: SignatureState, cohort: torch.Tensor) -> core.Plan:
        """Whoever has sent no first model trains the common start; the others train the model of their cluster."""
        return signature_plan(problem, state, cohort, problem.layout.everything)

    def update(
        self, problem: core.Problem, state: SignatureState, report: core.Report
    ) -> tuple[SignatureState, core.Diagnostics]:
        """Group the clients as soon as enough first models are there; average inside the clusters."""
        predicted = self._predicted(problem, report)
        labels = assign_by_signature(state, predicted, disagreement, self.linkage)
        state = with_signatures(state, predicted)
        if state.clustered:
            return aggregate_clustered(problem, state, report, labels)
        rows = member_signatures(state, labels)
        postponed = too_few_signatures(labels, len(rows.clients), self.quorum)
        if postponed:
            return core.aggregate(problem, state, report, labels, decisions={0: postponed}, asked=False)
        angles = disagreement(rows.values)
        finest = resolution(rows.values.shape[1])
        groups = agglomerative_groups(rows.clients, angles, self.cut, self.linkage, "predictions", "angle", finest)
        # Until now the only cluster stood at the common start, so first models are updates of it.
        first = report.results[SIGNATURE_TASK]
        report = replace(report, results={core.TRAIN: replace(first, chosen=torch.zeros_like(first.chosen))})
        return split_by_signatures(problem, state, report, labels, groups)

    def assign(self, problem: core.Problem, state: SignatureState, report: core.Report) -> torch.Tensor:
        """A pending client belongs to the cluster whose members' first models agree with its own most."""
        return assign_by_signature(state, self._predicted(problem, report), disagreement, self.linkage)

    def _predicted(self, problem: core.Problem, report: core.Report) -> core.Rows:
        """The class that each first model predicts for every public sample, (m, samples)."""
        updates = report.results[SIGNATURE_TASK].updates
        if problem.predict is None or problem.public is None:
            raise ContractError("expected public samples and an engine that predicts, found a problem without")
        if not len(updates.clients):
            return core.Rows(updates.clients, torch.empty(0, len(problem.public)))
        models = problem.fresh(0) + updates.values
        return core.Rows(updates.clients, problem.predict(models, problem.public).argmax(dim=2).float())


def disagreement(classes: torch.Tensor) -> torch.Tensor:
    """The angle between the predictions of every pair of models, in degrees.

    Its cosine is <A_i, A_j> / (|A_i| |A_j|), where A holds a one-hot row for the class of every sample. Both norms are
    the root of the number of samples, so the cosine is the share of samples on which the two agree. Small angles vary
    by chance no more than large ones do, unlike small values of 1 minus the cosine. So steps between them mean
    something.

    Args:
        classes: The class that each model predicts for each sample, (m, samples).

    Returns:
        (m, m) float64 in [0, 90], the diagonal 0.
    """
    similarity = torch.stack([(own == classes).double().mean(dim=1) for own in classes])
    return similarity.arccos().rad2deg()


def resolution(samples: int) -> float:
    """The angle that means something between models that are compared by so many samples, in degrees.

    Two clients of one distribution differ on a few samples, and by chance on one more or less. That is a large factor
    of a small angle. The standard deviation of the angle is 1 / sqrt(2 samples) radians, whatever the angle is. This is
    four times the angle of models that differ on one sample, and so eight standard deviations.
    """
    return 4 * math.degrees(math.acos(1 - 1 / max(samples, 1)))
