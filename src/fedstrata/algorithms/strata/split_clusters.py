"""What becomes of clusters and of what is remembered of them when some are split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedstrata.algorithms.strata.split_decision import ClusterSplit
from fedstrata.algorithms.strata.state import (
    ClusterState,
    StrataState,
    pending_after_split,
    with_answer_counts,
)
from fedstrata.base.lazy_torch import torch
from fedstrata.core import Report
from fedstrata.core.server import history_of


@dataclass(frozen=True)
class SplitClusters:
    """The clusters after the splits of a round.

    Attributes:
        labels: The cluster of each client, (n,); -1 for a pending client.
        parents: The cluster that each comes from, (k',). A cluster without a split comes from itself.
        clusters: What is remembered of each, (k').
        doubted: Who was split off because its updates did harm to itself, ids, ascending.
    """

    labels: torch.Tensor
    parents: torch.Tensor
    clusters: Sequence[ClusterState]
    doubted: torch.Tensor

    @property
    def events(self) -> tuple[dict[str, Any], ...]:
        """Who is doubted from now on, if anybody is."""
        return ({"kind": "doubted", "clients": self.doubted.tolist()},) if len(self.doubted) else ()


def split_clusters(
    state: StrataState, labels: torch.Tensor, splits: Mapping[int, ClusterSplit], reassignment_rounds: int
) -> SplitClusters:
    """A cluster for each group of a split. A new cluster that all members have left is removed.

    Args:
        state: The state before the round, with what is now known of its clusters.
        labels: The clusters of the clients before the splits, (n,).
        splits: The splits by cluster. Whoever was not compared becomes pending.
        reassignment_rounds: The number of rounds for which the members of new clusters may be reassigned.
    """
    after = torch.full_like(labels, -1)
    parents = list[int]()
    clusters = list[ClusterState]()
    doubted = [torch.empty(0, dtype=torch.int64)]
    for cluster, known in enumerate(state.clusters):
        members = labels == cluster
        if cluster in splits:
            split = splits[cluster]
            doubted.append(split.doubted[members[split.doubted]])
            for group in range(split.count):
                clients = split.clients[split.groups == group]
                after[clients[members[clients]]] = len(parents)
                parents.append(cluster)
                child = ClusterState(
                    tests=int(state.side_tests[clients].max()),
                    holdout_tests=known.holdout_tests,
                    last_multi_round=known.last_multi_round,
                    reassignment_rounds=reassignment_rounds,
                    group_parent=split.parents[group] if split.parents else -1,
                )
                clusters.append(child)
        elif bool(members.any()) or not _is_emptied_child(state, labels, cluster):
            after[members] = len(parents)
            parents.append(cluster)
            clusters.append(replace(known, reassignment_rounds=max(known.reassignment_rounds - 1, 0)))
    return SplitClusters(after, torch.tensor(parents), clusters, torch.cat(doubted).sort().values)


def after_splits(before: StrataState, after: StrataState, split: SplitClusters, report: Report) -> StrataState:
    """The state after a round with what is remembered of its clusters, of pending clients and of those in doubt.

    Args:
        before: The state before the round.
        after: The state with the models after the round.
        split: The clusters after the splits of the round.
        report: The report of the round.
    """
    return replace(
        after,
        history=history_of(after).doubting(split.doubted),
        clusters=with_answer_counts(split.clusters, after.labels, report),
        pending_after_split=pending_after_split(before, after),
    )


def _is_emptied_child(state: StrataState, labels: torch.Tensor, cluster: int) -> bool:
    """Whether an empty cluster is open, and another cluster of its split has members."""
    others = labels[labels >= 0].unique().tolist()
    with_members = {state.tree[int(state.nodes[other])].parent for other in others}
    parent = state.tree[int(state.nodes[cluster])].parent
    return state.clusters[cluster].reassignment_rounds > 0 and parent in with_members
