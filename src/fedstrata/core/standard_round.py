"""The ordinary round: everyone trains the model of its cluster. Most algorithms start from these."""

from __future__ import annotations

from dataclasses import replace

from fedstrata.core.messages import Evaluation, LocalTask, Plan, Report
from fedstrata.core.problem import Problem
from fedstrata.core.state import State
from fedstrata.core.tree import Decision, Node, descends, with_children, with_decisions, with_members
from fedstrata.lazy_torch import torch


def initial_state(problem: Problem) -> State:
    """Everyone in one cluster, which starts from ``problem.fresh(0)``."""
    n = problem.clients
    return State(
        models=problem.fresh(0)[None],
        labels=torch.zeros(n, dtype=torch.int64),
        nodes=torch.zeros(1, dtype=torch.int64),
        waiting=torch.full((n,), -1),
        round=0,
        tree=(Node(id=0, parent=None, members=tuple(range(n)), born=0),),
    )


def fixed_clusters(problem: Problem, labels: torch.Tensor, k: int, why: str) -> State:
    """Clusters that are given before round 1, all from ``problem.fresh(0)``.

    Args:
        problem: fixed for the run.
        labels: cluster of each client, (n,) in 0..k-1 or -1 = pending; those wait at the root.
        k: number of clusters.
        why: where they come from, for the tree.
    """
    state = initial_state(problem)
    tree, nodes = with_children(state.tree, [0] * k, round=0)
    members = {node: (labels == c).nonzero().flatten().tolist() for c, node in enumerate(nodes)}
    return replace(
        state,
        models=state.models.repeat(k, 1),
        labels=labels,
        nodes=torch.tensor(nodes),
        waiting=torch.where(labels < 0, 0, -1),
        tree=with_members(with_decisions(tree, {0: Decision(why)}), members),
    )


def candidate_models(state: State, clients: torch.Tensor) -> torch.Tensor:
    """The model of its cluster for each client, all leaves below its node for a pending one; (m, c)."""
    rows = []
    for client in clients.tolist():
        label, node = int(state.labels[client]), int(state.waiting[client])
        rows.append([label] if label >= 0 else leaves_below(state, node))
    width = max(map(len, rows), default=1)
    padded = [row + [-1] * (width - len(row)) for row in rows]
    return torch.tensor(padded, dtype=torch.int64).reshape(len(clients), width)


def leaves_below(state: State, node: int) -> list[int]:
    """The clusters that a node is or was split into."""
    return [cluster for cluster, leaf in enumerate(state.nodes.tolist()) if descends(state.tree, leaf, node)]


def fedavg_plan(problem: Problem, state: State, cohort: torch.Tensor) -> Plan:
    """Everyone trains all of the model of its cluster and sends all of it back (FedAvg's round)."""
    round, layout = state.round + 1, problem.layout
    task = LocalTask(
        candidates=candidate_models(state, cohort),
        training=problem.training_of(round),
        trainable=layout.everything,
        upload=layout.everything,
        load_local=layout.nothing,
        save_local=layout.nothing,
    )
    return Plan(round=round, seed=problem.seed, cohort=cohort, models=state.models, tasks=(task,))


def cluster_evaluation(problem: Problem, state: State, clients: torch.Tensor) -> tuple[Evaluation, ...]:
    """Everyone uses the model of its cluster."""
    return (Evaluation("cluster", clients, candidate_models(state, clients), problem.layout.nothing),)


def selected(report: Report, members: torch.Tensor) -> torch.Tensor:
    """Which of some clients were asked in a round: who was not drawn is not absent.

    Args:
        report: of the round.
        members: bool (n,).

    Returns:
        Those of them in the cohort, bool (n,); all of them where nobody noted the cohort.
    """
    if report.cohort is None:
        return members
    return members & torch.isin(torch.arange(len(members)), report.cohort)


def assign_pending(state: State, report: Report) -> torch.Tensor:
    """The labels (n,) once every pending client that answered has joined the leaf that it chose."""
    result = report.results[0]
    labels, clients = state.labels.clone(), result.updates.clients
    pending = labels[clients] < 0
    labels[clients[pending]] = result.chosen[pending]
    return labels
