"""The hold-out comparisons and searches for outliers that are running: what a round's answers make of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedstrata.algorithms.evidence.split_half import next_level
from fedstrata.algorithms.strata.holdout import HoldoutComparison
from fedstrata.algorithms.strata.holdout_tasks import stand_ins, with_answers
from fedstrata.algorithms.strata.multi_round import (
    advance_multi_round,
    allows_multi_round,
    multi_round_decision,
    start_multi_round,
)
from fedstrata.algorithms.strata.outliers import compare_outliers, outlier_decision
from fedstrata.algorithms.strata.split_decision import ClusterSplit, split_decision
from fedstrata.algorithms.strata.state import ClusterState, StrataState
from fedstrata.core import TRAIN, Problem, Report


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
        left_out=state.history.left_out(len(state.labels)),
        harm_check=state.history.suspect is not None,
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
