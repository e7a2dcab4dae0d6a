"""The move that ends a round: average inside the new clusters, and grow the tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedstrata.core.messages import Diagnostics, Report
from fedstrata.core.problem import Problem
from fedstrata.core.state import S, State
from fedstrata.core.tree import Decision, Tree, nearest_open_ancestor, with_children, with_decisions, with_members
from fedstrata.lazy_torch import torch


def aggregate(
    problem: Problem,
    state: S,
    report: Report,
    labels: torch.Tensor,
    parents: torch.Tensor | None = None,
    decisions: Mapping[int, Decision] | None = None,
    founded: torch.Tensor | None = None,
) -> tuple[S, Diagnostics]:
    """Move every new cluster by the mean update of its members.

    Args:
        problem: fixed for the run.
        state: before the round.
        report: its first result holds the updates.
        labels: new cluster of each client, (n,) in 0..k'-1 or -1 = pending.
        parents: the old cluster whose model each new cluster starts from, (k',); by default each goes on from its
            own. One that is named more than once was split, and its members that are now pending wait at its node;
            one that is not named dissolved into the others; -1 is one that newcomers found.
        decisions: what was decided, by old cluster.
        founded: the models of the clusters whose parent is -1, in their order, (f, p).
    """
    parents = torch.arange(len(state.models)) if parents is None else parents
    result = report.results[0]
    label = labels[result.updates.clients]
    # A row trained from another model (a newcomer's, a settling client's) would drag the mean to that model.
    counted = (label >= 0) & (result.chosen == parents[label])
    fresh = result.only(counted)
    moves = problem.aggregation(fresh.updates, fresh.sizes, label[counted], len(parents))
    starts = state.models[parents]
    starts[parents < 0] = starts[:0] if founded is None else founded

    round = state.round + 1
    tree = with_decisions(state.tree, {int(state.nodes[old]): decision for old, decision in (decisions or {}).items()})
    origins = [None if old < 0 else int(state.nodes[old]) for old in parents.tolist()]
    tree, nodes = with_children(tree, origins, round)
    members = [(labels == cluster).nonzero().flatten().tolist() for cluster in range(len(parents))]
    waiting = torch.where(state.labels >= 0, state.nodes[state.labels], state.waiting)
    pairs = zip(labels.tolist(), waiting.tolist(), strict=True)
    havens = [nearest_open_ancestor(tree, node) if label < 0 else -1 for label, node in pairs]
    moved = replace(
        state,
        models=starts + moves,
        labels=labels,
        nodes=torch.tensor(nodes),
        waiting=torch.tensor(havens, dtype=torch.int64),
        round=round,
        tree=with_members(tree, dict(zip(nodes, members, strict=True))),
    )
    foundings = _foundings(moved.tree, moved.nodes[parents < 0].tolist())
    events = (*_splits(tree, round), *_dissolutions(state, moved), *foundings)
    return moved, Diagnostics(events, {"left_out": float((~counted).sum())})


def _splits(tree: Tree, round: int) -> tuple[dict[str, object], ...]:
    """An event for every cluster that was split in this round."""
    return tuple(
        {
            "kind": "split",
            "node": node.id,
            "into": [child.id for child in tree if child.parent == node.id],
            "layer": node.decision and node.decision.layer,
            "why": node.decision and node.decision.why,
        }
        for node in tree
        if node.split == round and any(child.parent == node.id for child in tree)
    )


def _dissolutions(before: State, after: State) -> tuple[dict[str, object], ...]:
    """An event for every cluster that ended without a child: its clients went to others."""
    parents = {node.parent for node in after.tree}
    events: list[dict[str, object]] = []
    for cluster, node in enumerate(before.nodes.tolist()):
        if after.tree[node].split == after.round and node not in parents:
            labels = after.labels[before.labels == cluster].unique()
            events.append({"kind": "dissolve", "node": node, "into": after.nodes[labels[labels >= 0]].tolist()})
    return tuple(events)


def _foundings(tree: Tree, nodes: Sequence[int]) -> tuple[dict[str, object], ...]:
    """An event for every cluster that newcomers founded."""
    return tuple({"kind": "found", "node": node, "clients": list(tree[node].members)} for node in nodes)
