"""A split guard: a proposed split must be confirmed by a split-half test, whatever algorithm proposed it.

In some rounds clients also train on disjoint folds of their data. When these show that the members of a cluster
differ, at a level that all tests of the cluster share, every split that its algorithm proposes goes through. Other
clusters stay whole. The test shows that there are groups, not that a proposed split lies between them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedstrata.algorithms.evidence.fold_similarity import FoldSimilarity, groups_test, with_round
from fedstrata.algorithms.evidence.split_half import (
    Participants,
    add_fold_tasks,
    answer_counts,
    fold_updates,
    is_split_half_round,
    needed_samples,
    next_level,
    select_participants,
    selected_clients,
    usable_sizes,
)
from fedstrata.algorithms.shared.recursive_bipartition import SplitDecision
from fedstrata.base.lazy_torch import torch
from fedstrata.clustering import PermutationResult
from fedstrata.core import Decision, Plan, Problem, Report, State

_REFUSAL_KINDS = {
    "groups_not_confirmed": "split_not_confirmed",
    "too_few_answers": "split_not_tested",
    "too_few_samples": "split_not_tested_for_samples",
    "members_left": "split_not_tested_again",
}
"""The kind of the decision about a proposed split, by what its cluster's last test came to."""


@dataclass(frozen=True)
class TestState:
    """What is known about one cluster.

    Attributes:
        node: The tree id of the cluster.
        evidence: What parts of its members' data have shown; None before the first such round.
        tests: The number of tests so far.
        most_answers: The largest number of its members that answered in one round so far.
        confirmed: The clients of whom it is shown that they are not all alike; none while it is not.
        decision: What the last test came to; None before the first.
    """

    node: int
    evidence: FoldSimilarity | None = None
    tests: int = 0
    most_answers: int = 0
    confirmed: tuple[int, ...] = ()
    decision: Decision | None = None

    def of(self, members: torch.Tensor) -> TestState:
        """What is known about those who are still members, given as a bool (n,)."""
        evidence = self.evidence and self.evidence.only(members[self.evidence.clients])
        if bool(members[list(self.confirmed)].all()):
            return replace(self, evidence=evidence)
        # That some differ says nothing about those who are left.
        return TestState(self.node, evidence, self.tests, self.most_answers, decision=Decision(kind="members_left"))


@dataclass(frozen=True)
class GuardState:
    """What a split guard remembers.

    Attributes:
        sizes: The number of training samples of each client, (n,); 0 until it has answered.
        tests: What is known about the clusters that there were after the last round.
    """

    sizes: torch.Tensor
    tests: tuple[TestState, ...] = ()


def initial_guard(problem: Problem, split_guard: str) -> GuardState | None:
    """What a guard remembers at first; None where splits need no confirmation."""
    if split_guard == "none":
        return None
    return GuardState(torch.zeros(problem.clients, dtype=torch.int64))


def guard_plan(problem: Problem, state: State, guard: GuardState | None, plan: Plan, alpha: float) -> Plan:
    """The plan in which members of clusters that are to be tested also train on folds of their data.

    Args:
        problem: What is fixed for the run.
        state: The state before the round.
        guard: What the guard remembers of it; None where splits need no confirmation.
        plan: What clients are asked without a guard.
        alpha: As in `run_split_half_tests`.
    """
    if guard is None:
        return plan
    return add_fold_tasks(plan, _participants(problem, state, guard, alpha, plan.cohort), guard.sizes)


