"""Cluster once, early, by the weights of the smallest linear layer; a newcomer joins the nearest cluster or founds one.

Gong, Xing, Liu, Wang, Liu, "Adaptive clustered federated learning for heterogeneous data in edge computing",
Mobile Networks and Applications 2022: Algorithm 1 (Adaptive Clustering) and Algorithm 2 (Incorporating New Client).
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass

from fedstrata import core
from fedstrata.algorithms.keys import STRICT, Auto, NonNegative, PositiveInteger, Selectors, selector_tuple
from fedstrata.algorithms.one_shot import Groups, split_once, why_not_yet
from fedstrata.base.lazy_torch import torch
from fedstrata.base.limits import Share
from fedstrata.clustering import agglomerate, euclidean, silhouette_cut
from fedstrata.clustering.arrays import renumbered
from fedstrata.core.aggregation import weighted_mean
from fedstrata.core.state import with_decisions

_REGISTRATION_STATS = ("classes", "entropy")
"""What a client sends about its data when it registers (Algorithm 1, lines 1 to 5). Eq. 4 is `clustering.entropy`; the
client counts, in `engine.client_data.client_stat`."""

_ENTROPY_GAP = 0.1
"""How far the entropy of a client may be above the lowest of its pre-cluster, as a share of it (Section 5.3)."""

_NEWCOMER_MARGIN = 1.3
"""How much farther from the only cluster than its farthest member a newcomer may be. Not fitted to any data."""

_REFERENCE_TASK = "reference"
"""The task in which newcomers train the initial model."""


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """What newcomers are compared with: the clusters as they were when they were made (Section 5.4).

    Attributes:
        round: The round of the clustering (t_c, our symbol). A newcomer trains for so many rounds' epochs at the step
            size of this round: as long as the clusters were. The paper does not say from which model, nor how long.
        reference: The initial model, which a newcomer trains, (p,).
        centroids: The compared weights of each cluster (theta-hat_g; ours is the mean of its members), (k, q).
        single_epsilon: Epsilon while there is one cluster, for which Section 5.4 has none.
    """

    round: int
    reference: torch.Tensor
    centroids: torch.Tensor
    single_epsilon: float


@dataclasses.dataclass(frozen=True)
class AdaCFLState(core.State):
    """Adds what clients sent about their data, and what newcomers are compared with.

    Attributes:
        client_stats: The number of classes of each client, and their entropy in bits, (n, 2); -1 until it registers.
        snapshot: The clusters as they were when they were made; None before the clustering.
    """

    client_stats: torch.Tensor
    snapshot: Snapshot | None


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where newcomers go (Algorithm 2, lines 3 to 5).

    Attributes:
        labels: The cluster of each client, (n,). Clusters that newcomers found count on from k.
        founded: The compared weights of the founder of each such cluster, (f, q).
        distances: The distance of each newcomer to the nearest cluster, by client.
        epsilon: The distance beyond which they found clusters.
    """

    labels: torch.Tensor
    founded: torch.Tensor
    distances: dict[int, float]
    epsilon: float


