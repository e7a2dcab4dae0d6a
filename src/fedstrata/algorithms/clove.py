"""k models, and groups of clients whose losses under all of them are alike.

Bhatia, Papadis, Kodialam, Lakshman, Chakrabarty, "CLoVE: personalized federated learning through clustering of loss
vector embeddings", ICML 2026, Algorithm 1 (CLoVE), with the stop and the search for k of the authors' code.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from pydantic.dataclasses import dataclass

from fedstrata import core
from fedstrata.algorithms.baselines import random_groups
from fedstrata.algorithms.keys import STRICT, Auto, ModelCount, PositiveInteger
from fedstrata.base.errors import ExperimentError
from fedstrata.base.lazy_torch import torch
from fedstrata.clustering import euclidean, kmeans

_LOSS_TASK = "losses"

_LEAST_RISE = 0.1
"""By what share its silhouette must be higher for a larger number of groups to be taken (the authors' 10 %)."""


@dataclasses.dataclass(frozen=True)
class CLoVEState(core.State):
    """Adds what the last clusterings said.

    Attributes:
        centres: The mean loss vector of the clients that got each model when somebody last did, (k, k) float64; a row
            of infinities before.
        streaks: In how many clusterings in a row each client got the same model, (n,).
        settled: Whether the clustering has ended.
    """

    centres: torch.Tensor
    streaks: torch.Tensor
    settled: bool

    def forgetting(self, clients: torch.Tensor) -> CLoVEState:
        """The state in which some clients, ids, were never clustered."""
        return replace(self, streaks=self.streaks.index_fill(0, clients, 0))


@dataclass(frozen=True, config=STRICT)
class CLoVE(core.Algorithm[CLoVEState]):
    """CLoVE: k models; clients whose losses under all of them are alike train the same one.

    A client sends its loss under each model, a vector of k numbers. The server groups these vectors by k-means. Each
    group gets a model of its own, so that the sum of all losses is lowest. In round 1 the seed draws the groups.

    In every round of the paper models are sent twice: to be measured, then to be trained. Here both happen in one
    exchange, so clients train what earlier losses decided. They measure in every second round, the even ones, so that
    the new groups have trained the models before these are measured again. If clients measured in every round, the
    models would always have been trained by the groups before; two ways to give models to groups could then take turns
    for ever. So the first groups train in round 3, one round later than in the paper, and the clustering takes twice as
    many rounds.

    The clustering ends when no participant has changed its model in some clusterings. Then clients get one model each.
    A newcomer joins the cluster whose mean loss vector is nearest to its own. An absent client stays in its cluster. A
    client whose loss under some model is not finite is not grouped. A model without a group stays as it is.

    Attributes:
        k: The number of models and groups. "auto" chooses the number of groups in each clustering, from 2 to max_k, by
            the mean silhouette (Ward's linkage). A larger number must have one that is more than 10 % higher.
        max_k: The number of models with k = "auto".
        stable_rounds: The clustering ends when all participants got the same model in so many clusterings in a row.
    """

    source: ClassVar[str] = "Bhatia et al., ICML 2026"

    k: ModelCount | Auto = 4
    max_k: ModelCount = 15
    stable_rounds: PositiveInteger = 3

    def init(self, problem: core.Problem) -> CLoVEState:
        """K models, and nobody in a cluster.

        Raises:
            ExperimentError: When there are to be more models than clients.
        """
        k = self.max_k if isinstance(self.k, str) else self.k
        if isinstance(self.k, int) and self.k > problem.clients:
            raise ExperimentError(f"algorithm.k = {self.k}: expected at most the {problem.clients} clients")
        nobody = torch.full((problem.clients,), -1)
        models = torch.stack([problem.fresh(model) for model in range(k)])
        return core.extend_state(
            replace(core.fixed_clusters(problem, nobody, k, "loss_vectors"), models=models),
            CLoVEState,
            centres=torch.full((k, k), math.inf, dtype=torch.float64),
            streaks=torch.zeros(problem.clients, dtype=torch.int64),
            settled=False,
        )

    def plan(self, problem: core.Problem, state: CLoVEState, cohort: torch.Tensor) -> core.Plan:
        """Everyone trains the model of its group; who has to be grouped measures all models."""
        plan = core.fedavg_plan(problem, state, cohort)
        training = plan.tasks[core.TRAIN]
        measured = torch.arange(len(state.models)).repeat(len(cohort), 1)
        if state.round == 0:
            measured[:] = -1
            training = replace(training, candidates=random_groups(problem, len(state.models))[cohort, None])
        elif not _clusters(state):
            measured[state.labels[cohort] >= 0] = -1
        nothing = problem.layout.nothing
        losses = replace(training, candidates=measured, trainable=nothing, upload=nothing)
        return replace(plan, tasks={_LOSS_TASK: losses, core.TRAIN: training})

    def update(
        self, problem: core.Problem, state: CLoVEState, report: core.Report
    ) -> tuple[CLoVEState, core.Diagnostics]:
        """Average what the clients trained; then group them for the next rounds by their losses."""
        result = report.results[core.TRAIN]
        trained = state.labels.index_copy(0, result.updates.clients, result.chosen)
        after, diagnostics = core.aggregate(problem, state, report, trained)
        clients, vectors = _loss_vectors(report)
        if not _clusters(state) or not len(clients):
            return _relabelled(after, self.assign(problem, state, report)), diagnostics
        groups = self._groups(vectors)
        models, centres = _matched(vectors, groups)
        labels = models[groups]
        same = labels == after.labels[clients]
        streaks = torch.where(same, state.streaks[clients] + 1, 1)
        settled = bool((streaks >= self.stable_rounds).all())
        metrics = (core.Metric("groups", float(len(models))), core.Metric("moved", float((~same).sum())))
        events = ({"kind": "settled", "clusters": len(models)},) if settled else ()
        after = replace(
            _relabelled(after, after.labels.index_copy(0, clients, labels)),
            centres=state.centres.index_copy(0, models, centres),
            streaks=state.streaks.index_copy(0, clients, streaks),
            settled=settled,
        )
        return after, core.Diagnostics((*diagnostics.events, *events), (*diagnostics.metrics, *metrics))

    def assign(self, problem: core.Problem, state: CLoVEState, report: core.Report) -> torch.Tensor:
        """A pending client belongs to the nearest mean loss vector, or without one to the model that it trained."""
        labels = core.assign_pending(state, report)
        clients, vectors = _loss_vectors(report)
        pending = state.labels[clients] < 0
        if not bool(state.centres.isfinite().any()):
            return labels
        distances = torch.cdist(vectors[pending], state.centres, compute_mode="donot_use_mm_for_euclid_dist")
        return labels.index_copy(0, clients[pending], distances.argmin(dim=1))

    def _groups(self, vectors: torch.Tensor) -> torch.Tensor:
        """The k-means of loss vectors (m, k): (m,). Ward's groups are a further start, as they lower the same sum."""
        from scipy.cluster.hierarchy import cut_tree, ward

        if len(vectors) < 2:
            return torch.zeros(len(vectors), dtype=torch.int64)
        counts = range(1, len(vectors) + 1)
        cuts = dict(zip(counts, cut_tree(ward(vectors.numpy()), counts).T, strict=True))
        count = min(self._number_of_groups(vectors, cuts) if isinstance(self.k, str) else self.k, len(vectors))
        return kmeans(euclidean(vectors), count, start=cuts[count])

    def _number_of_groups(self, vectors: torch.Tensor, cuts: Mapping[int, Any]) -> int:
        """The number of groups of loss vectors (m, k) by the mean silhouette of Ward's groups, by their number."""
        from sklearn.metrics import silhouette_score

        chosen = min(2, self.max_k)
        best = -math.inf
        # A silhouette needs a group of at least two.
        for count in range(2, min(self.max_k, len(vectors) - 1) + 1):
            score = float(silhouette_score(vectors.numpy(), cuts[count]))
            if count == 2 or score > best + _LEAST_RISE * abs(best):
                chosen = count
                best = score
        return chosen


def _clusters(state: CLoVEState) -> bool:
    """Whether clients are grouped in the round after the state: an even one."""
    return not state.settled and state.round % 2 == 1


def _loss_vectors(report: core.Report) -> tuple[torch.Tensor, torch.Tensor]:
    """The clients whose losses are all finite, ascending (m,), and their losses, (m, k) float64."""
    result = report.results[_LOSS_TASK]
    result = result.only(result.losses.isfinite().all(dim=1))
    result = result.only(result.updates.clients.argsort())
    return result.updates.clients, result.losses.double()


def _matched(vectors: torch.Tensor, groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The model of each of g groups, (g,), by the lowest sum of all losses, and its mean loss vector, (g, k)."""
    from scipy.optimize import linear_sum_assignment

    sizes = groups.bincount()
    costs = vectors.new_zeros(len(sizes), vectors.shape[1]).index_add_(0, groups, vectors)
    models = torch.from_numpy(linear_sum_assignment(costs.numpy())[1])
    return models, costs / sizes[:, None]


def _relabelled(state: CLoVEState, labels: torch.Tensor) -> CLoVEState:
    """The state in which clients that have a cluster have got others, (n,)."""
    changed = labels != state.labels
    clients = changed.nonzero().flatten().tolist()
    moved = core.reassign(state, dict(zip(clients, labels[changed].tolist(), strict=True)))
    return replace(moved, history=state.history.forgetting(changed))
