"""Strata: a cluster is split only if a second half of its clients' data confirms it.

No thresholds, no number of clusters and no choice of layers. fedstrata's own algorithm; docs/methods/strata.md has the
promise, its proof and its limits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from annotated_types import Interval
from pydantic.dataclasses import dataclass

from fedstrata.algorithms.evidence.split_half import add_fold_tasks, selected_clients, usable_sizes
from fedstrata.algorithms.keys import STRICT, Auto, NonNegativeInteger
from fedstrata.algorithms.strata.comparisons import conclude_comparisons, start_comparisons
from fedstrata.algorithms.strata.holdout_tasks import add_evaluation_tasks, stand_ins
from fedstrata.algorithms.strata.multi_round import add_multi_round_tasks, multi_round_events
from fedstrata.algorithms.strata.outliers import add_outlier_training
from fedstrata.algorithms.strata.reassignment import (
    add_other_candidates,
    choosing_among_all,
    may_choose,
    merge_alike_clusters,
    reassigned_clients,
    reassignment_events,
)
from fedstrata.algorithms.strata.split_clusters import after_splits, split_clusters
from fedstrata.algorithms.strata.split_tests import (
    clusters_to_test,
    decisions_of,
    decisions_without_test,
    matrices_of,
    run_tests,
)
from fedstrata.algorithms.strata.state import ClusterState, StrataState, with_membership_changes
from fedstrata.base.lazy_torch import torch
from fedstrata.core import (
    TRAIN,
    Diagnostics,
    Evaluation,
    Plan,
    Problem,
    Report,
    State,
    aggregate,
    assign_pending,
    cluster_evaluation,
    extend_state,
    fedavg_plan,
    initial_state,
)
from fedstrata.core.server import CheckedUpdates, DecisionChecks, history_of


@dataclass(frozen=True, config=STRICT)
class Strata:
    """Strata: splits only what a second half of the data confirms; no thresholds, a bounded chance of a wrong split.

    In split-half rounds (2, 3, 4, 6, 9, 13, 19, 28, each 1.5 times the last) clients also train on disjoint folds of
    their data. A permutation test asks whether the similarities of the clients by one fold agree with those by another.
    For clients of one distribution it says so, in any of its tests, with a probability of at most `alpha`. Then models
    of the two sides, and of finer groups, are made from one half of the data and compared on the other half. A group
    becomes a cluster if its own model has the lower loss.

    A client that is absent in a split-half round takes no part in the test. When its cluster is split, it becomes
    pending and later takes the new cluster of lowest training loss. A newcomer takes the cluster of lowest training
    loss. In the next split-half round, the test of that cluster asks whether its newcomers differ from the members.
    Otherwise it asks whether there are groups. Where a round selects only some clients, similarities are averaged
    over split-half rounds. Then the test compares clients of whom every two have answered in the same round.

    Attributes:
        alpha: The largest probability, over the whole run, of splitting clients that all share one distribution.
            docs/methods/strata.md has the assumptions, and the bound for one cluster beside others that differ.
        folds: The number of folds of a client's data that are compared. Auto is 2, and 4 where few clients of a cluster
            answer.
        reassignment_rounds: The number of rounds after a split in which members of the new clusters may still choose
            another of them.
        holdout_check: Whether a split must lower the loss on half B of the data, where the models compared differ only
            by updates of half A. A split that does not lower it may be tried again in the next split-half round.
            Without the check, a cluster of four or more is split into the two sides as soon as a test confirms them.
        holdout_models: Which models the check compares: those of the groups as they are ("group"), or personal models
            that their members make of them ("personal"). Auto is "personal" in a run with a personal stage, such as
            ``personal.method = "best"``, and else "group".
    """

    source: ClassVar[str] = "fedstrata, docs/methods/strata.md"
    checks_updates: ClassVar[bool] = True

    alpha: Annotated[float, Interval(gt=0, lt=1)] = 0.05
    folds: Literal[2, 4] | Auto = "auto"
    reassignment_rounds: NonNegativeInteger = 2
    holdout_check: bool = True
    holdout_models: Literal["group", "personal"] | Auto = "auto"

    def with_personal_models(self) -> Strata:
        """The algorithm for a run with a personal stage."""
        return replace(self, holdout_models="personal") if self.holdout_models == "auto" else self

    def init(self, problem: Problem) -> StrataState:
        """Everyone in one cluster."""
        n = problem.clients
        return extend_state(
            initial_state(problem),
            StrataState,
            clusters=(ClusterState(),),
            sizes=torch.zeros(n, dtype=torch.int64),
            side_tests=torch.zeros(n, dtype=torch.int64),
            newcomers=torch.zeros(n, dtype=torch.bool),
            pending_after_split=torch.zeros(n, dtype=torch.bool),
        )

    def plan(self, problem: Problem, state: StrataState, cohort: torch.Tensor) -> Plan:
        """Everyone trains the model of its cluster; in split-half rounds also on folds of its data."""
        state = with_membership_changes(state)
        plan = add_other_candidates(fedavg_plan(problem, state, cohort), state)
        running = [(known.comparison, state.labels == cluster) for cluster, known in enumerate(state.clusters)]
        comparisons = [(each, stand_ins(each, members, cohort)) for each, members in running if each is not None]
        plan = add_evaluation_tasks(plan, problem.layout, comparisons)
        plan = add_multi_round_tasks(plan, problem, list(state.multi_rounds.values()))
        plan = add_outlier_training(plan, state.searches)
        return add_fold_tasks(plan, clusters_to_test(problem, state, self.alpha, self.folds, cohort), state.sizes)

    def update(self, problem: Problem, state: StrataState, report: Report) -> tuple[StrataState, Diagnostics]:
        """Conclude hold-out comparisons, test the clusters that are due, split clusters, and average the updates."""
        # Who has come, left, changed its data or chosen another cluster, and whose updates count.
        before = with_membership_changes(state)
        labels = self.assign(problem, before, report)
        reassigned = reassigned_clients(before, labels)
        known, checked = _check_updates(problem, before, report, labels, reassigned)

        # 1. Conclude hold-out comparisons of one and of several rounds.
        concluded = conclude_comparisons(
            problem, known, checked.report, alpha=self.alpha, holdout_check=self.holdout_check
        )

        # 2. Test the clusters that are due and that are not split already. `plan` has asked the same participants.
        cohort = selected_clients(checked.report)
        participants = clusters_to_test(problem, known, self.alpha, self.folds, cohort)
        due = [each for each in participants if each.cluster not in concluded.splits]
        after_tests, tests = run_tests(problem, concluded.state, checked.report, due, labels, self.alpha)

        # 3. Compare models of the groups where a test confirmed some, or search for outliers.
        personal_models = self.holdout_models == "personal"
        started, at_once = start_comparisons(
            problem,
            after_tests,
            tests,
            alpha=self.alpha,
            holdout_check=self.holdout_check,
            personal_models=personal_models,
        )
        started = replace(started, sizes=usable_sizes(started.sizes, checked.report, participants))

        # 4. Split, and average the updates inside the clusters (FedAvg), without those that are left out.
        split = split_clusters(started, labels, {**concluded.splits, **at_once}, self.reassignment_rounds)
        decisions = {
            **decisions_without_test(known, participants, self.folds),
            **{cluster: decided.decision for cluster, decided in concluded.decided.items()},
            **decisions_of(after_tests, tests),
        }
        unchecked = replace(problem, checks=None)  # What counts is known already.
        after, diagnostics = aggregate(unchecked, started, checked.counted, split.labels, split.parents, decisions)
        after = after_splits(state, after, split, checked.report)
        several_rounds = multi_round_events(
            state.multi_rounds, concluded.state.multi_rounds, concluded.by_multi_round, state.nodes
        )
        moved = reassignment_events(before, labels, reassigned)
        events = (*checked.events, *split.events, *several_rounds, *moved, *diagnostics.events)
        matrices = matrices_of(problem.layout, after_tests, tests)
        return after, Diagnostics(events, diagnostics.metrics, matrices)

    def assign(self, problem: Problem, state: StrataState, report: Report) -> torch.Tensor:
        """Pending clients, and others that may choose, belong to the model of lowest loss on their training data."""
        labels = assign_pending(state, report)
        result = report.results[TRAIN]
        clients = result.updates.clients
        free = may_choose(state)[clients]
        labels[clients[free]] = result.chosen[free]
        return merge_alike_clusters(state, report, labels)

    def evaluations(self, problem: Problem, state: State, clients: torch.Tensor) -> dict[str, Evaluation]:
        """Everyone uses the model of its cluster."""
        return cluster_evaluation(problem, state, clients)


def _check_updates(
    problem: Problem, state: StrataState, report: Report, labels: torch.Tensor, reassigned: torch.Tensor
) -> tuple[StrataState, CheckedUpdates]:
    """The updates of a round as far as they count. Newcomers that have gone over to another cluster stay such.

    Tests and comparisons of groups go on with those that do not count.

    Returns:
        The state with what is now known of the clients, and the updates.
    """
    newcomers = state.newcomers | (reassigned & choosing_among_all(state))
    state = replace(state, newcomers=newcomers)
    if problem.checks is None:
        return state, CheckedUpdates(history_of(state), report, report)
    assert isinstance(problem.checks, DecisionChecks)
    checked = problem.checks.check(
        problem.layout,
        state.history,
        report,
        state.labels,
        labels,
        newcomers=newcomers,
        chose=choosing_among_all(state),
    )
    return replace(state, history=checked.history), checked
