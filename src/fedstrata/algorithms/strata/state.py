"""What Strata remembers between rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from fedstrata.algorithms.evidence.fold_similarity import FoldSimilarity
from fedstrata.algorithms.evidence.split_half import MAX_PARTICIPANTS, answer_counts
from fedstrata.algorithms.strata.holdout import HoldoutComparison
from fedstrata.algorithms.strata.multi_round import MultiRoundComparison
from fedstrata.algorithms.strata.outliers import OutlierSearch
from fedstrata.base.lazy_torch import torch
from fedstrata.core import Report, State


@dataclass(frozen=True)
class ClusterState:
    """What is remembered of one cluster.

    Attributes:
        similarity: The similarity of its members' folds; None before the first split-half round.
        tests: The number of tests that were made of it, those as a side of another cluster included. Hold-out
            comparisons of outliers, and of two or three clients, count as tests.
        holdout_tests: The number of hold-out comparisons, of it and of the clusters that it comes from, in which
            error-rate tests might have split its members.
        most_answers: The largest number of members that answered in one round so far.
        reassignment_rounds: The number of rounds for which its members may still choose another cluster of its split.
        group_parent: The group in the tree of a hold-out comparison whose split made the cluster; -1 for none.
        comparison: The hold-out comparison that is running, if there is one.
        search: The search for outliers that is running, if there is one.
        last_search_round: The last round after which a search for outliers began; 0 before the first.
        sides_only: Whether a comparison with groups inside the two sides once ended without a split. Then later
            comparisons are of the two sides alone, which costs far less.
        multi_round: The comparison over several rounds that is running, if there is one.
        last_multi_round: The last round after which one began, of it or of the cluster that it was split from; 0
            before the first.
    """

    similarity: FoldSimilarity | None = None
    tests: int = 0
    holdout_tests: int = 0
    most_answers: int = 0
    reassignment_rounds: int = 0
    group_parent: int = -1
    comparison: HoldoutComparison | None = None
    search: OutlierSearch | None = None
    last_search_round: int = 0
    sides_only: bool = False
    multi_round: MultiRoundComparison | None = None
    last_multi_round: int = 0

    def only(self, members: torch.Tensor) -> ClusterState:
        """Keep what is known of some of the members, by a bool (n,)."""
        similarity = self.similarity
        comparison = self.comparison
        search = self.search
        multi_round = self.multi_round
        return replace(
            self,
            similarity=None if similarity is None else similarity.only(members[similarity.clients]),
            comparison=None if comparison is None else comparison.only(members[comparison.clients]),
            search=None if search is None else search.only(members[search.clients]),
            multi_round=None if multi_round is None else multi_round.only(members[multi_round.comparison.clients]),
        )

    def begin_comparison(self, comparison: HoldoutComparison | None, *, is_test: bool) -> ClusterState:
        """Begin a comparison, which takes the place of a running search for outliers. None changes nothing.

        Args:
            comparison: The comparison.
            is_test: Whether it counts as a test of the cluster.
        """
        if comparison is None:
            return self
        has_error_rate_tests = comparison.groups.unconfirmed > 0
        return replace(
            self,
            comparison=comparison,
            search=None,
            tests=self.tests + is_test,
            holdout_tests=self.holdout_tests + has_error_rate_tests,
        )

    def begin_search(self, search: OutlierSearch | None) -> ClusterState:
        """Begin a search for outliers. None changes nothing."""
        return self if search is None else replace(self, search=search, last_search_round=search.round)

    def end_comparison(self, comparison: HoldoutComparison, *, split: bool) -> ClusterState:
        """End a comparison, which has split the cluster or not."""
        had_groups_inside = comparison.groups.confirmed > 0 and len(comparison.groups) > 3
        return replace(
            self, comparison=None, search=None, sides_only=self.sides_only or (had_groups_inside and not split)
        )

    def begin_multi_round(self, multi_round: MultiRoundComparison) -> ClusterState:
        """Begin a comparison over several rounds."""
        return replace(self, multi_round=multi_round, last_multi_round=multi_round.comparison.round)

    @property
    def idle(self) -> bool:
        """Whether the cluster may be tested: no groups are being compared, and no members are being reassigned."""
        compares_groups = self.comparison is not None and not self.comparison.of_outliers
        return not compares_groups and self.multi_round is None and not self.reassignment_rounds

    def may_begin_multi_round(self, round: int) -> bool:
        """Whether a comparison over several rounds may begin: at least three times as late as the last one."""
        return round >= 3 * self.last_multi_round

    def may_search(self, round: int) -> bool:
        """Whether a search for outliers may begin after a round: none is running, and the last began at half of it."""
        return self.search is None and self.comparison is None and round >= 2 * self.last_search_round


@dataclass(frozen=True)
class StrataState(State):
    """All that Strata remembers.

    Attributes:
        clusters: What is remembered of every cluster, (k).
        sizes: The training samples of each client, (n,); 0 where they are not known.
        side_tests: The number of tests that were made of a side of a confirmed split with the client, as the cluster
            that it might become, (n,).
        newcomers: Who came late, or whose data changed, and was not compared with its cluster yet, bool (n,).
        pending_after_split: Who is pending because its cluster was split without it, bool (n,).
    """

    clusters: tuple[ClusterState, ...]
    sizes: torch.Tensor
    side_tests: torch.Tensor
    newcomers: torch.Tensor
    pending_after_split: torch.Tensor

    def forgetting(self, clients: torch.Tensor) -> Self:
        """The state in which some clients, ids, are pending for another reason than a split of their cluster."""
        return replace(self, pending_after_split=self.pending_after_split.index_fill(0, clients, False))

    @property
    def multi_rounds(self) -> dict[int, MultiRoundComparison]:
        """The running comparisons over several rounds, by cluster."""
        return {
            cluster: known.multi_round for cluster, known in enumerate(self.clusters) if known.multi_round is not None
        }

    @property
    def searches(self) -> dict[int, OutlierSearch]:
        """The running searches for outliers, by cluster."""
        return {cluster: known.search for cluster, known in enumerate(self.clusters) if known.search is not None}


def with_membership_changes(state: StrataState) -> StrataState:
    """The state brought up to date with who has come, left, changed its data or been reassigned since the last round.

    Clusters forget what they knew of former members. Whoever has come or changed is a newcomer of unknown size.
    """
    arrived = (state.labels < 0) & ~state.pending_after_split
    clusters = [known.only(state.labels == cluster) for cluster, known in enumerate(state.clusters)]
    return replace(
        state,
        clusters=tuple(clusters),
        sizes=torch.where(arrived, 0, state.sizes),
        side_tests=torch.where(arrived, 0, state.side_tests),
        newcomers=state.newcomers | arrived,
        history=state.history.forgetting(arrived),
    )


def with_answer_counts(
    clusters: Sequence[ClusterState], labels: torch.Tensor, report: Report
) -> tuple[ClusterState, ...]:
    """What is remembered of the clusters, with the largest number of members that answered in one round."""
    counts = answer_counts(labels, report, len(clusters))
    return tuple(
        replace(known, most_answers=max(known.most_answers, count))
        for known, count in zip(clusters, counts, strict=True)
    )


def pending_after_split(before: StrataState, after: State) -> torch.Tensor:
    """Who is pending after a round because its cluster was split without it, bool (n,)."""
    return (after.labels < 0) & ((before.labels >= 0) | before.pending_after_split)


def needs_stand_ins(known: ClusterState, members: int) -> bool:
    """Whether a cluster is so large, and its rounds have so few of its members, that most of them are seldom seen.

    Args:
        known: What is remembered of the cluster.
        members: The number of its members.
    """
    return members > MAX_PARTICIPANTS and 2 * known.most_answers < members


def has_test_result(state: StrataState, cluster: int) -> bool:
    """Whether the tree has the result of a test of a cluster. A new cluster has none of its own."""
    decision = state.tree[int(state.nodes[cluster])].decision
    return decision is not None and "p" in decision.values
