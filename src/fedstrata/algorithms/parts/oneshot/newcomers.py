"""How clients that come after the one clustering find their cluster: by what a reference model becomes on their data.

AdaCFL, section 5.4 and Algorithm 2. A newcomer trains the reference for as long as the members had when they were
clustered, so that its weights and those of the clusters at that time are of one age.
"""

from __future__ import annotations

from dataclasses import replace

from fedstrata.algorithms.parts.oneshot.snapshots import N, Snapshots
from fedstrata.core import Decision, Diagnostics, Mask, Plan, Problem, Report, aggregate
from fedstrata.core.tree import with_decisions
from fedstrata.lazy_torch import torch


def invite(problem: Problem, state: Snapshots, plan: Plan, upload: Mask) -> Plan:
    """Let the pending clients of a plan train the reference, and send back only what is compared."""
    labels, k = state.labels[plan.cohort], len(plan.models)
    if bool((labels >= 0).all()):
        return plan
    training = problem.training_of(state.clustered)
    joining = replace(
        plan.tasks[0],
        candidates=torch.where(labels < 0, k, -1)[:, None],
        training=replace(training, epochs=state.age * training.epochs),
        upload=upload,
    )
    staying = replace(plan.tasks[0], candidates=labels[:, None])
    return replace(plan, models=torch.cat([plan.models, state.reference[None]]), tasks=(staying, joining))


def nearest(
    state: Snapshots, report: Report, columns: torch.Tensor, centroids: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor, dict[int, float]]:
    """Compare the newcomers that answered with the clusters, in the order of their ids.

    Args:
        state: after the clustering.
        report: of the plan to which they were invited.
        columns: those that are compared, (q,).
        centroids: of the clusters, (k, q).
        epsilon: distance beyond which a newcomer founds a cluster, which those after it may join.

    Returns:
        The labels of all clients, (n,); the centroids of the founded clusters, (f, q), whose labels count on from k;
        and the distance of each newcomer to the centroid that was nearest.
    """
    labels, k, distances = state.labels.clone(), len(centroids), dict[int, float]()
    for result in report.results[1:]:
        for row in result.updates.clients.argsort().tolist():
            client = int(result.updates.clients[row])
            weights = state.reference[columns] + result.updates.values[row, columns]
            away = (centroids.double() - weights.double()).norm(dim=1)
            label = int(away.argmin())  # Eq. 5
            distances[client] = float(away[label])
            if distances[client] > epsilon:
                label, centroids = len(centroids), torch.cat([centroids, weights[None]])
            labels[client] = label
    return labels, centroids[k:], distances


def incorporate(
    problem: Problem, state: N, report: Report, columns: torch.Tensor, centroids: torch.Tensor, epsilon: float
) -> tuple[N, Diagnostics]:
    """Average inside the clusters, give the newcomers theirs, and let those beyond epsilon found one.

    A newcomer's row was not trained from its cluster's model, so it does not move it; the newcomer has that model
    from the next round on. A founded cluster starts from the reference with the columns that its founder sent:
    all that the server has of it.
    """
    labels, found, distances = nearest(state, report, columns, centroids, epsilon)
    models = state.reference.repeat(len(found), 1)
    models[:, columns] = found
    k = len(state.models)
    decisions = {
        int(labels[client]): Decision(
            f"client {client} was {distance:.4g} away from the nearest cluster, beyond epsilon = {epsilon:.4g}",
            values={"distance": distance, "epsilon": epsilon},
        )
        for client, distance in distances.items()
        if distance > epsilon
    }
    parents = torch.cat([torch.arange(k), torch.full((len(found),), -1)])
    # The only cluster that there was hangs below the first node from now on, beside the first that is founded.
    why = {0: decisions[k]} if k == 1 and decisions else {}
    moved, diagnostics = aggregate(problem, state, report, labels, parents, why, models)
    tree = with_decisions(moved.tree, {int(moved.nodes[label]): decision for label, decision in decisions.items()})
    events = [
        {"kind": "place", "client": client, "node": int(moved.nodes[labels[client]]), "distance": distance}
        for client, distance in distances.items()
    ]
    moved = replace(moved, tree=tree, centroids=torch.cat([state.centroids, found]))
    return moved, replace(diagnostics, events=(*diagnostics.events, *events))
