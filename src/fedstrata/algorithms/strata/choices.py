"""Who may choose another cluster than its own in a round, and who has chosen one.

A trial says little about a single client near the border of two groups. Its training losses by the models of the new
clusters say more, as in IFCA (Ghosh et al., NeurIPS 2020). So for some rounds after a split its members may choose
another of the new clusters, and for as many rounds after it has come, a newcomer may choose another one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedstrata.algorithms.strata.state import StrataState
from fedstrata.base.lazy_torch import torch
from fedstrata.core import TRAIN, Plan, Report, assign_pending
from fedstrata.core.standard_round import padded_candidates
from fedstrata.core.state import descends


def add_other_models(plan: Plan, state: StrataState) -> Plan:
    """The plan in which clients that may choose are also offered the models of the other clusters of their split."""
    task = plan.tasks[TRAIN]
    others = _beside(state)
    rows = list[list[int]]()
    for client, row in zip(plan.cohort.tolist(), task.candidates.tolist(), strict=True):
        own = int(state.labels[client])
        may_choose = own >= 0 and int(state.choices[client]) > 0
        rows.append([own, *others[own]] if may_choose else [model for model in row if model >= 0])
    return replace(plan, tasks={**plan.tasks, TRAIN: replace(task, candidates=padded_candidates(rows))})


def _beside(state: StrataState) -> list[list[int]]:
    """The other clusters below the node from which each cluster was split, k lists, each ascending."""
    nodes = state.nodes.tolist()
    found = list[list[int]]()
    for own, node in enumerate(nodes):
        parent = state.tree[node].parent
        below = [k for k, other in enumerate(nodes) if parent is not None and descends(state.tree, other, parent)]
        found.append([k for k in below if k != own])
    return found


def chosen_clusters(state: StrataState, report: Report) -> torch.Tensor:
    """The cluster of each client, (n,), after those that are pending, or may choose, have taken one."""
    labels = assign_pending(state, report)
    result = report.results[TRAIN]
    clients = result.updates.clients
    free = (state.choices[clients] > 0) & (state.labels[clients] >= 0)
    labels[clients[free]] = result.chosen[free]
    return labels


def choices_left(state: StrataState, report: Report, labels: torch.Tensor, rounds: int) -> torch.Tensor:
    """For how many rounds each client may choose after a round, (n,): `rounds` if it had no cluster before it."""
    answered = report.results[TRAIN].updates.clients
    left = state.choices.index_add(0, answered, torch.full_like(answered, -1)).clamp(min=0)
    return torch.where((state.labels < 0) & (labels >= 0), rounds, left)


def choice_events(state: StrataState, labels: torch.Tensor) -> tuple[dict[str, Any], ...]:
    """An event for every client that has gone over from one cluster to another."""
    moved = (state.labels >= 0) & (labels >= 0) & (state.labels != labels)
    return tuple(
        {
            "kind": "reassign",
            "client": client,
            "from": int(state.nodes[state.labels[client]]),
            "to": int(state.nodes[labels[client]]),
        }
        for client in moved.nonzero().flatten().tolist()
    )
