"""How a proven split is made: each side gets a cluster, and for some rounds its members may still go over.

That a cluster has groups says little about a single client near their border; the loss on its training data, by the
model of either side, says more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedstrata.algorithms.parts.strata.memory import Memory, Stratified
from fedstrata.algorithms.parts.strata.parting import Parting
from fedstrata.core import Decision, Diagnostics, Plan, Problem, Report, aggregate, assign_pending
from fedstrata.lazy_torch import torch

BESIDE = 5
"""Other models that a settling client is offered, at most: those of the groups next to its own."""


def settling(state: Stratified) -> torch.Tensor:
    """Clusters whose members may still go over, bool (k,)."""
    return torch.tensor([memory.settling > 0 for memory in state.memories])


def siblings(plan: Plan, state: Stratified) -> Plan:
    """The plan in which members of settling clusters are offered the models of the other sides as well."""
    parents, free = [state.tree[node].parent for node in state.nodes.tolist()], settling(state)
    rows = []
    for client, row in zip(plan.cohort.tolist(), plan.tasks[0].candidates.tolist(), strict=True):
        own = int(state.labels[client])
        if own >= 0 and free[own]:
            beside = [c for c, parent in enumerate(parents) if c != own and parent == parents[own] and free[c]]
            row = [own, *sorted(sorted(beside, key=lambda c: abs(c - own))[:BESIDE])]  # in the order of their tree
        rows.append(row)
    width = max(map(len, rows), default=1)
    padded = torch.tensor([row + [-1] * (width - len(row)) for row in rows], dtype=torch.int64)
    return replace(plan, tasks=(replace(plan.tasks[0], candidates=padded.reshape(len(rows), width)), *plan.tasks[1:]))


def settled(state: Stratified, report: Report) -> torch.Tensor:
    """The labels (n,) once pending clients, and members of settling clusters, have taken the model of least loss."""
    labels, result = assign_pending(state, report), report.results[0]
    clients = result.updates.clients
    free = (state.labels[clients] >= 0) & settling(state)[state.labels[clients]]
    labels[clients[free]] = result.chosen[free]
    return labels


def moves(state: Stratified, labels: torch.Tensor) -> tuple[dict[str, Any], ...]:
    """An event for every client that went over to the other side of a split."""
    moved = (state.labels >= 0) & (state.labels != labels)
    return tuple(
        {"kind": "move", "client": client, "from": int(state.nodes[old]), "to": int(state.nodes[new])}
        for client, old, new in zip(
            moved.nonzero().flatten().tolist(), state.labels[moved].tolist(), labels[moved].tolist(), strict=True
        )
    )


def divide(
    problem: Problem,
    state: Stratified,
    report: Report,
    labels: torch.Tensor,
    splits: Mapping[int, Parting],
    decisions: Mapping[int, Decision],
    rounds: int,
) -> tuple[Stratified, Diagnostics]:
    """A cluster for each side of a split, then an average in each; an emptied side goes.

    Args:
        problem: fixed for the run.
        state: before the round, with its newest memories.
        report: of the round.
        labels: of the clients before the splits, (n,).
        splits: by cluster; who was not compared waits for both sides.
        decisions: by cluster.
        rounds: of settling.
    """
    divided, parents, memories = torch.full_like(labels, -1), list[int](), list[Memory]()
    peopled = {state.tree[int(state.nodes[cluster])].parent for cluster in labels[labels >= 0].unique().tolist()}
    for cluster, memory in enumerate(state.memories):
        members = labels == cluster
        if cluster in splits:
            split = splits[cluster]
            for group in range(split.count):
                clients = split.clients[split.groups == group]
                divided[clients[members[clients]]] = len(parents)
                parents.append(cluster)
                tests = int(state.tests[clients].max())
                memories.append(Memory(tests=tests, trials=memory.trials, heard=memory.heard, settling=rounds))
        elif bool(members.any()) or not memory.settling or state.tree[int(state.nodes[cluster])].parent not in peopled:
            divided[members] = len(parents)
            parents.append(cluster)
            memories.append(replace(memory, settling=max(memory.settling - 1, 0)))
    moved, diagnostics = aggregate(problem, state, report, divided, torch.tensor(parents), decisions)
    return replace(moved, memories=tuple(memories)), diagnostics
