"""k-means of models: every round each client goes to the nearest model, and each model to the mean of its clients'.

Long, Xie, Shen, Zhou, Wang, Jiang, "Multi-center federated learning: clients clustering for better personalization",
World Wide Web 2023 (Xie et al. 2021), Algorithm 1 (FeSEM); with weights: Ma, Long, Zhou, Jiang, Zhang, "On the
convergence of clustered federated learning", 2022 (WeCFL).
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedstrata import core
from fedstrata.algorithms.keys import STRICT, ModelCount
from fedstrata.algorithms.one_shot import Groups, split_once, why_not_yet
from fedstrata.base.errors import ExperimentError
from fedstrata.base.lazy_torch import torch
from fedstrata.base.limits import Share
from fedstrata.clustering import euclidean, kmeans


@dataclass(frozen=True, config=STRICT)
class FeSEM(core.Algorithm[core.State]):
    """FeSEM: k-means of models, one step of it after every round of training.

    The k models begin as the k-means of the models that the clients train from one common start. Models drawn
    independently are farther apart than training moves them, so no client would ever change its cluster. A client that
    is absent keeps its cluster. A client that was absent when the models were made, a newcomer, and one whose data
    changed train the model of lowest training loss. From then on they take part like the others.

    Attributes:
        k: The number of models.
        weighted: Whether models are means weighted by samples (WeCFL). In FeSEM all clients count alike.
        quorum: The share of the clients selected in a round that must have answered for the k models to be made. At
            least k of them must have answered too.
    """

    source: ClassVar[str] = "Long et al., World Wide Web 2023 (weighted: Ma et al., 2022)"

    k: ModelCount = 4
    weighted: bool = False
    quorum: Share = 0.5

    def init(self, problem: core.Problem) -> core.State:
        """Everyone in one cluster.

        Raises:
            ExperimentError: When there are to be more models than clients.
        """
        if self.k > problem.clients:
            raise ExperimentError(f"algorithm.k = {self.k}: expected at most the {problem.clients} clients")
        return core.initial_state(problem)

    def update(
        self, problem: core.Problem, state: core.State, report: core.Report
    ) -> tuple[core.State, core.Diagnostics]:
        """E-step: to the nearest model; M-step: every model becomes the mean of those that came to it."""
        labels = self.assign(problem, state, report)
        result = report.results[core.TRAIN]
        if not self.weighted:
            result = replace(result, sizes=torch.ones_like(result.sizes))
        if len(state.models) == 1 and self.k > 1:
            return self._first_models(problem, state, replace(report, results={core.TRAIN: result}), labels)
        clients = result.updates.clients
        nearest = labels.index_copy(0, clients, _distances_to_models(problem, state, result).argmin(dim=1))
        rebased = core.Report({core.TRAIN: _rebased(state, result, nearest[clients])})
        moved, diagnostics = core.aggregate(problem, state, rebased, nearest)
        moves = core.Metric("moved", float((nearest != labels).sum()))
        return moved, replace(diagnostics, metrics=(*diagnostics.metrics, moves))

    def _first_models(
        self, problem: core.Problem, state: core.State, report: core.Report, labels: torch.Tensor
    ) -> tuple[core.State, core.Diagnostics]:
        """Make the k models: k-means of what the clients trained from the common start."""
        result = report.results[core.TRAIN]
        present = len(result.chosen)
        postponed = why_not_yet(state, report, labels, present, self.quorum, min_clients=self.k)
        if postponed:
            return core.aggregate(problem, state, report, labels, decisions={0: postponed})
        result = result.only(result.updates.clients.argsort())
        clients = result.updates.clients
        distances = euclidean(result.updates.values[:, problem.layout.conv_and_linear])
        clusters = kmeans(distances, self.k, result.sizes)
        values = {"clients": float(present), "groups": float(clusters.max()) + 1}
        decision = core.Decision(kind="k_means", layer="all", values=values)
        groups = Groups(clients, clusters, decision, (core.Matrix(0, "all", "l2", clients, distances),))
        return split_once(problem, state, report, labels, groups)


def _distances_to_models(problem: core.Problem, state: core.State, result: core.Result) -> torch.Tensor:
    """The distance of each client's model to each of the k models, (m, k)."""
    columns = problem.layout.conv_and_linear
    own = (state.models[result.chosen] + result.updates.values)[:, columns]
    # Models differ by a thousandth of their norm: expanding the square would lose that.
    return torch.cdist(own, state.models[:, columns], compute_mode="donot_use_mm_for_euclid_dist")


def _rebased(state: core.State, result: core.Result, labels: torch.Tensor) -> core.Result:
    """The same local models, as updates of the models of the clusters (m,) that their clients now belong to."""
    shift = state.models[result.chosen] - state.models[labels]
    return replace(result, updates=core.Rows(result.updates.clients, result.updates.values + shift), chosen=labels)
