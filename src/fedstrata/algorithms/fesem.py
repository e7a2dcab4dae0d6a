"""k-means of models: every round each client goes to the model that its own came nearest to, each model to their mean.

Long, Xie, Shen, Zhou, Wang, Jiang, "Multi-center federated learning: clients clustering for better personalization",
World Wide Web 2023 (Xie et al. 2021), Algorithm 1 (FeSEM); with weights: Ma, Long, Zhou, Jiang, Zhang, "On the
convergence of clustered federated learning", 2022 (WeCFL).
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedstrata.algorithms.parts.keys import STRICT, Count, Share
from fedstrata.algorithms.parts.oneshot.grouping import Clustered, Groups, answering, divide
from fedstrata.clustering import euclidean, kmeans
from fedstrata.core import (
    Decision,
    Diagnostics,
    Evaluation,
    Matrix,
    Plan,
    Problem,
    Report,
    Result,
    Rows,
    State,
    aggregate,
    assign_pending,
    cluster_evaluation,
    fedavg_plan,
    initial_state,
)
from fedstrata.errors import ExperimentError
from fedstrata.lazy_torch import torch


@dataclass(frozen=True, config=STRICT)
class FeSEM:
    """FeSEM: k-means of models, one step of it after every round of training.

    The k models begin as the groups of what the clients make of one common start: models drawn independently are
    farther apart than training moves them, so no client would ever change. A client that is absent keeps its cluster.
    One that was absent when the models were made, a newcomer, and one whose data changed train the model of lowest
    training loss, and from then on take part like the others.

    Attributes:
        k: number of models.
        weighted: whether models are means weighted by samples (WeCFL); in FeSEM all clients count alike.
        quorum: share of the clients asked in a round that must have answered for the k models to be made, and at least
            k of them.
    """

    source: ClassVar[str] = "Long et al., World Wide Web 2023 (weighted: Ma et al., 2022)"

    k: Count = 4
    weighted: bool = False
    quorum: Share = 0.5

    def init(self, problem: Problem) -> Clustered:
        """Everyone in one cluster.

        Raises:
            ExperimentError: when there are to be more models than clients.
        """
        if self.k > problem.clients:
            raise ExperimentError(f"algorithm.k = {self.k}: expected at most the {problem.clients} clients")
        return Clustered(**vars(initial_state(problem)), clustered=0)

    def plan(self, problem: Problem, state: State, cohort: torch.Tensor) -> Plan:
        """Everyone trains the model of its cluster."""
        return fedavg_plan(problem, state, cohort)

    def update(self, problem: Problem, state: Clustered, report: Report) -> tuple[Clustered, Diagnostics]:
        """E-step: to the nearest model; M-step: every model becomes the mean of those that came to it."""
        labels, result = self.place(problem, state, report), report.results[0]
        result = result if self.weighted else replace(result, sizes=torch.ones_like(result.sizes))
        if len(state.models) == 1 and self.k > 1:
            return self._begin(problem, state, replace(report, results=(result,)), labels)
        clients = result.updates.clients
        nearest = labels.index_copy(0, clients, _away(problem, state, result).argmin(dim=1))
        counted = Report((_seen_from(state, result, nearest[clients]),))
        moved, diagnostics = aggregate(problem, state, counted, nearest)
        return moved, replace(diagnostics, metrics={**diagnostics.metrics, "moved": float((nearest != labels).sum())})

    def place(self, problem: Problem, state: State, report: Report) -> torch.Tensor:
        """A pending client belongs to the model of the lowest loss on its training data."""
        return assign_pending(state, report)

    def evaluations(self, problem: Problem, state: State, clients: torch.Tensor) -> tuple[Evaluation, ...]:
        """Everyone uses the model of its cluster."""
        return cluster_evaluation(problem, state, clients)

    def _begin(
        self, problem: Problem, state: Clustered, report: Report, labels: torch.Tensor
    ) -> tuple[Clustered, Diagnostics]:
        """Make the k models: k-means of what the clients made of the common start."""
        result, quorum = report.results[0], answering(self.quorum, report, labels, least=self.k)
        sizes = result.sizes[result.updates.clients.argsort()]

        def group(rows: Rows) -> Groups:
            distance = euclidean(rows.values)
            groups = kmeans(distance, self.k, sizes)
            k = int(groups.max()) + 1
            decision = Decision(f"k-means of {len(groups)} models: {k} groups", "all", {"groups": float(k)})
            return Groups(groups, decision, (Matrix(0, "all", "l2", rows.clients, distance),))

        return divide(problem, state, report, labels, result.updates.only(_compared(problem)), quorum, group)


def _compared(problem: Problem) -> torch.Tensor:
    return problem.layout.columns(problem.layout.select("all"))


def _away(problem: Problem, state: State, result: Result) -> torch.Tensor:
    """Distance of each client's model to each of the k models, (m, k)."""
    columns = _compared(problem)
    own = (state.models[result.chosen] + result.updates.values)[:, columns]
    # Models differ by a thousandth of their norm: expanding the square would lose that.
    return torch.cdist(own, state.models[:, columns], compute_mode="donot_use_mm_for_euclid_dist")


def _seen_from(state: State, result: Result, labels: torch.Tensor) -> Result:
    """The same local models, as updates of the models of the clusters that their clients now belong to."""
    shift = state.models[result.chosen] - state.models[labels]
    return replace(result, updates=replace(result.updates, values=result.updates.values + shift), chosen=labels)
