"""Merge clusters whose models move alike, once the clustering is complete.

Gong et al., IEEE TMC 2024, section V-C, re-organizing clusters. Nothing travels for it: the server has the models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from fedstrata.algorithms.parts.recursive.recursion import Watched
from fedstrata.clustering import cosine
from fedstrata.core import Decision, Problem, Report
from fedstrata.core.tree import nearest_open_ancestor, with_children, with_decisions, with_members
from fedstrata.lazy_torch import torch

W = TypeVar("W", bound=Watched)


def reorganise(
    problem: Problem, before: Watched, after: W, report: Report
) -> tuple[W, tuple[Mapping[str, object], ...]]:
    """Let the larger of two clusters that moved alike take over the smaller, until no two may be merged.

    Args:
        problem: fixed for the run.
        before: the round in which clusters moved but none was split.
        after: that round.
        report: of that round; a cluster weighs as much as the samples of its members that answered.

    Returns:
        The state with the clusters that remain, and an event for each that dissolved.
    """
    k, columns = len(after.models), problem.layout.columns(problem.layout.select("all"))
    moves = (after.models.double() - before.models)[:, columns]
    result = report.results[0]
    members = [(after.labels == cluster).nonzero().flatten().tolist() for cluster in range(k)]
    weights = torch.zeros(k, dtype=torch.float64)
    weights.index_add_(0, after.labels[result.updates.clients], result.sizes.double())
    models, remain, into = after.models.double(), list(range(k)), dict[int, int]()
    # Fewest members first; of equals, the one with the lowest member is the larger.
    while pair := _pair(sorted(remain, key=lambda c: (len(members[c]), -min(members[c], default=0))), moves):
        small, large = pair
        share = weights[small] / (weights[small] + weights[large])
        models[large] = torch.lerp(models[large], models[small], share)
        moves[large] = torch.lerp(moves[large], moves[small], share)
        weights[large] += weights[small]
        members[large] = sorted(members[large] + members[small])
        remain.remove(small)
        into[small] = large

    kept = torch.tensor(remain)
    ids = after.nodes.tolist()
    why = {ids[a]: Decision(f"merged into node {ids[b]}: the models of both moved alike") for a, b in into.items()}
    tree, nodes = with_children(with_decisions(after.tree, why), after.nodes[kept].tolist(), after.round)
    labels = torch.full_like(after.labels, -1)
    for place, cluster in enumerate(remain):
        labels[members[cluster]] = place
    waiting = [nearest_open_ancestor(tree, node) if node >= 0 else -1 for node in after.waiting.tolist()]
    merged = replace(
        after,
        models=models[kept].float(),
        labels=labels,
        nodes=torch.tensor(nodes),
        waiting=torch.tensor(waiting),
        tree=with_members(tree, {node: members[cluster] for node, cluster in zip(nodes, remain, strict=True)}),
        peaks=after.peaks[kept],
        final=after.final[kept],
    )
    return merged, tuple({"kind": "dissolve", "node": ids[a], "into": [ids[b]]} for a, b in into.items())


def _pair(ascending: list[int], moves: torch.Tensor) -> tuple[int, int] | None:
    """The first cluster, from the smallest on, that may be merged, and the larger one that takes it over."""
    cosines = cosine(moves)
    for place, one in enumerate(ascending):
        for other in sorted(ascending[place + 1 :], key=lambda c: -float(cosines[one, c])):
            torn = any(cosines[one, c] * cosines[other, c] < 0 for c in ascending if c not in (one, other))
            if cosines[one, other] > 0 and not torn:
                return one, other
    return None