@dataclass(frozen=True, config=STRICT)
class AdaCFL(core.Algorithm[AdaCFLState]):
    """AdaCFL: one agglomerative clustering by the weights of some layers, among clients of similar label entropy.

    Attributes:
        layers: What is compared; by default the linear layer of fewest parameters.
        cut: The distance up to which clusters merge (lambda), in average linkage: the paper names none, and sets lambda
            "depending on the obtained hierarchy". "auto" takes the cut of highest mean silhouette, if it is above
            0.25; otherwise all clients of a pre-cluster are one cluster. Of the settings that we tried, the paper's
            1.4 fits only Adam at 0.01 in round 1.
        epsilon: The distance beyond which a newcomer founds a cluster. "auto" is the largest distance between two
            clusters; the experiments have 1.8. The rule for one cluster is ours: the cut, or where that is "auto", 1.3
            times the distance of the farthest member from the mean of the others.
        round: The first round in which clients may be clustered (t_c, our symbol). The paper says "after several
            communication rounds"; 1 is taken because Table 2 has AdaCFL's final accuracy in round 2.
        precluster: Whether only clients with equally many classes and similar entropy may be grouped.
        compare: Whether a newcomer is compared with the clusters as they were when they were made, or as they are
            now (Algorithm 2, literally).
        quorum: The share of the members selected in a round that must have answered for the clustering to take place.
            The others are assigned afterwards as newcomers are.
    """

    source: ClassVar[str] = "Gong et al., Mobile Networks and Applications 2022"

    layers: Selectors = "smallest_linear"
    cut: NonNegative | Auto = "auto"
    epsilon: NonNegative | Auto = "auto"
    round: PositiveInteger = 1
    # Not in the paper: to leave the pre-clusters out, the snapshot, and the quorum.
    precluster: bool = True
    compare: Literal["snapshot", "current"] = "snapshot"
    quorum: Share = 0.5

    def init(self, problem: core.Problem) -> AdaCFLState:
        """Everyone in one cluster, nobody registered."""
        self._compared(problem)  # a selector that matches no layer is an error before the first round
        client_stats = torch.full((problem.clients, len(_REGISTRATION_STATS)), -1.0)
        return core.extend_state(core.initial_state(problem), AdaCFLState, client_stats=client_stats, snapshot=None)

    def plan(self, problem: core.Problem, state: AdaCFLState, cohort: torch.Tensor) -> core.Plan:
        """Everyone trains its cluster's model. The unregistered register; newcomers later train the initial model."""
        plan = core.fedavg_plan(problem, state, cohort)
        snapshot = state.snapshot
        pending = state.labels[cohort] < 0
        if snapshot is None:
            # Algorithm 1, lines 1 to 5. A pending client's data may have changed since it registered.
            unknown = pending | (state.client_stats[cohort] < 0).any(dim=1)
            return replace(plan, client_stats=dict.fromkeys(_REGISTRATION_STATS, unknown)) if self.precluster else plan
        if not bool(pending.any()):
            return plan
        # Algorithm 2, lines 1 and 2: newcomers train the initial model and send what is compared.
        staying = replace(plan.tasks[core.TRAIN], candidates=state.labels[cohort, None])
        joining = replace(
            staying,
            candidates=torch.where(pending, len(plan.models), -1)[:, None],
            training=problem.training_of(snapshot.round).times(snapshot.round),
            upload=self._compared(problem),
        )
        models = torch.cat([plan.models, snapshot.reference[None]])
        return replace(plan, models=models, tasks={core.TRAIN: staying, _REFERENCE_TASK: joining})

    def update(
        self, problem: core.Problem, state: AdaCFLState, report: core.Report
    ) -> tuple[AdaCFLState, core.Diagnostics]:
        """Algorithm 1 once, Algorithm 2 ever after, and FedAvg inside the clusters."""
        if state.snapshot is not None:
            return self._incorporate(problem, state, state.snapshot, report)
        client_stats = state.client_stats.clone()  # Algorithm 1, lines 1 to 5
        for column, name in enumerate(_REGISTRATION_STATS):
            if name in report.client_stats:
                rows = report.client_stats[name]
                client_stats[rows.clients, column] = rows.values[:, 0]
        state = replace(state, client_stats=client_stats)
        labels = core.assign_pending(state, report)
        result = report.results[core.TRAIN]
        result = result.only(result.updates.clients.argsort())
        if self.precluster:  # The statistics of a client that trained may be missing.
            registered = (state.client_stats >= 0).all(dim=1)
            result = result.only(registered[result.updates.clients])
        clients = result.updates.clients
        # FedAvg until round t_c (Section 5.1), and until enough have answered.
        postponed = why_not_yet(state, report, labels, len(clients), self.quorum, first_round=self.round)
        if postponed:
            return core.aggregate(problem, state, report, labels, decisions={0: postponed})
        columns = problem.layout.columns(self._compared(problem))
        weights = state.models[0, columns] + result.updates.values[:, columns]  # partial weights (Section 5.2)
        groups = self.cluster(clients, weights, state.client_stats[clients])  # lines 6 to 8
        moved, diagnostics = split_once(problem, state, report, labels, groups)
        # Centroids are means of the members' weights, not the new models: the server's optimiser may move those.
        own = moved.labels[clients]
        centroids = weighted_mean(core.Rows(clients, weights), result.sizes, own, len(moved.models))
        of_single = single_epsilon(centroids, own, weights, result.sizes)
        snapshot = Snapshot(moved.round, problem.fresh(0), centroids, of_single)  # fresh(0) is the initial model
        return replace(moved, snapshot=snapshot), diagnostics

    def assign(self, problem: core.Problem, state: AdaCFLState, report: core.Report) -> torch.Tensor:
        """A pending client belongs to the nearest cluster within epsilon, before the clustering to the only one."""
        if state.snapshot is None:
            return core.assign_pending(state, report)
        return self._place(problem, state, state.snapshot, report).labels.clamp(max=len(state.models))

    def cluster(self, clients: torch.Tensor, weights: torch.Tensor, client_stats: torch.Tensor) -> Groups:
        """Algorithm 1, lines 6 to 8: pre-clusters, and in each of them agglomerative clustering.

        Args:
            clients: The clients that are compared, ascending ids (m,).
            weights: Their weights, (m, q).
            client_stats: Their classes and entropies, (m, 2).
        """
        preclusters = entropy_groups(client_stats) if self.precluster else torch.zeros_like(clients)  # line 6
        groups = torch.empty_like(clients)
        layer = ", ".join(selector_tuple(self.layers))
        cuts = list[core.Metric]()
        matrices = list[core.Matrix]()
        for precluster in preclusters.unique().tolist():
            rows = preclusters == precluster
            distances = euclidean(weights[rows])  # line 7, Eq. 3
            cut = silhouette_cut(distances, "average") if isinstance(self.cut, str) else self.cut
            groups[rows] = agglomerate(distances, cut, "average") + precluster * len(clients)  # line 8; no number twice
            part = f"{layer} of pre-cluster {precluster}"
            matrices.append(core.Matrix(0, part, "l2", clients[rows], distances))
            if cut < torch.inf:
                cuts.append(core.Metric("cut", cut, layer=part))
        values = {
            "clients": float(len(clients)),
            "preclusters": float(len(matrices)),
            "groups": float(len(groups.unique())),
        }
        decision = core.Decision(kind="clustering_in_preclusters", layer=layer, values=values)
        return Groups(clients, groups, decision, tuple(matrices), tuple(cuts))

    def _compared(self, problem: core.Problem) -> core.Mask:
        """The compared tensors, (l,) (Section 5.2: fewest parameters, as its text says; its formula has an l1 norm)."""
        return problem.layout.select(*selector_tuple(self.layers))

    def _epsilon(self, centroids: torch.Tensor, of_single: float) -> float:
        """The distance beyond which a newcomer founds a cluster (Section 5.4)."""
        if not isinstance(self.epsilon, str):
            return self.epsilon
        if len(centroids) > 1:
            return float(euclidean(centroids).max())
        return of_single if isinstance(self.cut, str) else self.cut

    def _place(self, problem: core.Problem, state: core.State, snapshot: Snapshot, report: core.Report) -> Placement:
        """Algorithm 2, lines 3 to 5: the nearest cluster of each newcomer that answered, in the order of their ids."""
        columns = problem.layout.columns(self._compared(problem))
        compared = snapshot.centroids if self.compare == "snapshot" else state.models[:, columns]
        # Once a round (Algorithm 2 takes one newcomer at a time); clusters founded since may lie farther apart.
        epsilon = self._epsilon(compared, snapshot.single_epsilon)
        labels = state.labels.clone()
        k = len(compared)
        distances = dict[int, float]()
        if _REFERENCE_TASK not in report.results:
            return Placement(labels, compared[k:], distances, epsilon)
        updates = report.results[_REFERENCE_TASK].updates
        for row in updates.clients.argsort().tolist():
            client = int(updates.clients[row])
            weights = snapshot.reference[columns] + updates.values[row, columns]
            away = (compared.double() - weights.double()).norm(dim=1)
            label = int(away.argmin())  # line 4, Eq. 5
            distances[client] = float(away[label])
            if distances[client] > epsilon:  # Section 5.4; later newcomers may join it
                label = len(compared)
                compared = torch.cat([compared, weights[None]])
            labels[client] = label  # line 5
        return Placement(labels, compared[k:], distances, epsilon)

    def _incorporate(
        self, problem: core.Problem, state: AdaCFLState, snapshot: Snapshot, report: core.Report
    ) -> tuple[AdaCFLState, core.Diagnostics]:
        """Average inside the clusters, assign the newcomers, and let those beyond epsilon found clusters.

        A newcomer's update was not trained from its cluster's model, so it does not move it; Section 5.4 updates that
        model by its data. The newcomer receives the model from the next round on. A founded cluster starts from the
        initial model with the columns that its founder sent: all that the server has of it. Where a mean needs several
        clients, it starts from the initial model alone.
        """
        placed = self._place(problem, state, snapshot, report)
        models = snapshot.reference.repeat(len(placed.founded), 1)
        if problem.aggregation.least_clients == 1:
            models[:, problem.layout.columns(self._compared(problem))] = placed.founded
        k = len(state.models)
        parents = torch.cat([torch.arange(k), torch.full((len(models),), -1)])
        founders = {client: away for client, away in placed.distances.items() if away > placed.epsilon}
        decisions = {
            int(placed.labels[client]): core.Decision(
                kind="newcomer_beyond_epsilon",
                values={"client": float(client), "distance": away, "epsilon": placed.epsilon},
            )
            for client, away in founders.items()
        }
        # With one cluster, its node was the root; the root is split now into it and the first founded one.
        split = {0: decisions[k]} if k == 1 and decisions else {}
        moved, diagnostics = core.aggregate(problem, state, report, placed.labels, parents, split, models)
        of_nodes = {int(moved.nodes[label]): decision for label, decision in decisions.items()}
        foundings = [{"kind": "found", "node": node, "clients": list(moved.tree[node].members)} for node in of_nodes]
        placings = [
            {"kind": "place", "client": client, "node": int(moved.nodes[placed.labels[client]]), "distance": away}
            for client, away in placed.distances.items()
        ]
        moved = replace(
            moved,
            tree=with_decisions(moved.tree, of_nodes),
            snapshot=replace(snapshot, centroids=torch.cat([snapshot.centroids, placed.founded])),
        )
        return moved, replace(diagnostics, events=(*diagnostics.events, *foundings, *placings))


