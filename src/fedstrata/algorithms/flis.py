"""One clustering before training, by what the clients' models answer on the server's unlabelled samples.

Morafah, Vahidian, Wang, Lin, "FLIS: clustered federated learning via inference similarity for non-IID data
distribution", IEEE Open Journal of the Computer Society 2023; its hierarchical form, FLIS (HC). Its other form (DC)
makes clusters that overlap, from which clients choose by test accuracy, and is not built.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedstrata.algorithms.parts.keys import STRICT, Auto, Degrees, Linkage, Share
from fedstrata.algorithms.parts.oneshot.grouping import Agglomeration, divide
from fedstrata.algorithms.parts.oneshot.signatures import Signed, gathered, nearest, register, sign, signed, unsigned
from fedstrata.core import Diagnostics, Evaluation, Plan, Problem, Report, Rows, State, aggregate, cluster_evaluation
from fedstrata.errors import ContractError, ExperimentError
from fedstrata.lazy_torch import torch


@dataclass(frozen=True, config=STRICT)
class FLIS:
    """FLIS (HC): one clustering by the classes that the clients' first models predict for public samples.

    A client that is asked for the first time trains the common start and sends it. What these first models predict
    is gathered over the rounds until enough clients have sent theirs; meanwhile no model moves, and who has sent one
    has nothing to do. Then all of them are grouped, whether they answered in that round or not, and the first models
    that came in that very round are averaged inside the clusters; of the others only the predictions were kept.
    Clients that were absent until then, newcomers, and clients whose data changed are pending: they train the common
    start once, and join the cluster whose members' first models agree with theirs most.

    Attributes:
        cut: degrees up to which clusters merge, of which the cosine is the similarity of two models; auto cuts at the
            largest step of the merge heights, if it is clear beyond what the models answer on a single sample.
        linkage: how far apart two groups are.
        quorum: share of all clients that must have sent their first model, in whatever rounds they were asked; those
            that come later are placed by it.
    """

    source: ClassVar[str] = "Morafah et al., IEEE Open Journal of the Computer Society 2023"

    cut: Degrees | Auto = "auto"
    linkage: Linkage = "average"
    quorum: Share = 0.5

    def init(self, problem: Problem) -> Signed:
        """Everyone in one cluster, no model sent yet.

        Raises:
            ExperimentError: when the server has no public samples.
        """
        if problem.public is None:
            raise ExperimentError(
                "data.public = 0: algorithm.name = 'flis' compares models by what they predict for unlabelled samples "
                "on the server, found none; set data.public to some hundreds"
            )
        return unsigned(problem)

    def plan(self, problem: Problem, state: Signed, cohort: torch.Tensor) -> Plan:
        """Who is still to be compared trains the common start; the others train the model of their cluster."""
        return register(problem, state, cohort, problem.layout.everything)

    def update(self, problem: Problem, state: Signed, report: Report) -> tuple[Signed, Diagnostics]:
        """Group the clients as soon as enough first models are there; average inside the clusters."""
        first = self._predicted(problem, report)
        labels = nearest(state, first, disagreement, self.linkage)
        state = sign(state, first)
        if state.clustered:
            return aggregate(problem, state, report, labels)
        rows, quorum = signed(state, labels), gathered(self.quorum, labels)
        if not quorum.lacks(len(rows.clients), state.round + 1):
            # Until now the only cluster stood at the common start, so first models are updates of it.
            start = report.results[1]
            report = replace(report, results=(replace(start, chosen=torch.zeros_like(start.chosen)),))
        finest = resolution(rows.values.shape[1])
        agglomeration = Agglomeration(self.cut, self.linkage, disagreement, "angle", "predictions", finest)
        return divide(problem, state, report, labels, rows, quorum, agglomeration.groups)

    def place(self, problem: Problem, state: Signed, report: Report) -> torch.Tensor:
        """A pending client belongs to the cluster whose members' first models agree with its own most."""
        return nearest(state, self._predicted(problem, report), disagreement, self.linkage)

    def evaluations(self, problem: Problem, state: State, clients: torch.Tensor) -> tuple[Evaluation, ...]:
        """Everyone uses the model of its cluster."""
        return cluster_evaluation(problem, state, clients)

    def _predicted(self, problem: Problem, report: Report) -> Rows:
        """The class that each first model predicts for every public sample, (m, samples)."""
        updates = report.results[1].updates
        if problem.predict is None or problem.public is None:
            raise ContractError("expected public samples and an engine that predicts, found a problem without")
        if not len(updates.clients):
            return Rows(updates.clients, torch.empty(0, len(problem.public)))
        models = problem.fresh(0) + updates.values
        return Rows(updates.clients, problem.predict(models, problem.public).argmax(dim=2).float())


def disagreement(classes: torch.Tensor) -> torch.Tensor:
    """Angle between the predictions of every pair of models, in degrees.

    Its cosine is <A_i, A_j> / (|A_i| |A_j|), where A holds a one-hot row for the class of every sample: both norms are
    the root of the number of samples, so that is the share of samples on which the two agree. Of the angle, unlike of
    1 minus the cosine, small values scatter no more than large ones do, so that steps between them mean something.

    Args:
        classes: predicted by each model for each sample, (m, samples).

    Returns:
        (m, m) float64 in [0, 90], the diagonal 0.
    """
    similarity = torch.stack([(own == classes).double().mean(dim=1) for own in classes])
    return similarity.arccos().rad2deg()


def resolution(samples: int) -> float:
    """Angle between models that differ on one of so many samples, in degrees.

    Two clients of one distribution differ on a few samples, by chance on one more or less; that is a large factor of
    a small angle. The angle scatters by 1 / sqrt(2 samples), whatever it is, and this is twice as much.
    """
    return math.degrees(math.acos(1 - 1 / max(samples, 1)))
