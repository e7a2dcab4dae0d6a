"""One-shot clustering: everyone trains one model until enough clients can be compared; then they are grouped once.

FL+HC, FeSEM and AdaCFL compare what one round trained. FedClust, PACFL and FLIS compare signatures. An update ages
with the model that it was trained from. A signature does not: it depends on the client's data alone, or on training
from the initial model. So signatures are collected over the rounds, and that of a newcomer is compared with those that
were sent long before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from fedstrata import core
from fedstrata.base.lazy_torch import torch
from fedstrata.clustering import agglomerate, silhouette_cut
from fedstrata.clustering.arrays import renumbered
from fedstrata.clustering.hierarchy import Linkage
from fedstrata.core.state import StateT

_MIN_GROUPED_CLIENTS = 2
"""Fewer clients cannot be grouped."""

SIGNATURE_TASK = "signature"
"""The task whose updates, or what is made of them, are the signatures."""

Distance = Callable[[torch.Tensor], torch.Tensor]
"""Rows (m, q) -> distances (m, m)."""


def why_not_yet(
    state: core.State,
    report: core.Report,
    labels: torch.Tensor,
    present: int,
    quorum: float,
    min_clients: int = _MIN_GROUPED_CLIENTS,
    first_round: int = 1,
) -> core.Decision | None:
    """Why the clients cannot be grouped in this round; None where they can.

    Only what the same round trained is compared, so the quorum is a share of the members that were selected in it.

    Args:
        state: The state before the round.
        report: The report of the round.
        labels: The label of each client, (n,): 0 for a member of the only cluster, -1 for a pending client.
        present: The number of members that can be compared.
        quorum: The share of the selected members that must be present.
        min_clients: The number of members that must be present.
        first_round: The first round in which clients are grouped.
    """
    values = {
        "present": float(present),
        "members": float(core.members_in_cohort(report, labels >= 0).sum()),
        "min_clients": float(min_clients),
        "quorum": quorum,
        "first_round": float(first_round),
    }
    enough = present >= min_clients and present / values["members"] >= quorum
    if enough and state.round + 1 >= first_round:
        return None
    return core.Decision(kind="too_few_answers", values=values)


@dataclass(frozen=True)
class Groups:
    """Which clients belong together.

    Attributes:
        clients: Those that were compared, ascending ids (m,).
        labels: The group of each, (m,) int64, any numbers.
        decision: What the tree says about it.
        matrices: The distances by which they were compared.
        metrics: What else the page of the run shows about the comparison.
    """

    clients: torch.Tensor
    labels: torch.Tensor
    decision: core.Decision
    matrices: tuple[core.Matrix, ...]
    metrics: tuple[core.Metric, ...] = ()


def agglomerative_groups(
    clients: torch.Tensor,
    distances: torch.Tensor,
    cut: float | str,
    linkage: Linkage,
    layer: str,
    measure: str,
    resolution: float = 0.0,
) -> Groups:
    """Group clients by one agglomerative clustering.

    Args:
        clients: Ascending ids (m,).
        distances: Between them, (m, m).
        cut: The distance up to which groups merge; ``"auto"`` is that of `silhouette_cut`.
        linkage: How far apart two groups are.
        layer: The name of what is compared.
        measure: The name of the distance.
        resolution: The smallest difference of two distances that means something.
    """
    height = silhouette_cut(distances, linkage, resolution) if isinstance(cut, str) else cut
    labels = agglomerate(distances, height, linkage)
    values = {"groups": float(labels.max()) + 1, "clients": float(len(clients))}
    if height < torch.inf:
        values["cut"] = height
    decision = core.Decision(kind="agglomerative_clustering", layer=layer, values=values)
    return Groups(clients, labels, decision, (core.Matrix(0, layer, measure, clients, distances),))


def split_once(
    problem: core.Problem,
    state: StateT,
    report: core.Report,
    labels: torch.Tensor,
    groups: Groups,
    *,
    asked: bool = True,
) -> tuple[StateT, core.Diagnostics]:
    """Split the only cluster into groups, and average inside them.

    Args:
        problem: What is fixed for the run.
        state: The state before the round, with one cluster.
        report: Its result of the task ``"train"`` holds the updates that move the models.
        labels: The label of each client, (n,): 0 for a member of the only cluster, -1 for a pending client.
        groups: Who belongs together. The other clients become pending if there is a split.
        asked: As in `aggregate`.
    """
    own = torch.from_numpy(renumbered(groups.labels))
    parents = torch.zeros(int(own.max()) + 1, dtype=torch.int64)
    # Where all clients are in one group, those that were not compared have nothing to wait for.
    rest = torch.full_like(labels, -1) if len(parents) > 1 else labels
    moved, diagnostics = core.aggregate(
        problem, state, report, rest.index_copy(0, groups.clients, own), parents, {0: groups.decision}, asked=asked
    )
    return moved, replace(diagnostics, matrices=groups.matrices, metrics=(*diagnostics.metrics, *groups.metrics))


@dataclass(frozen=True)
class SignatureState(core.State):
    """Adds the round of the clustering, and the signatures by which clients are compared.

    Attributes:
        clustered: The round in which the clients were grouped; 0 before it.
        signatures: The signature of each client, (n, q); q is 0 before the first has come.
        known: Which clients have sent a signature, bool (n,).
        last_cluster: The cluster in which each client is or was last, (n,); -1 where it was in none.
    """

    clustered: int
    signatures: torch.Tensor
    known: torch.Tensor
    last_cluster: torch.Tensor


def signature_state(problem: core.Problem) -> SignatureState:
    """Everyone in one cluster, no signature sent yet."""
    n = problem.clients
    return core.extend_state(
        core.initial_state(problem),
        SignatureState,
        clustered=0,
        signatures=torch.zeros(n, 0),
        known=torch.zeros(n, dtype=torch.bool),
        last_cluster=torch.full((n,), -1),
    )


def must_send(state: SignatureState, cohort: torch.Tensor) -> torch.Tensor:
    """Which clients of the cohort must send a signature, bool (m,).

    Pending clients must. Before the clustering, clients that have not sent one must too.
    """
    pending = state.labels[cohort] < 0
    return pending if state.clustered else pending | ~state.known[cohort]


def signature_plan(problem: core.Problem, state: SignatureState, cohort: torch.Tensor, upload: core.Mask) -> core.Plan:
    """Whoever must send a signature trains the initial model; the others train the model of their cluster.

    Before the clustering the others have no work, so no model moves. Every signature is trained as in round 1.

    Args:
        problem: What is fixed for the run.
        state: The state before the round.
        cohort: The clients that take part, (m,).
        upload: The tensors that are sent as the signature, (l,).
    """
    plan = core.fedavg_plan(problem, state, cohort)
    task = plan.tasks[core.TRAIN]
    sending = must_send(state, cohort)
    cluster = state.labels[cohort] if state.clustered else torch.full_like(cohort, -1)
    training = replace(task, candidates=torch.where(sending, -1, cluster)[:, None])
    signature = replace(
        task,
        candidates=torch.where(sending, len(state.models), -1)[:, None],
        training=problem.training_of(1),
        upload=upload,
    )
    models = torch.cat([state.models, problem.fresh(0)[None]])
    return replace(plan, models=models, tasks={core.TRAIN: training, SIGNATURE_TASK: signature})


def with_signatures(state: SignatureState, new: core.Rows) -> SignatureState:
    """The state with the signatures (m, q) that have come."""
    if not len(new.clients):
        return state
    n = len(state.labels)
    q = new.values.shape[1]
    signatures = state.signatures if state.signatures.shape[1] else torch.zeros(n, q)
    return replace(
        state,
        signatures=signatures.index_copy(0, new.clients, new.values),
        known=state.known.index_fill(0, new.clients, True),
    )


def split_by_signatures(
    problem: core.Problem,
    state: SignatureState,
    report: core.Report,
    labels: torch.Tensor,
    groups: Groups,
    *,
    asked: bool = True,
) -> tuple[SignatureState, core.Diagnostics]:
    """Split the only cluster into groups of clients with like signatures. The arguments are those of `split_once`."""
    moved, diagnostics = split_once(problem, state, report, labels, groups, asked=asked)
    return _with_last_clusters(replace(moved, clustered=moved.round)), diagnostics


def aggregate_clustered(
    problem: core.Problem, state: SignatureState, report: core.Report, labels: torch.Tensor
) -> tuple[SignatureState, core.Diagnostics]:
    """FedAvg inside the clusters, after the clustering. The arguments are those of `aggregate`."""
    moved, diagnostics = core.aggregate(problem, state, report, labels)
    return _with_last_clusters(moved), diagnostics


def _with_last_clusters(state: SignatureState) -> SignatureState:
    """The state with the cluster in which each client is now, as the last one that it was in."""
    return replace(state, last_cluster=torch.where(state.labels >= 0, state.labels, state.last_cluster))


def member_signatures(state: SignatureState, labels: torch.Tensor) -> core.Rows:
    """The signatures of the clients that are in a cluster and have sent one, in the order of their ids."""
    clients = (state.known & (labels >= 0)).nonzero().flatten()
    return core.Rows(clients, state.signatures[clients])


def too_few_signatures(labels: torch.Tensor, present: int, quorum: float) -> core.Decision | None:
    """Why the clients cannot be grouped by their signatures; None where they can.

    Signatures of earlier rounds are as good as those of this one, so the quorum is a share of all members.

    Args:
        labels: The label of each client, (n,): 0 for a member of the only cluster, -1 for a pending client.
        present: The number of members that have sent a signature.
        quorum: The share of the members that must have sent one.
    """
    members = int((labels >= 0).sum())
    if present >= _MIN_GROUPED_CLIENTS and present / members >= quorum:
        return None
    values = {
        "present": float(present),
        "members": float(members),
        "min_clients": float(_MIN_GROUPED_CLIENTS),
        "quorum": quorum,
    }
    return core.Decision(kind="too_few_signatures", values=values)


def assign_by_signature(state: SignatureState, new: core.Rows, distance: Distance, linkage: Linkage) -> torch.Tensor:
    """The labels (n,) once pending clients have joined the cluster whose members have the nearest signatures.

    A cluster that has lost all its members is as near as those that were in it last.

    Args:
        state: The state before the round. Before the clustering it has one cluster.
        new: The signatures that came in the round, (m, q).
        distance: Between signatures.
        linkage: How far a client is from a cluster: as far as the nearest member, the farthest, or their average.
    """
    labels = state.labels.clone()
    emptied = ~torch.isin(state.last_cluster, state.labels)
    compared = torch.where((state.labels < 0) & emptied, state.last_cluster, state.labels)
    members = member_signatures(state, compared)
    pending = new.clients[labels[new.clients] < 0].sort().values
    if not len(pending):
        return labels
    if not state.clustered or not len(members.clients):
        return labels.index_fill(0, pending, 0)  # there is one cluster, or no signature to compare with
    both = torch.cat([new.of(pending), members.values])
    between = distance(both)[: len(pending), len(pending) :]
    away = torch.full((len(pending), len(state.models)), torch.inf, dtype=between.dtype)
    cluster_of = compared[members.clients]
    for cluster in cluster_of.unique().tolist():
        own = between[:, cluster_of == cluster]
        away[:, cluster] = {"single": own.amin(1), "complete": own.amax(1), "average": own.mean(1)}[linkage]
    return labels.index_copy(0, pending, away.argmin(dim=1))
