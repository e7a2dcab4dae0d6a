"""What follows from the permutation tests of a round: hold-out comparisons of groups, and searches for outliers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedstrata.algorithms.strata.group_models import first_half_updates
from fedstrata.algorithms.strata.holdout import start_comparison
from fedstrata.algorithms.strata.multi_round import CLEAR_LEVEL, allows_multi_round
from fedstrata.algorithms.strata.outliers import start_search
from fedstrata.algorithms.strata.split_decision import ClusterSplit
from fedstrata.algorithms.strata.split_tests import ConfirmedGroups, SplitTest, confirmed_groups
from fedstrata.algorithms.strata.state import ClusterState, StrataState, needs_stand_ins
from fedstrata.core import Problem


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
