"""Hold-out comparisons and searches for outliers: which begin after tests, and what a round's answers make of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedstrata.algorithms.evidence.split_half import next_level
from fedstrata.algorithms.strata.groups import first_half_updates
from fedstrata.algorithms.strata.holdout import HoldoutComparison, start_comparison
from fedstrata.algorithms.strata.holdout_tasks import stand_ins, with_answers
from fedstrata.algorithms.strata.multi_round import (
    CLEAR_LEVEL,
    advance_multi_round,
    allows_multi_round,
    multi_round_decision,
    start_multi_round,
)
from fedstrata.algorithms.strata.outliers import compare_outliers, outlier_decision, start_search
from fedstrata.algorithms.strata.split_decision import ClusterSplit, split_decision
from fedstrata.algorithms.strata.split_tests import ConfirmedGroups, SplitTest, confirmed_groups
from fedstrata.algorithms.strata.state import ClusterState, StrataState, needs_stand_ins
from fedstrata.core import TRAIN, Problem, Report
from fedstrata.core.server import history_of


def start_comparisons(
    problem: Problem,
    state: StrataState,
    tests: Sequence[SplitTest],
    *,
    alpha: float,
    holdout_check: bool,
    personal_models: bool,
) -> tuple[StrataState, dict[int, ClusterSplit]]:
    """Start a comparison of the groups of every confirmed test, and of two or three clients, which have no test.

    Where a test confirms nothing, the clients that stand out are sought.

    Args:
        problem: What is fixed for the run.
        state: The state after the tests.
        tests: The tests of the round.
        alpha: The budget of a cluster over the run.
        holdout_check: Whether a split must lower the loss. If not, what a test confirms is split at once.
        personal_models: Whether personal models are compared.

    Returns:
        The state with what has begun; and what is split without a comparison, by cluster.
    """
    clusters = list(state.clusters)
    side_tests = state.side_tests
    splits = dict[int, ClusterSplit]()
    for test in tests:
        memory = clusters[test.cluster]
        confirmed = test.result.confirmed
        if confirmed and not holdout_check:
            splits[test.cluster] = ClusterSplit(test.clients, test.result.proposal.long(), 2, test.decision)
        elif not confirmed and not problem.aggregation.exact:
            continue  # Means of a few clients say too little.
        elif confirmed or test.is_single_fold:
            groups = confirmed_groups(problem.layout, test, memory, alpha, side_tests)
            side_tests = side_tests.index_add(0, test.clients, groups.tested.long())
            clusters[test.cluster] = _start_comparison(problem, state, test, groups, personal_models=personal_models)
        else:
            clusters[test.cluster] = _start_search(problem, memory, test, state.round + 1)
    return replace(state, clusters=tuple(clusters), side_tests=side_tests), splits


def _start_comparison(
    problem: Problem, state: StrataState, test: SplitTest, groups: ConfirmedGroups, *, personal_models: bool
) -> ClusterState:
    """Begin a comparison of the groups of a cluster. The arguments are as in `start_comparisons`."""
    memory = state.clusters[test.cluster]
    has_stand_ins = needs_stand_ins(memory, int((state.labels == test.cluster).sum()))
    comparison = start_comparison(
        problem,
        state.models[test.cluster],
        first_half_updates(test.sent, test.clients),
        test.clients,
        groups.groups,
        level=groups.level,
        decision=groups.decision,
        node=int(state.nodes[test.cluster]),
        round=state.round + 1,
        # Where means are not exact, each part makes them less so: finer ones would spoil the larger ones.
        finer=groups.finer and problem.aggregation.exact and not has_stand_ins,
        # A personal model of one of two or three clients is hardly another than that of a group of its own.
        personal=personal_models and not test.is_single_fold,
        has_stand_ins=has_stand_ins,
    )
    if comparison is not None and allows_multi_round(problem, comparison):
        comparison = replace(comparison, gain_level=CLEAR_LEVEL)
    return memory.begin_comparison(comparison, is_test=test.is_single_fold)


def _start_search(problem: Problem, memory: ClusterState, test: SplitTest, round: int) -> ClusterState:
    """Begin a search for outliers, if one may begin after a round and somebody stands out."""
    # An outlier's model is of one client.
    if problem.aggregation.least_clients > 1 or not memory.may_search(round):
        return memory
    half = first_half_updates(test.sent, test.clients)
    return memory.begin_search(start_search(problem.layout, half, round))


@dataclass(frozen=True)
class ConcludedComparisons:
    """What was concluded in a round.

    Attributes:
        state: The state with what goes on, and without what has ended.
        by_multi_round: What comparisons over several rounds have decided, by cluster.
        by_comparison: What hold-out comparisons have decided, by cluster.
    """

    state: StrataState
    by_multi_round: dict[int, ClusterSplit]
    by_comparison: dict[int, ClusterSplit]

    @property
    def decided(self) -> dict[int, ClusterSplit]:
        """What was decided, by cluster, also where nothing is split."""
        return {**self.by_multi_round, **self.by_comparison}

    @property
    def splits(self) -> dict[int, ClusterSplit]:
        """The clusters that are split."""
        return {cluster: split for cluster, split in self.decided.items() if split.count > 1}


def conclude_comparisons(
    problem: Problem, state: StrataState, report: Report, *, alpha: float, holdout_check: bool
) -> ConcludedComparisons:
    """Conclude the hold-out comparisons in which enough clients have answered.

    Where one shows no clear gain, one over several rounds begins. Where outliers have trained, a comparison of
    their models begins.

    Args:
        problem: What is fixed for the run.
        state: The state before the round.
        report: The report of the round.
        alpha: The budget of a cluster over the run.
        holdout_check: Whether a split must lower the loss.
    """
    clusters = list[ClusterState]()
    by_multi_round = dict[int, ClusterSplit]()
    by_comparison = dict[int, ClusterSplit]()
    for cluster, memory in enumerate(state.clusters):
        memory, split = _advance_multi_round(problem, state, memory, report, holdout_check=holdout_check)
        if split is not None:
            by_multi_round[cluster] = split
        memory, split = _advance_comparison(problem, state, cluster, memory, report, holdout_check=holdout_check)
        if split is not None:
            by_comparison[cluster] = split
        clusters.append(_advance_search(problem, state, cluster, memory, report, alpha))
    return ConcludedComparisons(replace(state, clusters=tuple(clusters)), by_multi_round, by_comparison)


def _advance_multi_round(
    problem: Problem, state: StrataState, memory: ClusterState, report: Report, *, holdout_check: bool
) -> tuple[ClusterState, ClusterSplit | None]:
    """Go on with a comparison over several rounds, and split the cluster if enough members have measured."""
    if memory.multi_round is None:
        return memory, None
    round = state.round + 1
    multi_round = advance_multi_round(problem, memory.multi_round, report)
    if multi_round.comparison.complete:
        return replace(memory, multi_round=None), multi_round_decision(multi_round, round, holdout_check=holdout_check)
    return replace(memory, multi_round=None if multi_round.is_given_up(round) else multi_round), None


def _advance_comparison(
    problem: Problem, state: StrataState, cluster: int, memory: ClusterState, report: Report, *, holdout_check: bool
) -> tuple[ClusterState, ClusterSplit | None]:
    """Take the answers of a round into a comparison, and decide if there are enough.

    A comparison that separates no outlier decides nothing: the decision of the test before the search stays.
    """
    if memory.comparison is None:
        return memory, None
    round = state.round + 1
    others = stand_ins(memory.comparison, state.labels == cluster, report.results[TRAIN].updates.clients)
    comparison = with_answers(memory.comparison, report, round, others)
    if comparison is None or not comparison.complete:
        return replace(memory, comparison=comparison), None
    split = _decide(state, comparison, holdout_check=holdout_check)
    is_split = split is not None and split.count > 1
    memory = memory.end_comparison(comparison, split=is_split)
    if not is_split and memory.may_begin_multi_round(round) and allows_multi_round(problem, comparison):
        first = memory.last_multi_round == 0
        memory = memory.begin_multi_round(start_multi_round(comparison, state.models[cluster], round, first=first))
    return memory, split


def _decide(state: StrataState, comparison: HoldoutComparison, *, holdout_check: bool) -> ClusterSplit | None:
    """Decide by a comparison after a round; None where it is of outliers, and separates none."""
    round = state.round + 1
    if comparison.of_outliers:
        return outlier_decision(comparison, round)
    return split_decision(
        comparison,
        round,
        holdout_check=holdout_check,
        left_out=history_of(state).left_out(len(state.labels)),
        harm_check=history_of(state).suspect is not None,
    )


def _advance_search(
    problem: Problem, state: StrataState, cluster: int, memory: ClusterState, report: Report, alpha: float
) -> ClusterState:
    """Go on with a search for outliers: begin a comparison of their models, if some have trained."""
    if memory.search is None:
        return memory
    round = state.round + 1
    level = next_level(alpha, memory.tests)
    comparison = compare_outliers(problem, state.models[cluster], memory.search, report, level=level, round=round)
    if comparison is not None:
        return memory.begin_comparison(comparison, is_test=True)
    return replace(memory, search=None) if memory.search.is_given_up(round) else memory