def entropy_groups(client_stats: torch.Tensor) -> torch.Tensor:
    """Group clients that hold equally many classes with nearly the same entropy (Algorithm 1, line 6).

    The paper compares the number of classes, not which they are: two clients with two other classes each may be
    grouped, and their weights tell them apart later. It says "a gap of 10 %" and not of what. Here clients are
    sorted by entropy, and one opens a new group when its entropy exceeds 1.1 times that of the group's first client,
    which bounds how far the members of a group differ.

    Args:
        client_stats: The number of classes of each client, and their entropy in bits, (m, 2).

    Returns:
        (m,) int64 labels, numbered by the smallest member of each group.
    """
    groups = torch.empty(len(client_stats), dtype=torch.int64)
    first: dict[float, tuple[float, int]] = {}  # number of classes -> entropy and row of the group's first client
    for row in client_stats[:, 1].argsort(stable=True).tolist():
        classes, entropy = client_stats[row].tolist()
        lowest, opener = first.get(classes, (entropy, row))
        if entropy > (1 + _ENTROPY_GAP) * lowest:
            lowest = entropy
            opener = row
        first[classes] = (lowest, opener)
        groups[row] = opener
    return torch.from_numpy(renumbered(groups))


def single_epsilon(centroids: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor, sizes: torch.Tensor) -> float:
    """Epsilon of one cluster: 1.3 times the distance of the farthest member from the mean of the others.

    Args:
        centroids: The mean of each cluster's members, weighted by their samples, (k, q).
        labels: The cluster of each member, (m,).
        weights: The weights of each member, (m, q).
        sizes: The training samples of each member, (m,).

    Returns:
        The distance; infinity where every member is alone in its cluster.
    """
    share = sizes / torch.zeros(len(centroids)).index_add(0, labels, sizes.float())[labels]
    # A newcomer does not pull a mean, so neither may a member: |w - mean of others| = |w - mean| / (1 - share).
    others = ((weights - centroids[labels]).norm(dim=1) / (1 - share))[share < 1]
    return _NEWCOMER_MARGIN * float(others.max()) if len(others) else torch.inf
