"""Cluster once, early, by the weights of the smallest linear layer; give every newcomer the nearest cluster.

Gong, Xing, Liu, Wang, Liu, "Adaptive clustered federated learning for heterogeneous data in edge computing",
Mobile Networks and Applications 2022: Algorithm 1 (Adaptive Clustering) and Algorithm 2 (Incorporating New Client).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass

from fedstrata.algorithms.keys import (
    STRICT,
    Auto,
    NonNegativeInteger,
    Norm,
    PositiveInteger,
    Selectors,
    selector_tuple,
)
from fedstrata.algorithms.one_shot import Groups, cut_dendrogram, split_once, too_few_answers
from fedstrata.base.lazy_torch import torch
from fedstrata.base.limits import Share
from fedstrata.clustering import entropy_groups, euclidean
from fedstrata.clustering.hierarchy import CLEAR_STEP, Linkage
from fedstrata.core import (
    TRAIN,
    Decision,
    Diagnostics,
    Evaluation,
    Mask,
    Matrix,
    Metric,
    Plan,
    Problem,
    Report,
    Result,
    Rows,
    State,
    aggregate,
    assign_pending,
    cluster_evaluation,
    extend_state,
    fedavg_plan,
    initial_state,
)
from fedstrata.core.aggregation import weighted_mean
from fedstrata.core.state import with_decisions

_REGISTRATION_STATS = ("classes", "entropy")
"""What a client sends about its data when it registers (Algorithm 1, lines 1 to 5; Eq. 4)."""

_REFERENCE_TASK = "reference"
"""The task in which newcomers train the reference model."""


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """What newcomers are compared with: the clusters as they were when they were made (Section 5.4).

    Attributes:
        round: The round of the clustering (t_c).
        reference: The model that a newcomer trains, (p,).
        rounds_trained: The number of rounds whose epochs a newcomer trains, at the step size of `round`. So its weights
            and those of the clusters have been trained equally long.
        centroids: The compared columns of each cluster's model, (k, q).
        epsilon: The distance beyond which a newcomer belongs to no cluster.
    """

    round: int
    reference: torch.Tensor
    rounds_trained: int
    centroids: torch.Tensor
    epsilon: float


@dataclasses.dataclass(frozen=True)
class AdaCFLState(State):
    """Adds what clients sent about their data, and what newcomers are compared with.

    Attributes:
        client_stats: The number of classes of each client, and their entropy in bits, (n, 2); -1 until it registers.
        snapshot: The clusters as they were when they were made; None before the clustering.
    """

    client_stats: torch.Tensor
    snapshot: Snapshot | None


@dataclass(frozen=True, config=STRICT)
class AdaCFL:
    """AdaCFL: one agglomerative clustering by the weights of some layers, among clients of similar label entropy.

    Attributes:
        layers: What is compared; by default the linear layer of fewest parameters.
        cut: The distance up to which clusters merge (lambda). "auto" cuts at the largest step of the merge heights, if
            one is clear. The paper's 1.4 is for Adam at 0.01 in round 1.
        epsilon: The distance beyond which a newcomer founds a cluster. "spread" is 1.3 times the distance of the
            farthest member from the mean of its cluster's others. "auto" is the largest distance between two clusters;
            for one cluster it is the cut, or the spread. Clusters of one member each have no spread; then "spread" is
            as "auto".
        round: The first round in which clients may be clustered (t_c). They are clustered once.
        linkage: How far apart two groups are.
        precluster: Whether only clients with equally many classes and similar entropy may be grouped.
        chained: Whether the entropy's gap of 10 % is to the client just below instead of to the group's lowest.
        tolerance: The number of classes by which the members of such a group may differ.
        reference: What a newcomer trains. "initial" is the initial model, for as many rounds' epochs as the members had
            trained when they were clustered. "parent" is the one model that they shared in that round, for one round's
            epochs; it is recommended where `round` is above 1.
        compare: Whether a newcomer is compared with the clusters as they were when they were made, or as they are
            now (Algorithm 2, literally).
        quorum: The share of the members selected in a round that must have answered for the clustering to take place.
            The others are assigned afterwards as newcomers are.
    """

    source: ClassVar[str] = "Gong et al., Mobile Networks and Applications 2022"

    layers: Selectors = "smallest_linear"
    cut: Norm | Auto = "auto"
    epsilon: Norm | Auto | Literal["spread"] = "auto"
    round: PositiveInteger = 1
    linkage: Linkage = "average"
    precluster: bool = True
    chained: bool = False
    tolerance: NonNegativeInteger = 0
    reference: Literal["initial", "parent"] = "initial"
    compare: Literal["snapshot", "current"] = "snapshot"
    quorum: Share = 0.5

    def init(self, problem: Problem) -> AdaCFLState:
        """Everyone in one cluster, nobody registered."""
        self._columns(problem)  # a selector that matches no layer is an error before the first round
        client_stats = torch.full((problem.clients, len(_REGISTRATION_STATS)), -1.0)
        return extend_state(initial_state(problem), AdaCFLState, client_stats=client_stats, snapshot=None)

    def plan(self, problem: Problem, state: AdaCFLState, cohort: torch.Tensor) -> Plan:
        """Everyone trains the model of its cluster. New clients register; later they train the reference."""
        plan = fedavg_plan(problem, state, cohort)
        if state.snapshot is not None:
            return plan_newcomers(problem, state, state.snapshot, plan, self._mask(problem))
        if not self.precluster:
            return plan
        # A pending client's data may have changed since it registered.
        unknown = (state.labels[cohort] < 0) | (state.client_stats[cohort] < 0).any(dim=1)
        return replace(plan, client_stats=dict.fromkeys(_REGISTRATION_STATS, unknown))

    def update(self, problem: Problem, state: AdaCFLState, report: Report) -> tuple[AdaCFLState, Diagnostics]:
        """Algorithm 1 once, Algorithm 2 ever after, and FedAvg inside the clusters."""
        if state.snapshot is not None:
            columns, centroids, epsilon = self._comparison(problem, state, state.snapshot)
            return incorporate(problem, state, state.snapshot, report, columns, centroids, epsilon)
        state = replace(state, client_stats=with_registrations(state.client_stats, report))
        labels = assign_pending(state, report)
        result = report.results[TRAIN]
        result = result.only(result.updates.clients.argsort())
        if self.precluster:
            registered = (state.client_stats >= 0).all(dim=1)
            result = result.only(registered[result.updates.clients])
        present = len(result.chosen)
        postponed = too_few_answers(state, report, labels, present, self.quorum, first_round=self.round)
        if postponed:
            return aggregate(problem, state, report, labels, decisions={0: postponed})
        columns = self._columns(problem)
        weights = state.models[0, columns] + result.updates.values[:, columns]
        groups = self.cluster(result.updates.clients, weights, state.client_stats)
        moved, diagnostics = split_once(problem, state, report, labels, groups)
        snapshot = self._snapshot(problem, state, moved, weights, result)
        return replace(moved, snapshot=snapshot), diagnostics

    def assign(self, problem: Problem, state: AdaCFLState, report: Report) -> torch.Tensor:
        """A pending client belongs to the nearest cluster within epsilon, before the clustering to the only one."""
        if state.snapshot is None:
            return assign_pending(state, report)
        columns, centroids, epsilon = self._comparison(problem, state, state.snapshot)
        labels, _founded, _distances = nearest_clusters(state, state.snapshot, report, columns, centroids, epsilon)
        return labels.clamp(max=len(state.models))

    def evaluations(self, problem: Problem, state: State, clients: torch.Tensor) -> dict[str, Evaluation]:
        """Everyone uses the model of its cluster, a pending client the one of lowest loss on its training data."""
        return cluster_evaluation(problem, state, clients)

    def cluster(self, clients: torch.Tensor, weights: torch.Tensor, client_stats: torch.Tensor) -> Groups:
        """Algorithm 1, lines 6 to 8: pre-clusters, and in each of them agglomerative clustering.

        Args:
            clients: The clients that are compared, ascending ids (m,).
            weights: Their weights, (m, q).
            client_stats: The classes and entropies of all clients, (n, 2).
        """
        preclusters = self._preclusters(client_stats[clients])  # line 6
        groups = torch.empty_like(clients)
        layer = ", ".join(selector_tuple(self.layers))
        cuts = list[Metric]()
        matrices = list[Matrix]()
        for precluster in preclusters.unique().tolist():
            rows = preclusters == precluster
            distances = euclidean(weights[rows])  # line 7, Eq. 3
            merged, cut = cut_dendrogram(distances, self.cut, self.linkage)  # line 8
            groups[rows] = precluster * len(clients) + merged
            part = f"{layer} of pre-cluster {precluster}"
            matrices.append(Matrix(0, part, "l2", clients[rows], distances))
            if cut < torch.inf:
                cuts.append(Metric("cut", cut, layer=part))
        values = {
            "clients": float(len(clients)),
            "preclusters": float(len(matrices)),
            "groups": float(len(groups.unique())),
        }
        decision = Decision(kind="clustering_in_preclusters", layer=layer, values=values)
        return Groups(clients, groups, decision, tuple(matrices), tuple(cuts))

    def _preclusters(self, client_stats: torch.Tensor) -> torch.Tensor:
        """The pre-cluster of each client, (m,), by its classes and entropy, (m, 2) (Section 5.3)."""
        if not self.precluster:
            return torch.zeros(len(client_stats), dtype=torch.int64)
        classes, entropies = client_stats.T
        return entropy_groups(classes, entropies, chained=self.chained, tolerance=self.tolerance)

    def _mask(self, problem: Problem) -> Mask:
        """The tensors that are compared, (l,) (Section 5.2)."""
        return problem.layout.select(*selector_tuple(self.layers))

    def _columns(self, problem: Problem) -> torch.Tensor:
        """The columns that are compared, (q,)."""
        return problem.layout.columns(self._mask(problem))

    def _snapshot(
        self,
        problem: Problem,
        before: State,
        after: State,
        weights: torch.Tensor,
        result: Result,
    ) -> Snapshot:
        """What newcomers are compared with, from the models of the clients that were clustered, (m, q)."""
        clients = result.updates.clients
        # Of the members, and not of what the server makes of them: its optimiser may move a model otherwise.
        centroids = weighted_mean(Rows(clients, weights), result.sizes, after.labels[clients], len(after.models))
        spread = farthest_member(centroids, after.labels[clients], weights, result.sizes)
        reference = problem.fresh(0)
        rounds_trained = after.round
        if self.reference == "parent":
            reference = before.models[0]
            rounds_trained = 1
        return Snapshot(after.round, reference, rounds_trained, centroids, self._epsilon(centroids, spread))

    def _epsilon(self, centroids: torch.Tensor, spread: float) -> float:
        """The distance beyond which a newcomer founds a cluster (Section 5.4)."""
        if not isinstance(self.epsilon, str):
            return self.epsilon
        # Where every member is alone in its cluster, nothing is known of how far members are spread.
        if self.epsilon == "spread" and (spread < torch.inf or len(centroids) == 1):
            return spread
        if len(centroids) > 1:
            return largest_distance(centroids)
        return spread if isinstance(self.cut, str) else self.cut

    def _comparison(
        self, problem: Problem, state: State, snapshot: Snapshot
    ) -> tuple[torch.Tensor, torch.Tensor, float]:
        """What newcomers are compared by, columns (q,), and with, centroids (k, q); and epsilon."""
        columns = self._columns(problem)
        centroids = snapshot.centroids if self.compare == "snapshot" else state.models[:, columns]
        if self.epsilon == "auto" and len(centroids) > 1:
            # A cluster that a newcomer has founded since may lie farther away.
            return columns, centroids, largest_distance(centroids)
        return columns, centroids, snapshot.epsilon


def with_registrations(client_stats: torch.Tensor, report: Report) -> torch.Tensor:
    """What clients sent about their data (n, 2), with what came in a round (Algorithm 1, lines 1 to 5)."""
    client_stats = client_stats.clone()
    for column, name in enumerate(_REGISTRATION_STATS):
        if name in report.client_stats:
            rows = report.client_stats[name]
            client_stats[rows.clients, column] = rows.values[:, 0]
    return client_stats


def farthest_member(centroids: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor, sizes: torch.Tensor) -> float:
    """1.3 times the distance of the farthest member from the mean of its cluster's others: a clear step.

    Args:
        centroids: The mean of each cluster's members, weighted by their samples, (k, q).
        labels: The cluster of each member, (m,).
        weights: The weights of each member, (m, q).
        sizes: The training samples of each member, (m,).

    Returns:
        The distance; infinity where every member is alone in its cluster.
    """
    share = sizes / torch.zeros(len(centroids)).index_add(0, labels, sizes.float())[labels]
    # A member pulls its cluster's mean towards itself; a newcomer does not, so members are measured without that.
    others = ((weights - centroids[labels]).norm(dim=1) / (1 - share))[share < 1]
    return CLEAR_STEP * float(others.max()) if len(others) else torch.inf


def largest_distance(centroids: torch.Tensor) -> float:
    """The largest distance between two of the centroids (k, q): epsilon of Section 5.4."""
    return float(euclidean(centroids).max())


def plan_newcomers(problem: Problem, state: State, snapshot: Snapshot, plan: Plan, upload: Mask) -> Plan:
    """Let the pending clients of a plan train the reference and send what is compared (Algorithm 2, lines 1 and 2).

    Args:
        problem: What is fixed for the run.
        state: The state after the clustering.
        snapshot: The clusters as they were when they were made.
        plan: In which everyone trains the model of its cluster.
        upload: The tensors that are compared, (l,).
    """
    labels = state.labels[plan.cohort]
    if bool((labels >= 0).all()):
        return plan
    reference = len(plan.models)
    training = problem.training_of(snapshot.round)
    joining = replace(
        plan.tasks[TRAIN],
        candidates=torch.where(labels < 0, reference, -1)[:, None],
        training=training.times(snapshot.rounds_trained),
        upload=upload,
    )
    staying = replace(plan.tasks[TRAIN], candidates=labels[:, None])
    models = torch.cat([plan.models, snapshot.reference[None]])
    return replace(plan, models=models, tasks={TRAIN: staying, _REFERENCE_TASK: joining})


def nearest_clusters(
    state: State,
    snapshot: Snapshot,
    report: Report,
    columns: torch.Tensor,
    centroids: torch.Tensor,
    epsilon: float,
) -> tuple[torch.Tensor, torch.Tensor, dict[int, float]]:
    """The cluster of each newcomer that answered, in the order of their ids (Algorithm 2, lines 3 to 5).

    Args:
        state: The state after the clustering.
        snapshot: The snapshot with the reference that the newcomers trained.
        report: The report of the plan of `plan_newcomers`.
        columns: What is compared, (q,).
        centroids: The centroid of each cluster, (k, q).
        epsilon: The distance beyond which a newcomer founds a cluster. Later newcomers may join it.

    Returns:
        The labels of all clients (n,), the centroids of the founded clusters (f, q), whose labels count on from k, and
        the distance of each newcomer to the nearest centroid.
    """
    labels = state.labels.clone()
    k = len(centroids)
    distances = dict[int, float]()
    if _REFERENCE_TASK not in report.results:
        return labels, centroids[k:], distances
    updates = report.results[_REFERENCE_TASK].updates
    for row in updates.clients.argsort().tolist():
        client = int(updates.clients[row])
        weights = snapshot.reference[columns] + updates.values[row, columns]
        away = (centroids.double() - weights.double()).norm(dim=1)
        label = int(away.argmin())  # Eq. 5
        distances[client] = float(away[label])
        if distances[client] > epsilon:
            label = len(centroids)
            centroids = torch.cat([centroids, weights[None]])
        labels[client] = label
    return labels, centroids[k:], distances


def incorporate(
    problem: Problem,
    state: AdaCFLState,
    snapshot: Snapshot,
    report: Report,
    columns: torch.Tensor,
    centroids: torch.Tensor,
    epsilon: float,
) -> tuple[AdaCFLState, Diagnostics]:
    """Average inside the clusters, assign the newcomers, and let those beyond epsilon found clusters.

    A newcomer's update was not trained from its cluster's model, so it does not move it. The newcomer receives that
    model from the next round on. A founded cluster starts from the reference with the columns that its founder sent:
    all that the server has of it. With ``problem.min_cluster`` above 1 it starts from the reference alone, as the
    columns are those of one client. The arguments are those of `nearest_clusters`.
    """
    labels, founded, distances = nearest_clusters(state, snapshot, report, columns, centroids, epsilon)
    models = snapshot.reference.repeat(len(founded), 1)
    if problem.min_cluster == 1:
        models[:, columns] = founded
    k = len(state.models)
    parents = torch.cat([torch.arange(k), torch.full((len(founded),), -1)])
    decisions = founding_decisions(labels, distances, epsilon)
    # The only cluster that there was is below the first node from now on, beside the first that is founded.
    split = {0: decisions[k]} if k == 1 and decisions else {}
    moved, diagnostics = aggregate(problem, state, report, labels, parents, split, models)
    of_nodes = {int(moved.nodes[label]): decision for label, decision in decisions.items()}
    events = [
        {"kind": "place", "client": client, "node": int(moved.nodes[labels[client]]), "distance": distance}
        for client, distance in distances.items()
    ]
    moved = replace(
        moved,
        tree=with_decisions(moved.tree, of_nodes),
        snapshot=replace(snapshot, centroids=torch.cat([snapshot.centroids, founded])),
    )
    return moved, replace(diagnostics, events=(*diagnostics.events, *events))


def founding_decisions(labels: torch.Tensor, distances: Mapping[int, float], epsilon: float) -> dict[int, Decision]:
    """What the tree says about each founded cluster, by its label.

    Args:
        labels: The cluster of each client, (n,).
        distances: The distance of each newcomer to the nearest centroid, by client.
        epsilon: The distance beyond which a newcomer founded a cluster.
    """
    decisions = dict[int, Decision]()
    for client, distance in distances.items():
        if distance > epsilon:
            values = {"client": float(client), "distance": distance, "epsilon": epsilon}
            decisions[int(labels[client])] = Decision(kind="newcomer_beyond_epsilon", values=values)
    return decisions