def run_split_half_tests(
    problem: Problem, state: State, guard: GuardState | None, report: Report, alpha: float
) -> GuardState | None:
    """Test clusters by what their members sent.

    Args:
        problem: What is fixed for the run.
        state: The state before the round.
        guard: What the guard remembers of it; None where splits need no confirmation.
        report: The report of the plan that `guard_plan` made.
        alpha: The probability that the tests of one cluster ever confirm groups although its members do not differ.

    Returns:
        What the guard remembers after the round; None where splits need no confirmation.
    """
    if guard is None:
        return None
    round = state.round + 1
    tests = _tests(state, guard)
    participants = _participants(problem, state, guard, alpha, selected_clients(report))
    for cluster, sent in fold_updates(report, participants).items():
        known = tests[cluster]
        evidence = with_round(problem.layout, known.evidence, sent, state.labels == cluster)
        draw = problem.generator(f"test of node {known.node}", round)
        clients, found = groups_test(problem.layout, evidence, draw, next_level(alpha, known.tests))
        tests[cluster] = replace(
            known,
            evidence=evidence,
            tests=known.tests + found.tested,
            confirmed=tuple(clients.tolist()) if found.confirmed else (),
            decision=_test_decision(found, round, len(sent[0].clients)),
        )
    if is_split_half_round(round):
        tests = [
            replace(known, decision=known.decision or _too_few_samples(guard.sizes[state.labels == cluster], round))
            for cluster, known in enumerate(tests)
        ]
    counts = answer_counts(state.labels, report, len(tests))
    tests = [
        replace(known, most_answers=max(known.most_answers, count)) for known, count in zip(tests, counts, strict=True)
    ]
    # A pending client may have other data than before.
    sizes = usable_sizes(torch.where(state.labels < 0, 0, guard.sizes), report, participants)
    return GuardState(sizes, tuple(tests))


def require_confirmation(
    state: State, guard: GuardState | None, cluster: int, proposal: SplitDecision
) -> SplitDecision:
    """The decision about a cluster, in which a proposed split goes through only if its last test confirmed groups.

    Args:
        state: The state before the round.
        guard: What the guard remembers after the round's tests. None lets every split through.
        cluster: The cluster.
        proposal: What its algorithm decided about it.
    """
    if guard is None or proposal.parts is None:
        return proposal
    known = _tests(state, guard)[cluster]
    test = known.decision or Decision(kind="")
    values = {**proposal.reason.values, **test.values}
    layer = proposal.reason.layer
    if known.confirmed:
        return replace(proposal, reason=Decision(kind="split_confirmed", layer=layer, values=values))
    refused = Decision(kind=_REFUSAL_KINDS.get(test.kind, "split_awaits_test"), layer=layer, values=values)
    return replace(proposal, reason=refused, parts=None)


def _tests(state: State, guard: GuardState) -> list[TestState]:
    """What is known about every cluster; about a new one nothing, whatever its parent was."""
    known = {test.node: test for test in guard.tests}
    nodes = enumerate(state.nodes.tolist())
    return [known.get(node, TestState(node)).of(state.labels == cluster) for cluster, node in nodes]


def _participants(
    problem: Problem, state: State, guard: GuardState, alpha: float, cohort: torch.Tensor
) -> list[Participants]:
    """Who trains on folds of its data in this round: members of clusters whose groups are not confirmed."""
    if not is_split_half_round(state.round + 1):
        return []
    found = list[Participants]()
    for cluster, known in enumerate(_tests(state, guard)):
        if known.confirmed:
            continue
        level = next_level(alpha, known.tests)
        answering = known.most_answers or None
        selected = select_participants(problem, state, guard.sizes, cluster, "auto", level, answering, cohort)
        if selected is not None:
            found.append(selected)
    return found


def _test_decision(found: PermutationResult, round: int, answered: int) -> Decision:
    """What a test came to, as data; with the number of clients that sent the updates of all folds in the round."""
    values = {"test_round": float(round), "level": found.level, "floor": found.floor}
    if not found.tested:
        compared = len(found.proposal)
        tested = answered if found.reason == "too_few_answers" else compared
        return Decision(kind="too_few_answers", values={**values, "tested_members": float(tested)})
    kind = "groups_confirmed" if found.confirmed else "groups_not_confirmed"
    values = {**values, "z": found.statistic, "contrast": found.contrast, "p": found.p}
    return Decision(kind=kind, layer=found.layer, values=values)


def _too_few_samples(sizes: torch.Tensor, round: int) -> Decision:
    """A cluster that was not tested, because too few of its members, of so many samples (m,), have enough of them."""
    needed = needed_samples(sizes, 2)
    values = {
        "test_round": round,
        "tested_members": len(sizes),
        "able_members": int((sizes >= needed).sum()),
        "samples_needed": needed,
    }
    return Decision(kind="too_few_samples", values={name: float(value) for name, value in values.items()})
