"""The permutation tests of Strata: which clusters are tested in a round, and what the tests find.

A test asks whether the members of a cluster form groups. If it confirms two sides, each side is tested in the same way.
A test of groups cannot find a single client among many. But newcomers are a group that is known beforehand, so a
cluster that has some is first asked whether they differ from its members.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedstrata.algorithms.evidence.fold_similarity import (
    FoldSimilarity,
    compared_views,
    groups_test,
    similarity_matrices,
    to_decision,
    with_round,
    without_zero_layers,
)
from fedstrata.algorithms.evidence.split_half import (
    Participants,
    fold_updates,
    is_split_half_round,
    next_level,
    select_few,
    select_participants,
    too_few_samples,
)
from fedstrata.algorithms.strata.groups import MAX_SPLITS, GroupTree, single_group, with_confirmed_split
from fedstrata.algorithms.strata.state import ClusterState, StrataState, has_test_result
from fedstrata.base.lazy_torch import torch
from fedstrata.clustering import (
    PermutationResult,
    in_views,
    likeness,
    newcomer_test,
    norms,
    not_tested,
)
from fedstrata.clustering.patterns import MIN_TEST_CLIENTS
from fedstrata.clustering.similarity import STILL
from fedstrata.core import Decision, Layout, Matrix, Problem, Report, Rows


def clusters_due(state: StrataState) -> list[int]:
    """The clusters that are to be tested in the next round."""
    if not is_split_half_round(state.round + 1):
        return []
    return [cluster for cluster, known in enumerate(state.clusters) if known.idle]


def clusters_to_test(
    problem: Problem, state: StrataState, alpha: float, folds: int | str, cohort: torch.Tensor
) -> list[Participants]:
    """The participants of every cluster that can be tested in the next round.

    Args:
        problem: What is fixed for the run.
        state: The state before the round.
        alpha: The budget of a cluster over the run.
        folds: The number of folds of each participant, or ``"auto"``.
        cohort: The clients that the round selects, or those of them that have answered.
    """
    found = list[Participants]()
    for cluster in clusters_due(state):
        known = state.clusters[cluster]
        level = next_level(alpha, known.tests)
        selected = select_participants(problem, state, state.sizes, cluster, folds, level, known.most_answers, cohort)
        selected = selected or select_few(state, state.sizes, cluster)
        if selected is not None:
            found.append(selected)
    return found


def decisions_without_test(
    state: StrataState, participants: Sequence[Participants], folds: int | str
) -> dict[int, Decision]:
    """The decisions about clusters that are due and have no participants. The result of an earlier test stays."""
    with_participants = {each.cluster for each in participants}
    return {
        cluster: too_few_samples(state, state.sizes, cluster, folds)
        for cluster in clusters_due(state)
        if cluster not in with_participants and not has_test_result(state, cluster)
    }


@dataclass(frozen=True)
class SplitTest:
    """A test of one cluster in one round.

    Attributes:
        cluster: The cluster.
        sent: The updates of the participants by every fold, (m', p) each. Two or three clients send one fold only: for
            them there is no permutation test.
        clients: Who was compared, ids (m,).
        result: The result of the permutation test.
        decision: The decision of the test.
        generator: The source of permutations, as the test left it.
        of_newcomers: Whether the test asked about newcomers, and not about groups.
    """

    cluster: int
    sent: Sequence[Rows]
    clients: torch.Tensor
    result: PermutationResult
    decision: Decision
    generator: torch.Generator
    of_newcomers: bool = False

    @property
    def is_single_fold(self) -> bool:
        """Whether the clients are too few for a permutation test. Then only error-rate tests can split them."""
        return len(self.sent) == 1


def run_tests(
    problem: Problem,
    state: StrataState,
    report: Report,
    participants: Sequence[Participants],
    labels: torch.Tensor,
    alpha: float,
) -> tuple[StrataState, list[SplitTest]]:
    """Test every cluster whose participants were asked.

    Args:
        problem: What is fixed for the run.
        state: The state before the tests.
        report: The report of the round.
        participants: The participants of the clusters to test.
        labels: The cluster of each client in this round, (n,).
        alpha: The budget of a cluster over the run.

    Returns:
        The state with the new similarities and the numbers of tests; and the tests, made or not.
    """
    round = state.round + 1
    newcomers = state.newcomers
    by_cluster = {each.cluster: each for each in participants}
    clusters = list(state.clusters)
    tests = list[SplitTest]()
    for cluster, sent in fold_updates(report, participants).items():
        known = clusters[cluster]
        level = next_level(alpha, known.tests)
        generator = problem.generator(f"test of node {int(state.nodes[cluster])}", round)
        if len(sent) == 1:
            ids = sent[0].clients
            result = not_tested(len(ids), level, "too_few_members")
            test = SplitTest(cluster, sent, ids, result, Decision(""), generator)
        else:
            similarity = with_round(problem.layout, known.similarity, sent, labels == cluster)
            test = _test_cluster(problem.layout, cluster, similarity, sent, newcomers, generator, level, round)
            made = known.tests + test.result.tested
            clusters[cluster] = replace(known, similarity=similarity, tests=made)
        if test.result.tested or test.is_single_fold:
            newcomers = newcomers.index_fill(0, sent[0].clients, False) & ~_too_small_for(state, by_cluster[cluster])
        tests.append(test)
    return replace(state, clusters=tuple(clusters), newcomers=newcomers), tests


def _too_small_for(state: StrataState, participants: Participants) -> torch.Tensor:
    """The members of a cluster that are known to have too few samples for its test, bool (n,).

    They are newcomers no more either. No test will ask about them, and they would choose among all clusters for ever.
    """
    small = (state.sizes > 0) & (state.sizes < participants.samples)
    return small & (state.labels == participants.cluster)


def decisions_of(state: StrataState, tests: Sequence[SplitTest]) -> dict[int, Decision]:
    """The decisions of the tests, by cluster. The result of an earlier test stays where none was made now."""
    return {
        test.cluster: test.decision
        for test in tests
        if test.result.tested or not (test.is_single_fold or has_test_result(state, test.cluster))
    }


def matrices_of(layout: Layout, state: StrataState, tests: Sequence[SplitTest]) -> tuple[Matrix, ...]:
    """The similarities behind the tests that were made."""
    matrices = list[Matrix]()
    for test in tests:
        similarity = state.clusters[test.cluster].similarity
        if test.result.tested and similarity is not None:
            matrices += similarity_matrices(layout, similarity, int(state.nodes[test.cluster]))
    return tuple(matrices)


def _test_cluster(
    layout: Layout,
    cluster: int,
    similarity: FoldSimilarity,
    sent: Sequence[Rows],
    newcomers: torch.Tensor,
    generator: torch.Generator,
    level: float,
    round: int,
) -> SplitTest:
    """Test whether newcomers differ from the members of a cluster, or else whether its clients form groups."""
    views = compared_views(layout)
    sound = without_zero_layers(sent, views)
    ids = sound[0].clients
    new = newcomers[ids]
    if len(ids) >= MIN_TEST_CLIENTS and bool(new.any()) and not bool(new.all()):
        updates = torch.cat([fold.values for fold in sound])  # (f m, p)
        # A frozen layer says nothing about anybody.
        lengths = norms(updates, in_views(views.values()))
        moves = (lengths > STILL).any(dim=1)
        moving = {name: columns for (name, columns), some in zip(views.items(), moves.tolist(), strict=True) if some}
        if moving and bool((lengths[moves].isfinite() & (lengths[moves] > STILL)).all()):
            alike = likeness(updates, in_views(moving.values()))
            result = newcomer_test(alike, len(sound), new, generator, level, tuple(moving))
            if result.tested:
                decision = to_decision(result, round, len(ids), "newcomers_differ")
                return SplitTest(cluster, sound, ids, result, decision, generator, of_newcomers=True)
    clients, result = groups_test(layout, similarity, generator, level)
    decision = to_decision(result, round, len(sent[0].clients))
    return SplitTest(cluster, sent, clients, result, decision, generator)


@dataclass(frozen=True)
class ConfirmedGroups:
    """The groups that permutation tests confirmed in a cluster, of which hold-out data are to judge the models.

    Attributes:
        groups: The tree of the groups.
        tested: Who is on a side that was tested, bool (m,).
        decision: The decision of the test of the cluster, with the number of splits that were confirmed inside its
            sides, and of these the largest p with its level.
        level: The level of all splits that error-rate tests may confirm, together.
        finer: Whether groups inside the confirmed ones are formed, for error-rate tests to judge.
    """

    groups: GroupTree
    tested: torch.Tensor
    decision: Decision
    level: float
    finer: bool


def confirmed_groups(
    layout: Layout, test: SplitTest, known: ClusterState, alpha: float, side_tests: torch.Tensor
) -> ConfirmedGroups:
    """The groups of a cluster after a confirmed test. Two or three clients have no test, and are a single group.

    Each side of a confirmed split is tested in the same round and with the same updates, as the cluster that it may
    become. So are the sides that such a test confirms.

    Args:
        layout: The layout of the network.
        test: The test of the cluster.
        known: What is known of the cluster.
        alpha: The budget of a cluster over the run.
        side_tests: The number of tests that were made of a side with each client before, (n,).
    """
    clients = test.clients
    second = test.result.proposal
    tree = single_group(len(clients))
    if test.is_single_fold:
        return ConfirmedGroups(tree, torch.zeros_like(second), Decision("models_differ"), test.result.level, finer=True)
    tree = with_confirmed_split(tree, 0, ~second, second)
    finer = not test.of_newcomers and not known.sides_only
    tested = torch.zeros_like(second)
    confirmed = list[PermutationResult]()
    node = 0
    while finer and tree.confirmed < MAX_SPLITS and node + 1 < len(tree):
        node += 1
        side = tree.inside[node]
        level = next_level(alpha, int(side_tests[clients[side]].max()))
        compared, result = _test_side(layout, test, clients[side], level)
        tested |= side & result.tested
        if result.confirmed:
            confirmed.append(result)
            one, other = (torch.isin(clients, compared[members]) for members in (~result.proposal, result.proposal))
            tree = with_confirmed_split(tree, node, one, other)
    decision = _with_splits_inside(test.decision, confirmed)
    return ConfirmedGroups(tree, tested, decision, next_level(alpha, known.holdout_tests), finer)


def _test_side(
    layout: Layout, test: SplitTest, clients: torch.Tensor, level: float
) -> tuple[torch.Tensor, PermutationResult]:
    """Test whether the clients of a side form groups; and who of them was compared, ids (m',)."""
    # Similarities are computed anew, around the mean update of the side. Around the mean of the whole cluster, they
    # would share a part that is divided by the clients' noise, a pattern that every fold shows.
    sent = [fold.at(torch.isin(fold.clients, clients)) for fold in test.sent]
    return groups_test(layout, with_round(layout, None, sent), test.generator, level)


def _with_splits_inside(decision: Decision, confirmed: Sequence[PermutationResult]) -> Decision:
    """The decision of a test with the splits that were confirmed inside its sides."""
    if not confirmed:
        return decision
    weakest = max(confirmed, key=lambda result: result.p)
    inside = {"splits_inside": float(len(confirmed)), "p_inside": weakest.p, "level_inside": weakest.level}
    return replace(decision, values={**decision.values, **inside})
