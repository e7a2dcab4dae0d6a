"""The round of FedAvg inside clusters, from the plan to the new models, as functions and as the class `Algorithm`.

Most algorithms are made of these functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Protocol, cast

from fedstrata.base.lazy_torch import torch
from fedstrata.core.layout import Mask
from fedstrata.core.messages import (
    CLIENT,
    TRAIN,
    Diagnostics,
    Evaluation,
    LocalTask,
    Metric,
    Plan,
    Report,
)
from fedstrata.core.problem import Problem
from fedstrata.core.state import (
    Decision,
    Node,
    ServerMemory,
    State,
    StateT,
    descends,
    nearest_open_ancestor,
    with_children,
    with_decisions,
    with_members,
)


def initial_state(problem: Problem) -> State:
    """Put all clients into one cluster, whose model is ``problem.fresh(0)``.

    Args:
        problem: What is fixed for the run.

    Returns:
        The state before round 1.
    """
    n = problem.clients
    return State(
        models=problem.fresh(0)[None],
        labels=torch.zeros(n, dtype=torch.int64),
        nodes=torch.zeros(1, dtype=torch.int64),
        waiting=torch.full((n,), -1),
        round=0,
        tree=(Node(id=0, parent=None, members=tuple(range(n)), born=0),),
        history=ServerMemory() if problem.checks is None else problem.checks.no_history(n),
    )


def fixed_clusters(problem: Problem, labels: torch.Tensor, k: int, kind: str) -> State:
    """Clusters that are given before round 1. The model of each is ``problem.fresh(0)``.

    Args:
        problem: What is fixed for the run.
        labels: The cluster of each client, (n,) in 0..k-1, or -1 for a pending client, which waits at the root.
        k: The number of clusters.
        kind: The kind of the decision in the tree that says where they come from.

    Returns:
        The state before round 1.
    """
    given = Decision(kind=kind, values={"clusters": float(k)})
    return with_clusters(initial_state(problem), labels, torch.zeros(k, dtype=torch.int64), {0: given}, round=0)


def candidate_models(state: State, clients: torch.Tensor) -> torch.Tensor:
    """List the models that each client may start from.

    A client has the model of its cluster. A pending client has the models of all leaves below the node where it waits.

    Args:
        state: The state before the round.
        clients: The ids of the clients, (m,) int64.

    Returns:
        The indices of the models, (m, c), padded with -1.
    """
    labels = state.labels[clients].tolist()
    nodes = state.waiting[clients].tolist()
    clusters = list(enumerate(state.nodes.tolist()))
    leaves = {node: [c for c, leaf in clusters if descends(state.tree, leaf, node)] for node in set(nodes) if node >= 0}
    rows = [[label] if label >= 0 else leaves[node] for label, node in zip(labels, nodes, strict=True)]
    return padded_candidates(rows)


def padded_candidates(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """Some models for each client as candidates, (m, c) with c > 0, padded with -1."""
    width = max([1, *map(len, rows)])
    padded = [row if len(row) == width else [*row, *[-1] * (width - len(row))] for row in rows]
    return torch.tensor(padded, dtype=torch.int64).reshape(len(rows), width)


def fedavg_plan(problem: Problem, state: State, cohort: torch.Tensor) -> Plan:
    """Let every client train the whole model of its cluster and send the whole update (FedAvg).

    Args:
        problem: What is fixed for the run.
        state: The state before the round.
        cohort: The clients that take part, ascending ids (m,) int64.

    Returns:
        The plan of the round, with the task `TRAIN`.
    """
    round = state.round + 1
    layout = problem.layout
    task = LocalTask(
        candidates=candidate_models(state, cohort),
        training=problem.training_of(round),
        trainable=layout.everything,
        upload=layout.everything,
        load_local=layout.nothing,
        save_local=layout.nothing,
    )
    return Plan(round=round, seed=problem.seed, cohort=cohort, models=state.models, tasks={TRAIN: task})


def cluster_evaluation(problem: Problem, state: State, clients: torch.Tensor) -> dict[str, Evaluation]:
    """Let every client use the model of its cluster.

    Args:
        problem: What is fixed for the run.
        state: The state after a round.
        clients: The clients that score, (s,) int64.

    Returns:
        One evaluation, `CLIENT`.
    """
    return {CLIENT: Evaluation(clients, candidate_models(state, clients), problem.layout.nothing)}


def members_in_cohort(report: Report, members: torch.Tensor) -> torch.Tensor:
    """The members that were selected for a round. A client that was not selected is not absent.

    Args:
        report: The report of the round.
        members: The members, bool (n,).

    Returns:
        The members in the cohort, bool (n,); all members where the report has no cohort.
    """
    if report.cohort is None:
        return members
    return members & torch.isin(torch.arange(len(members)), report.cohort)


def assign_pending(state: State, report: Report) -> torch.Tensor:
    """Let every pending client that answered join the leaf whose model it chose.

    Args:
        state: The state before the round.
        report: Its result of the task `TRAIN` says what the clients chose.

    Returns:
        The cluster of each client, (n,); -1 for clients that stay pending.
    """
    result = report.results[TRAIN]
    labels = state.labels.clone()
    clients = result.updates.clients
    pending = labels[clients] < 0
    labels[clients[pending]] = result.chosen[pending]
    return labels


def aggregate(
    problem: Problem,
    state: StateT,
    report: Report,
    labels: torch.Tensor,
    parents: torch.Tensor | None = None,
    decisions: Mapping[int, Decision] | None = None,
    founded: torch.Tensor | None = None,
    sent_as_values: Mask = (),
    *,
    asked: bool = True,
) -> tuple[StateT, Diagnostics]:
    """End a round: average inside the new clusters, and grow the tree.

    The model of a cluster moves by what ``problem.aggregation`` makes of its members' updates (FedAvg, Algorithm 1),
    or by what ``problem.server`` makes of that. A cluster without enough clients keeps its model. Updates that
    ``problem.checks`` finds do not count; where values are sent as well, nothing is checked.

    Args:
        problem: What is fixed for the run.
        state: The state before the round.
        report: Its result of the task `TRAIN` holds the updates.
        labels: The new cluster of each client, (n,) in 0..k'-1, or -1 for a pending client.
        parents: The old cluster whose model each new cluster starts from, (k',). By default each cluster goes on from
            its own model. A cluster that is named more than once was split; its members that are now pending wait at
            its node. A cluster that is not named was dissolved. -1 is a cluster that newcomers found.
        decisions: What was decided, by old cluster.
        founded: The models of the clusters whose parent is -1, in their order, (f, p).
        sent_as_values: The tensors that clients sent as values (`LocalTask.upload_values`), (l,), or () for none. The
            optimiser of the server leaves them alone: a cluster has the mean of the values.
        asked: Whether the plan of the round has asked any client for an update in the task `TRAIN`. If not, no model
            moves.

    Returns:
        The state after the round, and the events of the checks. The metric ``left_out`` counts the updates that were
        not averaged, because they did not start from the model of the client's cluster, or too few clients sent one.
    """
    parents = torch.arange(len(state.models)) if parents is None else parents
    k = len(parents)
    events: tuple[Mapping[str, Any], ...] = ()
    if problem.checks is not None and asked and not any(sent_as_values):
        here = torch.where(labels < 0, -1, parents[labels])
        report, history = problem.checks.counted(problem.layout, state.history, report, state.labels, here)
        state = replace(state, history=history)
        events = report.events

    # An update of another model (of a newcomer, or after a reassignment) would pull the mean towards that model.
    result = report.results[TRAIN]
    label = labels[result.updates.clients]
    started = (label >= 0) & (result.chosen == parents[label])
    moves = torch.zeros(k, problem.layout.p)
    enough = torch.zeros(k, dtype=torch.bool)
    if asked:
        used = result.only(started)
        moves, enough = problem.aggregation.means(
            used.updates, used.sizes, label[started], k, labels, purpose=TRAIN, round=state.round + 1
        )
    after = with_clusters(state, labels, parents, decisions or {}, founded, round=state.round + 1)
    memory: ServerMemory | None = None
    if problem.server is not None:
        origins = [None if old < 0 else int(state.nodes[old]) for old in parents.tolist()]
        moves, memory = problem.server.step(
            problem.layout, state.server, origins, after.nodes.tolist(), moves, enough, sent_as_values
        )
    after = replace(after, models=after.models + moves, server=memory)

    left_out = Metric("left_out", float((~(started & enough[label])).sum()))
    return after, Diagnostics(events, (left_out,))


def with_clusters(
    state: StateT,
    labels: torch.Tensor,
    parents: torch.Tensor,
    decisions: Mapping[int, Decision],
    founded: torch.Tensor | None = None,
    *,
    round: int,
) -> StateT:
    """The state with new clusters, of the models that they start from. The arguments are those of `aggregate`."""
    models = state.models
    if not torch.equal(parents, torch.arange(len(models))):
        models = models[parents]
        models[parents < 0] = models[:0] if founded is None else founded
    of_nodes = {int(state.nodes[old]): decision for old, decision in decisions.items()}
    origins = [None if old < 0 else int(state.nodes[old]) for old in parents.tolist()]
    tree, nodes = with_children(with_decisions(state.tree, of_nodes), origins, round)
    # A pending client waits where it was, or above if no cluster is left below that node.
    before = torch.where(state.labels >= 0, state.nodes[state.labels], state.waiting).tolist()
    pairs = zip(labels.tolist(), before, strict=True)
    waiting = [nearest_open_ancestor(tree, node) if label < 0 else -1 for label, node in pairs]
    return with_members(
        replace(
            state,
            models=models,
            labels=labels,
            nodes=torch.tensor(nodes),
            waiting=torch.tensor(waiting, dtype=torch.int64),
            round=round,
            tree=tree,
        )
    )


class Algorithm(Protocol[StateT]):
    """Pure functions on a frozen state. The fields of an algorithm are its hyper-parameters.

    Whoever inherits from this class writes only what the algorithm does differently from FedAvg inside clusters. A
    class that inherits nothing is an algorithm too if it has all five functions.
    """

    source: ClassVar[str]

    def init(self, problem: Problem) -> StateT:
        """The state before round 1: everyone in one cluster. An algorithm with a state of its own says otherwise."""
        return cast(StateT, initial_state(problem))

    def plan(self, problem: Problem, state: StateT, cohort: torch.Tensor) -> Plan:
        """What the cohort is asked to do in round ``state.round + 1``: everyone trains the model of its cluster."""
        return fedavg_plan(problem, state, cohort)

    def update(self, problem: Problem, state: StateT, report: Report) -> tuple[StateT, Diagnostics]:
        """Cluster the clients, then average inside the new clusters. Here, the clusters stay as they are."""
        return aggregate(problem, state, report, self.assign(problem, state, report))

    def assign(self, problem: Problem, state: StateT, report: Report) -> torch.Tensor:
        """The cluster of each client, (n,), after the pending clients that answered were assigned.

        A pending client belongs to the leaf whose model has the lowest loss on its training data. The label k, the
        number of clusters, would say that a client fits none of them.
        """
        return assign_pending(state, report)

    def evaluations(self, problem: Problem, state: StateT, clients: torch.Tensor) -> dict[str, Evaluation]:
        """Which models the clients would use, by name: that of their cluster.

        The evaluation `CLIENT` is what the measures are of.
        """
        return cluster_evaluation(problem, state, clients)
