"""What comes of the hold-out comparisons and searches for outliers that are running, after a round."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedstrata.algorithms.shared.split_half import next_level
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
class Conclusions:
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


def conclude(problem: Problem, state: StrataState, report: Report, *, alpha: float, holdout_check: bool) -> Conclusions:
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
    for cluster, known in enumerate(state.clusters):
        known, split = _conclude_multi_round(problem, state, known, report, holdout_check=holdout_check)
        if split is not None:
            by_multi_round[cluster] = split
        known, split = _after_comparison(problem, state, cluster, known, report, holdout_check=holdout_check)
        if split is not None:
            by_comparison[cluster] = split
        clusters.append(_after_search(problem, state, cluster, known, report, alpha))
    return Conclusions(replace(state, clusters=tuple(clusters)), by_multi_round, by_comparison)


def _conclude_multi_round(
    problem: Problem, state: StrataState, known: ClusterState, report: Report, *, holdout_check: bool
) -> tuple[ClusterState, ClusterSplit | None]:
    """Go on with a comparison over several rounds, and split the cluster if enough members have measured."""
    if known.multi_round is None:
        return known, None
    round = state.round + 1
    multi_round = advance_multi_round(problem, known.multi_round, report)
    if multi_round.comparison.complete:
        return replace(known, multi_round=None), multi_round_decision(multi_round, round, holdout_check=holdout_check)
    return replace(known, multi_round=None if multi_round.is_given_up(round) else multi_round), None


def _after_comparison(
    problem: Problem, state: StrataState, cluster: int, known: ClusterState, report: Report, *, holdout_check: bool
) -> tuple[ClusterState, ClusterSplit | None]:
    """What is known of a cluster with the answers of a round, and what its comparison decides if there are enough.

    A comparison that separates no outlier decides nothing: the decision of the test before the search stays.
    """
    if known.comparison is None:
        return known, None
    round = state.round + 1
    others = stand_ins(known.comparison, state.labels == cluster, report.results[TRAIN].updates.clients)
    comparison = with_answers(known.comparison, report, round, others)
    if comparison is None or not comparison.complete:
        return replace(known, comparison=comparison), None
    split = _decision(state, comparison, holdout_check=holdout_check)
    is_split = split is not None and split.count > 1
    known = known.end_comparison(comparison, split=is_split)
    if not is_split and known.may_begin_multi_round(round) and allows_multi_round(problem, comparison):
        first = known.last_multi_round == 0
        known = known.begin_multi_round(start_multi_round(comparison, state.models[cluster], round, first=first))
    return known, split


def _decision(state: StrataState, comparison: HoldoutComparison, *, holdout_check: bool) -> ClusterSplit | None:
    """What a comparison decides after a round; None where it is of outliers, and separates none."""
    round = state.round + 1
    if comparison.of_outliers:
        return outlier_decision(comparison, round)
    harm_check = state.directions is not None
    return split_decision(
        comparison, round, holdout_check=holdout_check, left_out=state.left_out, harm_check=harm_check
    )


def _after_search(
    problem: Problem, state: StrataState, cluster: int, known: ClusterState, report: Report, alpha: float
) -> ClusterState:
    """What is known of a cluster whose outliers were to train: a comparison of their models, if some have."""
    if known.search is None:
        return known
    round = state.round + 1
    level = next_level(alpha, known.tests)
    comparison = compare_outliers(problem, state.models[cluster], known.search, report, level=level, round=round)
    if comparison is not None:
        return known.begin_comparison(comparison, is_test=True)
    return replace(known, search=None) if known.search.is_given_up(round) else known
