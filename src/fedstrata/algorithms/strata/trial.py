"""Trials: the models of groups and that of all are trained beside each other for some rounds, before groups are split.

A hold-out comparison of one round cannot tell two kinds of groups apart. The models of some need several rounds until
they are better than one for all. Those of others are better at first, and worse after some rounds, as each has fewer
clients to learn from. Where clients make personal models, groups that differ little are of the second kind.

So members train the models of their groups on half A of their data, in rounds of their own beside the normal training.
Two groups that differ in more than their class mixes are tried beside the confirmed ones.
There is one model for each group of the tree, that of all clients included, and all begin with the cluster's model.
Then each client makes a personal model of the model of each of its groups, on half A as well, and measures on half B.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedstrata.algorithms.shared.interpolation import SHARES
from fedstrata.algorithms.shared.lengths import clipped_to_median
from fedstrata.algorithms.shared.tuning import tuning_by_epochs
from fedstrata.algorithms.strata.group_tree import GroupTree, single_group, with_confirmed_split
from fedstrata.algorithms.strata.holdout import HoldoutComparison, bounded_losses, comparison_of, mean_update
from fedstrata.algorithms.strata.split_decision import ClusterSplit, split_decision
from fedstrata.core import TRAIN, LocalTask, Plan, Problem, Report
from fedstrata.lazy_torch import torch

_ROUNDS = 4
"""The number of rounds in which the models are trained."""

_MAX_DEPTH = 3
"""The most splits above a group in trial. A member trains a model for each of its groups, so this bounds the cost."""

_TUNING_EPOCHS = 4
"""The epochs on half A by which a client makes a personal model, as many as the personal stage `best` takes by default
on all data. The trial does not know the keys of that stage."""

_LEVEL = 0.15
"""The level of the t-test of the gains of personal models after a trial."""

_LATER_LEVEL = 0.05
"""That of later trials of the same clients, and of groups that no permutation test has confirmed."""

CLEAR_LEVEL = 0.001
"""The level of this test from which on a comparison of one round needs no trial."""

_MAX_ROUNDS = 14
"""The number of rounds after which a trial is given up: too few of its members have answered."""


@dataclass(frozen=True)
class GroupTrial:
    """The models of the groups of one cluster in trial.

    Attributes:
        comparison: The groups, their models so far, (q, p), and how well these do. The round is that of the beginning.
        rounds: The number of rounds in which they have been trained.
        beside: The same of two groups of the same clients that differ in more than their class mixes, if there are any.
            Its model of all is that of `comparison`.
    """

    comparison: HoldoutComparison
    rounds: int = 0
    beside: HoldoutComparison | None = None

    @property
    def comparisons(self) -> tuple[HoldoutComparison, ...]:
        """The groups and, if there are any, the others beside them."""
        return (self.comparison,) if self.beside is None else (self.comparison, self.beside)

    @property
    def slots(self) -> list[tuple[int, torch.Tensor]]:
        """The models that each member trains: the place of the comparison, and the group of each client, (m,).

        The groups of all are the first one. Those of a deeper level come later, and those beside them last; -1 is none.
        """
        confirmed = [(0, nodes) for nodes in self.comparison.groups.by_depth()]
        beside = [] if self.beside is None else [(1, nodes) for nodes in self.beside.groups.by_depth()[1:]]
        return confirmed + beside

    @property
    def is_trained(self) -> bool:
        """Whether the models are complete, so that the members measure them."""
        return self.rounds >= _ROUNDS

    def is_given_up(self, round: int) -> bool:
        """Whether the trial ends after a round without a decision: too few have measured, or a model has diverged."""
        late = round >= self.comparison.round + _MAX_ROUNDS
        return late or not bool(self.comparison.models.isfinite().all())

    def only(self, kept: torch.Tensor) -> GroupTrial | None:
        """The trial for some of the clients, by a bool (m,); None where a side is left without any."""
        comparison = self.comparison.only(kept)
        beside = self.beside and self.beside.only(kept)
        return None if comparison is None else replace(self, comparison=comparison, beside=beside)


def may_be_tried(problem: Problem, comparison: HoldoutComparison) -> bool:
    """Whether a trial may follow a comparison that does not show a clear gain.

    It is of personal models, and of the members themselves. And members upload more updates, of which models of groups
    are made that others receive: neither differential privacy nor a least number of clients in a cluster covers them.
    """
    is_open = problem.privacy is None and not problem.local_noise and problem.min_cluster == 1
    is_of_groups = comparison.groups.confirmed > 0 and not comparison.has_stand_ins
    return is_open and is_of_groups and comparison.of_personal_models


def start_trial(comparison: HoldoutComparison, start: torch.Tensor, round: int, *, first: bool) -> GroupTrial:
    """A trial of those groups of a comparison that permutation tests have confirmed, and of two beside them.

    Args:
        comparison: The comparison.
        start: The model of the cluster, (p,).
        round: The round after which the trial begins.
        first: Whether the clients have not been in a trial before.
    """
    level = _LEVEL if first else _LATER_LEVEL
    confirmed = _begun(comparison, comparison.groups.confirmed_only(_MAX_DEPTH), start, round, gain_level=level)
    second = comparison.beyond_mixes
    if second is None or not bool(second.any()) or bool(second.all()):
        return GroupTrial(confirmed)
    if any(torch.equal(second, side) for side in confirmed.groups.inside[1:3]):
        return GroupTrial(confirmed)  # They are the confirmed sides.
    # No test has confirmed them: half A alone has made them, and the t-test on half B decides.
    sides = with_confirmed_split(single_group(len(second)), 0, ~second, second)
    beside = _begun(comparison, sides, start, round, gain_level=_LATER_LEVEL, beyond_mixes=1.0)
    return GroupTrial(confirmed, beside=beside)


def _begun(
    comparison: HoldoutComparison,
    groups: GroupTree,
    start: torch.Tensor,
    round: int,
    *,
    gain_level: float,
    **values: float,
) -> HoldoutComparison:
    """The comparison of groups in trial, all of whose models begin with that of the cluster.

    Args:
        comparison: The comparison of one round before the trial.
        groups: The groups in trial.
        start: The model of the cluster, (p,).
        round: The round after which the trial begins.
        gain_level: The level of the t-test of the gains.
        values: What the decision tells beside the values of the test.
    """
    models = start.expand(len(groups), -1).clone()
    test = comparison.decision
    decision = replace(test, values={**test.values, "trial_rounds": float(_ROUNDS), **values})
    # A checkpoint holds no tensor twice.
    clients = comparison.clients.clone()
    own = start[None].clone()
    level = comparison.level
    trial = comparison_of(clients, groups, models, own, level=level, decision=decision, round=round)
    return replace(trial, gain_level=gain_level)


def add_trial_tasks(plan: Plan, problem: Problem, trials: Sequence[GroupTrial]) -> Plan:
    """The plan in which members also train the models of trials, or make personal models of them and measure these.

    Args:
        plan: The plan.
        problem: What is fixed for the run.
        trials: The trials.
    """
    if not trials:
        return plan
    to_train = _ModelsBySlot(plan.cohort)
    to_measure = _ModelsBySlot(plan.cohort)
    models = [plan.models]
    for trial in trials:
        asked = to_measure if trial.is_trained else to_train
        asked.add(trial, first=sum(map(len, models)))
        models += [comparison.models for comparison in trial.comparisons]
    work = replace(plan.tasks[TRAIN], fold="A", selection_fold="A")
    tasks = dict(plan.tasks)
    for slot, candidates in enumerate(to_train.candidates):
        name = _training_task(slot)
        tasks[name] = replace(work, candidates=candidates[:, None], stream=name)
    for slot, candidates in enumerate(to_measure.candidates):
        tasks |= _measuring_tasks(problem, replace(work, candidates=candidates[:, None]), slot)
    return replace(plan, models=torch.cat(models), tasks=tasks)


class _ModelsBySlot:
    """The model of each client of a cohort by the slot of a trial, (m,) each; -1 for none."""

    def __init__(self, cohort: torch.Tensor) -> None:
        self._cohort = cohort
        self.candidates = list[torch.Tensor]()

    def add(self, trial: GroupTrial, first: int) -> None:
        """Add the clients of a trial that have not measured yet. The model of its first group has this number."""
        comparison = trial.comparison
        waiting = ~comparison.answered
        rows = torch.isin(self._cohort, comparison.clients[waiting])
        places = torch.searchsorted(comparison.clients, self._cohort[rows])
        starts = (first, first + len(comparison.models))
        for slot, (which, nodes) in enumerate(trial.slots):
            if slot == len(self.candidates):
                self.candidates.append(torch.full_like(self._cohort, -1))
            own = nodes[places]
            self.candidates[slot][rows] = torch.where(own >= 0, starts[which] + own, -1)


def _training_task(slot: int) -> str:
    """The name of the task in which the models of a slot are trained."""
    return f"trial {slot}"


def _measuring_task(slot: int) -> str:
    """The name of the task in which personal models of them are measured."""
    return f"trial {slot} loss"


def _measuring_tasks(problem: Problem, work: LocalTask, slot: int) -> dict[str, LocalTask]:
    """The tasks in which clients make personal models of one model each, and measure their losses on half B."""
    work = replace(work, upload=problem.layout.nothing)
    name = f"trial {slot} tuning"
    # The rate is that before any schedule, as in the personal stage.
    tuning = tuning_by_epochs(work, problem.training, name, _TUNING_EPOCHS, stream=name)
    *_, tuned = tuning
    wide = (len(work.candidates), len(SHARES))
    loss = replace(
        work,
        candidates=work.candidates.expand(wide),
        shares=torch.tensor(SHARES).expand(wide),
        trainable=problem.layout.nothing,
        continues=tuned,
        fold="B",
        selection_fold="B",
        stream=_measuring_task(slot),
    )
    return {**tuning, _measuring_task(slot): loss}


def with_trial_round(problem: Problem, trial: GroupTrial, report: Report) -> GroupTrial:
    """The trial after a round: with the models trained once more, or with the losses that members have measured.

    A round in which nobody of some group has trained does not count.

    Args:
        problem: What is fixed for the run.
        trial: The trial, as in the plan that `add_trial_tasks` made.
        report: The report of that plan.
    """
    if trial.is_trained:
        return _with_losses(trial, report)
    models = [comparison.models.clone() for comparison in trial.comparisons]
    trained = set[tuple[int, int]]()
    for slot, (which, nodes) in enumerate(trial.slots):
        clients = trial.comparison.clients
        updates = report.results[_training_task(slot)].updates
        # Nothing says whether a client scales its updates in a trial, so nobody's counts more than two.
        updates = clipped_to_median(updates.at(torch.isin(updates.clients, clients)))
        own = nodes[torch.searchsorted(clients, updates.clients)]
        for node in own.unique().tolist():
            models[which][node] += mean_update(problem, updates.at(own == node))[0]
            trained.add((which, node))
    if sum(which == 0 for which, _ in trained) < len(models[0]):
        return trial  # A model that goes on without others would be compared with less trained ones.
    comparison = replace(trial.comparison, models=models[0])
    beside = trial.beside
    if beside is not None:
        models[1][0] = models[0][0]
        # The confirmed groups do not wait for those beside them.
        is_whole = {(1, 1), (1, 2)} <= trained and bool(models[1].isfinite().all())
        beside = replace(beside, models=models[1]) if is_whole else None
    return GroupTrial(comparison, trial.rounds + 1, beside)


def trial_events(
    before: Mapping[int, GroupTrial], after: Mapping[int, GroupTrial], decided: Container[int], nodes: torch.Tensor
) -> tuple[dict[str, Any], ...]:
    """An event for every trial that begins, or that ends without a decision.

    Args:
        before: The trials before a round, by cluster.
        after: The trials after it.
        decided: The clusters whose trial has ended with a decision.
        nodes: The tree node of each cluster, (k,).
    """
    begun = [("trial", cluster) for cluster in after if cluster not in before]
    ended = [("trial_given_up", cluster) for cluster in before if cluster not in after and cluster not in decided]
    return tuple({"kind": kind, "node": int(nodes[cluster])} for kind, cluster in [*begun, *ended])


def _with_losses(trial: GroupTrial, report: Report) -> GroupTrial:
    """The trial with the losses of those who have measured in a round."""
    clients = trial.comparison.clients
    losses = [comparison.losses_by_share.clone() for comparison in trial.comparisons]
    for slot, (which, nodes) in enumerate(trial.slots):
        result = report.results[_measuring_task(slot)]
        here = torch.isin(result.updates.clients, clients)
        places = torch.searchsorted(clients, result.updates.clients[here])
        losses[which][places, nodes[places]] = bounded_losses(result.losses[here])
    comparison = replace(trial.comparison, losses_by_share=losses[0])
    beside = trial.beside
    if beside is not None:
        losses[1][:, 0] = losses[0][:, 0]
        beside = replace(beside, losses_by_share=losses[1])
    return replace(trial, comparison=comparison, beside=beside)


def trial_decision(trial: GroupTrial, round: int, *, holdout_check: bool) -> ClusterSplit:
    """Which groups of a trial get a cluster each: of two splits that lower the loss, the one that lowers it more.

    Args:
        trial: One in which enough have measured.
        round: The round of the last answers.
        holdout_check: Whether a split must lower the loss.
    """
    decided, *others = (split_decision(each, round, holdout_check=holdout_check) for each in trial.comparisons)
    for other in others:
        gains_more = other.decision.values["gain"] > decided.decision.values["gain"]
        if other.count > 1 and (decided.count == 1 or gains_more):
            decided = other
    return decided
