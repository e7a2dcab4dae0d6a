"""Strata: a cluster is split only if a second half of its clients' data confirms it.

No thresholds, no number of clusters and no choice of layers. fedstrata's own algorithm; docs/strata.md has the promise,
its proof and its limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from annotated_types import Interval
from pydantic.dataclasses import dataclass

from fedstrata.algorithms.shared.directions import no_directions
from fedstrata.algorithms.shared.keys import STRICT, Auto, NonNegativeInteger
from fedstrata.algorithms.shared.lengths import no_lengths
from fedstrata.algorithms.shared.model_stability import empty_window
from fedstrata.algorithms.shared.split_half import add_fold_tasks, answering_cohort, next_level, usable_sizes
from fedstrata.algorithms.strata.holdout import (
    HoldoutComparison,
    add_evaluation_tasks,
    first_half_updates,
    stand_ins,
    start_comparison,
    with_answers,
)
from fedstrata.algorithms.strata.outliers import (
    add_outlier_training,
    compare_outliers,
    outlier_decision,
    start_search,
)
from fedstrata.algorithms.strata.reassignment import (
    add_other_candidates,
    open_clusters,
    reassigned_clients,
    reassignment_events,
    unite_alike,
    unsettled,
)
from fedstrata.algorithms.strata.split_clusters import split_clusters
from fedstrata.algorithms.strata.split_decision import ClusterSplit, split_decision
from fedstrata.algorithms.strata.split_tests import (
    SplitTest,
    clusters_to_test,
    confirmed_groups,
    decisions_of,
    decisions_without_test,
    matrices_of,
    run_tests,
)
from fedstrata.algorithms.strata.state import (
    ClusterState,
    StabilityMonitor,
    StrataState,
    is_sampled,
    monitor_round,
    pending_after_split,
    with_answer_counts,
    with_membership_changes,
)
from fedstrata.algorithms.strata.trial import (
    CLEAR_LEVEL,
    add_trial_tasks,
    may_be_tried,
    start_trial,
    trial_decision,
    trial_events,
    with_trial_round,
)
from fedstrata.algorithms.strata.update_checks import check_updates
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
from fedstrata.lazy_torch import torch

_STABILITY_UPLOADS = 3
"""The number of uploads over which the stability of a client is averaged."""


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
            docs/strata.md has the assumptions, and the bound for one cluster beside others that differ.
        folds: The number of folds of a client's data that are compared. Auto is 2, and 4 where few clients of a cluster
            answer.
        test_schedule: When clusters are tested: in the rounds above ("schedule"), or after rounds in which some layer
            of the members was stable, as in HiCFL ("stability"), each at least 1.5 times as late as the last.
        reassignment_rounds: The number of rounds after a split in which members of the new clusters may still choose
            another of them.
        holdout_check: Whether a split must lower the loss on half B of the data, where the models compared differ only
            by updates of half A. A split that does not lower it may be tried again in the next split-half round.
            Without the check, a cluster of four or more is split into the two sides as soon as a test confirms them.
        holdout_models: Which models the check compares: those of the groups as they are ("group"), or personal models
            that their members make of them ("personal"). Auto is "personal" in a run with a personal stage, such as
            ``personal.method = "best"``, and else "group".
        direction_check: Whether updates that keep pointing against those of their cluster, such as updates with flipped
            signs, are left out of its mean. With central differential privacy they are not.
        norm_check: Whether no update counts more than twice the median norm of its cluster, updates that keep being
            much longer are left out of its mean, and clients whose updates have suddenly become much longer are offered
            the models of all clusters. With central differential privacy none of this is done.
        copy_check: Whether an update that several clients of a cluster send alike counts once, unless half of the
            cluster or more do. With central differential privacy it counts as often as it is sent.
    """

    source: ClassVar[str] = "fedstrata, docs/strata.md"

    alpha: Annotated[float, Interval(gt=0, lt=1)] = 0.05
    folds: Literal[2, 4] | Auto = "auto"
    test_schedule: Literal["schedule", "stability"] = "schedule"
    reassignment_rounds: NonNegativeInteger = 2
    holdout_check: bool = True
    holdout_models: Literal["group", "personal"] | Auto = "auto"
    direction_check: bool = True
    norm_check: bool = True
    copy_check: bool = True

    def with_personal_models(self) -> Strata:
        """The algorithm for a run with a personal stage."""
        return replace(self, holdout_models="personal") if self.holdout_models == "auto" else self

    def init(self, problem: Problem) -> StrataState:
        """Everyone in one cluster."""
        n = problem.clients
        by_stability = self.test_schedule == "stability"
        return extend_state(
            initial_state(problem),
            StrataState,
            clusters=(ClusterState(),),
            sizes=torch.zeros(n, dtype=torch.int64),
            side_tests=torch.zeros(n, dtype=torch.int64),
            newcomers=torch.zeros(n, dtype=torch.bool),
            pending_after_split=torch.zeros(n, dtype=torch.bool),
            monitor=StabilityMonitor(empty_window(problem, _STABILITY_UPLOADS)) if by_stability else None,
            # With central differential privacy, no client may decide whether another one counts.
            directions=no_directions(n) if self.direction_check and problem.privacy is None else None,
            lengths=no_lengths(n) if self.norm_check and problem.privacy is None else None,
        )

    def plan(self, problem: Problem, state: StrataState, cohort: torch.Tensor) -> Plan:
        """Everyone trains the model of its cluster; in split-half rounds also on folds of its data."""
        state = with_membership_changes(state)
        plan = add_other_candidates(fedavg_plan(problem, state, cohort), state)
        running = [(known.comparison, state.labels == cluster) for cluster, known in enumerate(state.clusters)]
        comparisons = [(each, stand_ins(each, members, cohort)) for each, members in running if each is not None]
        plan = add_evaluation_tasks(plan, problem.layout, comparisons)
        plan = add_trial_tasks(plan, problem, list(state.trials.values()))
        plan = add_outlier_training(plan, state.searches)
        return add_fold_tasks(plan, clusters_to_test(problem, state, self.alpha, self.folds, cohort), state.sizes)

    def update(self, problem: Problem, state: StrataState, report: Report) -> tuple[StrataState, Diagnostics]:
        """Conclude hold-out comparisons, test the clusters that are due, split clusters, and average the updates."""
        before = state
        state = with_membership_changes(state)
        labels = self.assign(problem, state, report)
        reassigned = reassigned_clients(state, labels)
        state = replace(state, newcomers=state.newcomers | (reassigned & unsettled(state)))
        copy_check = self.copy_check and problem.privacy is None
        checked = check_updates(problem.layout, state, report, labels, copy_check=copy_check)
        state, report = checked.state, checked.report
        participants = clusters_to_test(problem, state, self.alpha, self.folds, answering_cohort(report))
        decisions = decisions_without_test(state, participants, self.folds)

        # 1. Conclude the trials and hold-out comparisons in which enough clients have answered. Start the trials of
        # groups whose gain is not clear, and the comparisons of outliers.
        state, tried = self._go_on_with_trials(problem, state, report)
        state, compared = self._go_on_with_comparisons(problem, state, report)
        state = self._compare_outliers(problem, state, report)
        concluded = {**tried, **compared}
        decisions |= {cluster: split.decision for cluster, split in concluded.items()}
        trials = trial_events(before.trials, state.trials, tried, state.nodes)
        splits = {cluster: split for cluster, split in concluded.items() if split.count > 1}

        # 2. Test the clusters that are due and that are not split already.
        tested = [each for each in participants if each.cluster not in splits]
        state, tests = run_tests(problem, state, report, tested, labels, self.alpha)
        decisions |= decisions_of(state, tests)

        # 3. Compare models of the groups where a test confirmed some. Without the check they are split in this round.
        # Where it confirmed none, the outliers train models of their own.
        state, confirmed = self._start_comparisons(problem, state, tests)
        splits |= confirmed

        # 4. Split, and average the updates inside the clusters (FedAvg), without those that are left out.
        state = replace(state, sizes=usable_sizes(state.sizes, report, participants))
        parted = split_clusters(state, labels, splits, self.reassignment_rounds)
        after, diagnostics = aggregate(problem, state, checked.counted, parted.labels, parted.parents, decisions)
        monitor, stability = monitor_round(problem, before, report)
        after = replace(
            after,
            directions=state.directions and state.directions.doubting(parted.doubted),
            clusters=with_answer_counts(parted.clusters, after.labels, report),
            pending_after_split=pending_after_split(before, after),
            monitor=monitor,
        )
        doubts = ({"kind": "doubted", "clients": parted.doubted.tolist()},) if len(parted.doubted) else ()
        return after, Diagnostics(
            events=(
                *checked.events,
                *doubts,
                *trials,
                *reassignment_events(state, labels, reassigned),
                *diagnostics.events,
            ),
            metrics=(*diagnostics.metrics, *stability),
            matrices=matrices_of(problem.layout, state, tests),
        )

    def assign(self, problem: Problem, state: StrataState, report: Report) -> torch.Tensor:
        """Pending clients, and others that may choose, belong to the model of lowest loss on their training data."""
        labels = assign_pending(state, report)
        result = report.results[TRAIN]
        clients = result.updates.clients
        free = (state.labels[clients] >= 0) & (open_clusters(state)[state.labels[clients]] | unsettled(state)[clients])
        labels[clients[free]] = result.chosen[free]
        return unite_alike(state, report, labels)

    def evaluations(self, problem: Problem, state: State, clients: torch.Tensor) -> dict[str, Evaluation]:
        """Everyone uses the model of its cluster."""
        return cluster_evaluation(problem, state, clients)

    def _go_on_with_trials(
        self, problem: Problem, state: StrataState, report: Report
    ) -> tuple[StrataState, dict[int, ClusterSplit]]:
        """The state with the trials after a round, and what was decided where enough have measured, by cluster."""
        round = state.round + 1
        concluded = dict[int, ClusterSplit]()
        clusters = list(state.clusters)
        for cluster, trial in state.trials.items():
            trial = with_trial_round(problem, trial, report)
            is_over = trial.comparison.complete or trial.is_given_up(round)
            if trial.comparison.complete:
                concluded[cluster] = trial_decision(trial, round, holdout_check=self.holdout_check)
            clusters[cluster] = replace(clusters[cluster], trial=None if is_over else trial)
        return replace(state, clusters=tuple(clusters)), concluded

    def _go_on_with_comparisons(
        self, problem: Problem, state: StrataState, report: Report
    ) -> tuple[StrataState, dict[int, ClusterSplit]]:
        """The state with the members' answers, and what was decided where enough have answered, by cluster.

        Where a comparison shows no clear gain, the state has a trial of its groups.
        """
        round = state.round + 1
        concluded = dict[int, ClusterSplit]()
        clusters = list(state.clusters)
        for cluster, known in enumerate(state.clusters):
            if known.comparison is None:
                continue
            others = stand_ins(known.comparison, state.labels == cluster, report.results[TRAIN].updates.clients)
            comparison = with_answers(known.comparison, report, round, others)
            clusters[cluster] = replace(known, comparison=comparison)
            if comparison is not None and comparison.complete:
                split = self._split_decision(comparison, state)
                is_split = split is not None and split.count > 1
                clusters[cluster] = known.concluded(comparison, split=is_split)
                if not is_split and known.may_try(round) and may_be_tried(problem, comparison):
                    first = known.last_trial_round == 0
                    trial = start_trial(comparison, state.models[cluster], round, first=first)
                    clusters[cluster] = clusters[cluster].trying(trial)
                # If no outlier is separated, the decision of the test before the search stays.
                concluded |= {} if split is None else {cluster: split}
        return replace(state, clusters=tuple(clusters)), concluded

    def _split_decision(self, comparison: HoldoutComparison, state: StrataState) -> ClusterSplit | None:
        """What a comparison decides after a round; None where it is of outliers, and separates none."""
        round = state.round + 1
        if comparison.of_outliers:
            return outlier_decision(comparison, round)
        return split_decision(
            comparison,
            round,
            holdout_check=self.holdout_check,
            left_out=state.left_out,
            harm_check=state.directions is not None,
        )

    def _start_comparisons(
        self, problem: Problem, state: StrataState, tests: Sequence[SplitTest]
    ) -> tuple[StrataState, dict[int, ClusterSplit]]:
        """The state with a hold-out comparison for every confirmed test, and what is split without one, by cluster."""
        round = state.round + 1
        clusters = list(state.clusters)
        side_tests = state.side_tests
        splits = dict[int, ClusterSplit]()
        for test in tests:
            known = clusters[test.cluster]
            if test.result.confirmed and not self.holdout_check:
                splits[test.cluster] = ClusterSplit(test.clients, test.result.proposal.long(), 2, test.decision)
            elif problem.privacy is not None and not test.result.confirmed:
                continue  # Models of a few clients would be noise.
            elif test.result.confirmed or test.is_single_fold:
                found = confirmed_groups(problem.layout, test, known, self.alpha, side_tests)
                side_tests = side_tests.index_add(0, test.clients, found.tested.long())
                sampled = is_sampled(known, int((state.labels == test.cluster).sum()))
                half = first_half_updates(test.sent, test.clients)
                comparison = start_comparison(
                    problem,
                    state.models[test.cluster],
                    half,
                    test.clients,
                    found.groups,
                    level=found.level,
                    decision=found.decision,
                    node=int(state.nodes[test.cluster]),
                    round=round,
                    # Differential privacy adds noise for every part, so that finer ones would spoil the larger ones.
                    finer=found.finer and problem.privacy is None and not sampled,
                    # A personal model of one of two or three clients is hardly another than that of a group of its own.
                    personal=self.holdout_models == "personal" and not test.is_single_fold,
                    has_stand_ins=sampled,
                )
                if comparison is not None and may_be_tried(problem, comparison):
                    comparison = replace(comparison, gain_level=CLEAR_LEVEL)
                clusters[test.cluster] = known.comparing(comparison, is_test=test.is_single_fold)
            elif known.may_search(round) and problem.min_cluster == 1:  # An outlier's model is of one client.
                half = first_half_updates(test.sent, test.clients)
                search = start_search(problem.layout, half, round)
                clusters[test.cluster] = known.searching(search)
        return replace(state, clusters=tuple(clusters), side_tests=side_tests), splits

    def _compare_outliers(self, problem: Problem, state: StrataState, report: Report) -> StrataState:
        """The state with a hold-out comparison for every search for outliers of which some have trained a model."""
        round = state.round + 1
        clusters = list(state.clusters)
        for cluster, search in state.searches.items():
            known = clusters[cluster]
            level = next_level(self.alpha, known.tests)
            comparison = compare_outliers(problem, state.models[cluster], search, report, level=level, round=round)
            if comparison is not None:
                clusters[cluster] = known.comparing(comparison, is_test=True)
            elif search.is_given_up(round):
                clusters[cluster] = replace(known, search=None)
        return replace(state, clusters=tuple(clusters))
