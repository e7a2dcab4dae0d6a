"""What the algorithms that group clients by a signature have in common: gathering signatures, and placing by them.

An update ages with the model that it was trained from. A signature does not: it is of the client's data alone, or of
training from the initial model. So signatures are gathered until enough clients have sent theirs, and a newcomer's is
compared with those that were sent long before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedstrata.algorithms.parts.keys import Linkage
from fedstrata.algorithms.parts.oneshot.grouping import Clustered, Distance, Quorum
from fedstrata.core import Mask, Plan, Problem, Rows, fedavg_plan, initial_state
from fedstrata.lazy_torch import torch


@dataclass(frozen=True)
class Signed(Clustered):
    """Adds what clients are grouped by.

    Attributes:
        signatures: of each client, (n, q); q is 0 before the first has come.
        known: who has sent one, (n,) bool.
    """

    signatures: torch.Tensor
    known: torch.Tensor


def unsigned(problem: Problem) -> Signed:
    """Everyone in one cluster, no signature sent yet."""
    nobody = torch.zeros(problem.clients, dtype=torch.bool)
    return Signed(**vars(initial_state(problem)), clustered=0, signatures=torch.zeros(problem.clients, 0), known=nobody)


def unknown(state: Signed, cohort: torch.Tensor) -> torch.Tensor:
    """Who of the cohort has to send a signature, (m,) bool: until the clustering everybody, then who is pending."""
    pending = state.labels[cohort] < 0
    return pending if state.clustered else pending | ~state.known[cohort]


def register(problem: Problem, state: Signed, cohort: torch.Tensor, upload: Mask) -> Plan:
    """Who has to send a signature trains the initial model, and sends some of it; the clusters train their models.

    Until the clustering nobody else has work, so no model moves; the recipe of a signature is always that of round 1.
    """
    plan, signing = fedavg_plan(problem, state, cohort), unknown(state, cohort)
    task, initial = plan.tasks[0], len(state.models)
    working = torch.where(signing, -1, state.labels[cohort]) if state.clustered else torch.full_like(cohort, -1)
    training = replace(task, candidates=working[:, None])
    signature = torch.where(signing, initial, -1)[:, None]
    registering = replace(task, candidates=signature, training=problem.training_of(1), upload=upload)
    return replace(plan, models=torch.cat([state.models, problem.fresh(0)[None]]), tasks=(training, registering))


def sign(state: Signed, rows: Rows) -> Signed:
    """The state with the signatures that have come."""
    if not len(rows.clients):
        return state
    empty = torch.zeros(len(state.labels), rows.values.shape[1])
    signatures = (state.signatures if state.signatures.shape[1] else empty).index_copy(0, rows.clients, rows.values)
    return replace(state, signatures=signatures, known=state.known.index_fill(0, rows.clients, True))


def signed(state: Signed, labels: torch.Tensor) -> Rows:
    """The signatures of the clients that are in a cluster and have sent one."""
    clients = (state.known & (labels >= 0)).nonzero().flatten()
    return Rows(clients, state.signatures[clients])


def gathered(share: float, labels: torch.Tensor) -> Quorum:
    """A share of all members, asked or not: signatures of earlier rounds are as good, so nobody is waited for twice."""
    return Quorum(share, labels >= 0, "members can be compared")


def nearest(state: Signed, rows: Rows, distance: Distance, linkage: Linkage) -> torch.Tensor:
    """The labels (n,) once pending clients have joined the cluster whose members are nearest by their signatures.

    Args:
        state: before the round; before the clustering there is one cluster.
        rows: signatures that have come in it, (m, q).
        distance: between signatures.
        linkage: which member of a cluster counts: the nearest, the farthest, or their average.
    """
    labels, members = state.labels.clone(), signed(state, state.labels)
    new = rows.clients[labels[rows.clients] < 0].sort().values
    if not len(new):
        return labels
    if not state.clustered or not len(members.clients):
        return labels.index_fill(0, new, 0)  # there is one cluster, or nobody to be compared with
    between = distance(torch.cat([rows.of(new), members.values]))[: len(new), len(new) :]
    reach = torch.full((len(new), len(state.models)), torch.inf, dtype=between.dtype)
    for cluster in state.labels[members.clients].unique().tolist():
        own = between[:, state.labels[members.clients] == cluster]
        reach[:, cluster] = {"single": own.amin(1), "complete": own.amax(1), "average": own.mean(1)}[linkage]
    return labels.index_copy(0, new, reach.argmin(dim=1))
