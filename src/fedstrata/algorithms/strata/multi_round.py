"""Hold-out comparisons over several rounds: models of groups, and that of all, are trained before they are compared.

A hold-out comparison of one round cannot tell two kinds of groups apart. The models of some need several rounds until
they are better than one for all. Those of others are better at first, and worse after some rounds, as each has fewer
clients to learn from. Where clients make personal models, groups that differ little are of the second kind.

So members train the models of their groups on half A of their data, in rounds of their own beside the normal training.
There is one model for each group of the tree, that of all clients included, and all begin with the cluster's model.
Then each client makes a personal model of the model of each of its groups, on half A as well, and measures on half B.

Beside the confirmed groups, two groups are compared that differ in more than their class mixes. They are formed by the
updates of the first round. From then on each client trains the model of the two that has the lower loss on half A of
its data, as in IFCA, and so belongs to its group (Ghosh et al., "An efficient framework for clustered federated
learning", NeurIPS 2020, algorithm 1).
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedstrata.algorithms.strata.class_mixes import sides_beyond_class_mixes
from fedstrata.algorithms.strata.groups import GroupTree, mean_update, single_group, with_confirmed_split
from fedstrata.algorithms.strata.holdout import HoldoutComparison, comparison_of
from fedstrata.algorithms.strata.holdout_tasks import bounded_losses
from fedstrata.algorithms.strata.split_decision import ClusterSplit, split_decision
from fedstrata.algorithms.tuning import SHARES, tuning_by_epochs
from fedstrata.base.lazy_torch import torch
from fedstrata.core import TRAIN, Decision, Layout, LocalTask, Plan, Problem, Report, Result, Rows
from fedstrata.core.aggregation import clipped_to_twice_median

_ROUNDS = 4
"""The number of rounds in which the models are trained."""

_MAX_DEPTH = 3
"""The most splits above a group. It bounds the cost, as a member trains a model for each of its groups."""

_LEVEL = 0.15
"""The level of the t-test of the gains of personal models."""

_LATER_LEVEL = 0.05
"""The level of this t-test in later comparisons of the same clients."""

CLEAR_LEVEL = 0.001
"""The level of this test from which on a comparison of one round is enough, and that of groups which no
permutation test has confirmed."""

_CHOICE_TASK = "trial beside"
"""The task in which members choose and train one of the two models of groups beyond class mixes."""

_MAX_ROUNDS = 14
"""The number of rounds after which a comparison is given up: too few of its members have answered."""

_TUNING_EPOCHS = 4
"""The epochs on half A by which a client makes a personal model, as many as the personal stage `best` takes by default
on all data. The keys of that stage are not known here."""


@dataclass(frozen=True)
class MultiRoundComparison:
    """The models of the groups of one cluster, which are trained for some rounds and then compared.

    Attributes:
        comparison: The groups, their models so far, (q, p), and how well these do. The round is that of the beginning.
        rounds: The number of rounds in which they have been trained.
        beyond_mixes: After the first round, the same of two groups of the same clients that differ in more than their
            class mixes, if there are any. Its model of all is that of `comparison`.
    """

    comparison: HoldoutComparison
    rounds: int = 0
    beyond_mixes: HoldoutComparison | None = None

    @property
    def comparisons(self) -> tuple[HoldoutComparison, ...]:
        """The confirmed groups and, if there are any, those beyond class mixes."""
        return (self.comparison,) if self.beyond_mixes is None else (self.comparison, self.beyond_mixes)

    @property
    def models(self) -> torch.Tensor:
        """The models of both, (q or q + 3, p)."""
        return torch.cat([each.models for each in self.comparisons])

    def candidates(self) -> dict[str, torch.Tensor]:
        """The models of which each client trains or measures one, by task: places in `models`, (m, c); -1 for none.

        The first task has the groups of all, the next ones deeper levels, and the last one those beyond class mixes.
        """
        levels = enumerate(self.comparison.groups.by_depth())
        found = {_level_task(level): nodes[:, None] for level, nodes in levels}
        if self.beyond_mixes is not None:
            first = len(self.comparison.models)
            sides = self.beyond_mixes.groups.by_depth()[1]
            own = torch.where(sides >= 0, first + sides, -1)[:, None]
            both = torch.tensor([first + 1, first + 2]).expand(len(own), 2)
            found[_CHOICE_TASK] = own if self.is_trained else both
        return found

    @property
    def is_trained(self) -> bool:
        """Whether the models are complete, so that the members measure them."""
        return self.rounds >= _ROUNDS

    def is_given_up(self, round: int) -> bool:
        """Whether it ends after a round without a decision: too few have measured, or a model has diverged."""
        late = round >= self.comparison.round + _MAX_ROUNDS
        return late or not bool(self.comparison.models.isfinite().all())

    def only(self, kept: torch.Tensor) -> MultiRoundComparison | None:
        """The comparison of some of the clients, by a bool (m,); None where a side is left without any."""
        comparison = self.comparison.only(kept)
        beyond_mixes = self.beyond_mixes and self.beyond_mixes.only(kept)
        return None if comparison is None else replace(self, comparison=comparison, beyond_mixes=beyond_mixes)


def allows_multi_round(problem: Problem, comparison: HoldoutComparison) -> bool:
    """Whether a comparison over several rounds may follow one that does not show a clear gain.

    It is of personal models, and of the members themselves. And members upload more updates, of which models of groups
    are made that others receive, also of few members.
    """
    is_open = problem.extra_uploads and problem.aggregation.least_clients == 1
    is_of_groups = comparison.groups.confirmed > 0 and not comparison.has_stand_ins
    return is_open and is_of_groups and comparison.of_personal_models


def start_multi_round(
    comparison: HoldoutComparison, start: torch.Tensor, round: int, *, first: bool
) -> MultiRoundComparison:
    """Begin a comparison over several rounds of those groups that permutation tests have confirmed.

    Args:
        comparison: The comparison of one round.
        start: The model of the cluster, (p,).
        round: The round after which it begins.
        first: Whether it is the first one of these clients.
    """
    groups = comparison.groups.confirmed_only(_MAX_DEPTH)
    decision = _with_values(comparison.decision, trained_rounds=float(_ROUNDS))
    models = start.expand(len(groups), -1).clone()
    level = _LEVEL if first else _LATER_LEVEL
    return MultiRoundComparison(_unmeasured(comparison, groups, models, round, gain_level=level, decision=decision))


def _unmeasured(
    comparison: HoldoutComparison,
    groups: GroupTree,
    models: torch.Tensor,
    round: int,
    *,
    gain_level: float,
    decision: Decision,
) -> HoldoutComparison:
    """The comparison of other groups of the clients of a comparison, which nobody has measured yet.

    Args:
        comparison: The comparison whose clients they are.
        groups: The groups.
        models: Their models, (q, p).
        round: The round after which it begins.
        gain_level: The level of the t-test of the gains.
        decision: The decision of the permutation test.
    """
    # A checkpoint holds no tensor twice.
    clients = comparison.clients.clone()
    own = models[:1].clone()
    found = comparison_of(clients, groups, models, own, level=comparison.level, decision=decision, round=round)
    return replace(found, gain_level=gain_level)


def _with_values(decision: Decision, **values: float) -> Decision:
    """A decision that tells more values."""
    return replace(decision, values={**decision.values, **values})


def _level_task(level: int) -> str:
    """The name of the task in which members train the model of their group at a level of the tree; 0 is that of all.

    Tasks draw by their names: with others, runs would differ.
    """
    return f"trial {level}"


def loss_task(name: str) -> str:
    """The name of the task in which personal models of the models of a task are measured."""
    return f"{name} loss"


def advance_multi_round(problem: Problem, multi_round: MultiRoundComparison, report: Report) -> MultiRoundComparison:
    """Go on with a comparison after a round: train its models once more, or take the losses that members have measured.

    A round in which nobody of some confirmed group has trained does not count.

    Args:
        problem: What is fixed for the run.
        multi_round: The comparison, as in the plan that `add_multi_round_tasks` made.
        report: The report of that plan.
    """
    if multi_round.is_trained:
        return _with_losses(multi_round, report)
    training = {
        name: _trained(problem.layout, multi_round, candidates, report.results[name])
        for name, candidates in multi_round.candidates().items()
    }
    models = multi_round.models
    trained = set[int]()
    for each in training.values():
        for model in each.models.unique().tolist():
            models[model] += mean_update(problem, each.updates.at(each.models == model))[0]
            trained.add(model)
    count = len(multi_round.comparison.models)
    # A group that all members have left is not compared any more.
    waited_for = multi_round.comparison.groups.inside.any(dim=1).nonzero().flatten().tolist()
    if not trained.issuperset(waited_for):
        return multi_round  # A model that goes on without others would be compared with less trained ones.
    comparison = replace(multi_round.comparison, models=models[:count].clone())
    beyond_mixes = _beyond_mixes_after_round(problem, multi_round, models, training)
    if beyond_mixes is not None:
        beyond_mixes.models[0] = comparison.models[0]
    return MultiRoundComparison(comparison, multi_round.rounds + 1, beyond_mixes)


@dataclass(frozen=True)
class _Training:
    """What members have trained in one task.

    Attributes:
        updates: Their updates, (m', p).
        models: The model that each has trained, a place in the models of the comparison, (m',).
    """

    updates: Rows
    models: torch.Tensor


def _trained(layout: Layout, multi_round: MultiRoundComparison, candidates: torch.Tensor, result: Result) -> _Training:
    """What members have trained in a task, of which these were the candidates, (m, c)."""
    clients = multi_round.comparison.clients
    # In the order of their ids, so that the groups beyond class mixes do not depend on the order of the report.
    result = result.only(result.updates.clients.argsort())
    here = torch.isin(result.updates.clients, clients)
    # Nothing says whether a client scales these updates, so nobody's counts more than two.
    updates = clipped_to_twice_median(layout, result.updates.at(here))
    own = candidates[torch.searchsorted(clients, updates.clients)]
    # As each client chooses: the first on a tie, and last what is not finite. Of a single one there is no loss.
    losses = result.losses[here]
    places = losses.nan_to_num(nan=torch.finfo(losses.dtype).max).argmin(dim=1, keepdim=True)
    return _Training(updates, own.gather(1, places).flatten())


def _beyond_mixes_after_round(
    problem: Problem, multi_round: MultiRoundComparison, models: torch.Tensor, training: Mapping[str, _Training]
) -> HoldoutComparison | None:
    """The two groups beyond class mixes after a round; None where there are none, or no more.

    The confirmed groups do not wait for them: they end when nobody has trained one of the two models, or one diverges.

    Args:
        problem: What is fixed for the run.
        multi_round: The comparison before the round.
        models: Its models after the round, (q or q + 3, p).
        training: What its members have trained in each task.
    """
    if multi_round.rounds == 0:
        found = _groups_beyond_mixes(problem, multi_round.comparison, training[_level_task(0)].updates)
    elif multi_round.beyond_mixes is None:
        return None
    else:
        first = len(multi_round.comparison.models)
        chosen = training[_CHOICE_TASK]
        if len(chosen.models.unique()) < 2:
            return None
        groups = _with_sides(multi_round.beyond_mixes, chosen, models=(first + 1, first + 2))
        found = replace(multi_round.beyond_mixes, groups=groups, models=models[first:].clone())
    return found if found is None or bool(found.models.isfinite().all()) else None


def _groups_beyond_mixes(problem: Problem, comparison: HoldoutComparison, updates: Rows) -> HoldoutComparison | None:
    """Two groups that differ in more than their class mixes, and their models after a round; None where there are none.

    Args:
        problem: What is fixed for the run.
        comparison: The confirmed groups before that round, all with the same model.
        updates: The updates of that round by half A, (m', p). Half B then says whether the groups pay.
    """
    second = sides_beyond_class_mixes(problem.layout, updates)
    if second is None:
        return None
    clients = comparison.clients
    rows = (~second, second)
    sides = tuple(torch.isin(clients, updates.clients[side]) for side in rows)
    answered = torch.isin(clients, updates.clients)
    if any(torch.equal(sides[0], side & answered) for side in comparison.groups.inside[1:3]):
        return None  # They are the confirmed sides.
    start = comparison.models[:1]
    models = start + torch.cat([torch.zeros_like(start), *(mean_update(problem, updates.at(side)) for side in rows)])
    groups = with_confirmed_split(single_group(len(clients)), 0, *sides)
    # No test has confirmed them: half A alone has made them, and the t-test on half B decides.
    decision = _with_values(comparison.decision, beyond_mixes=1.0)
    return _unmeasured(comparison, groups, models, comparison.round, gain_level=CLEAR_LEVEL, decision=decision)


def _with_sides(known: HoldoutComparison, training: _Training, models: tuple[int, int]) -> GroupTree:
    """Two groups in which each client that has trained is in that of the model that it has chosen."""
    places = torch.searchsorted(known.clients, training.updates.clients)
    inside = known.groups.inside.clone()
    for side, model in enumerate(models, start=1):
        inside[side, places] = training.models == model
    return replace(known.groups, inside=inside)


def multi_round_events(
    before: Mapping[int, MultiRoundComparison],
    after: Mapping[int, MultiRoundComparison],
    decided: Container[int],
    nodes: torch.Tensor,
) -> tuple[dict[str, Any], ...]:
    """An event for every comparison that begins, or that ends without a decision.

    Args:
        before: The comparisons before a round, by cluster.
        after: Those after it.
        decided: The clusters whose comparison has ended with a decision.
        nodes: The tree node of each cluster, (k,).
    """
    begun = [("multi_round", cluster) for cluster in after if cluster not in before]
    ended = [("multi_round_given_up", cluster) for cluster in before if cluster not in after and cluster not in decided]
    return tuple({"kind": kind, "node": int(nodes[cluster])} for kind, cluster in [*begun, *ended])


def _with_losses(multi_round: MultiRoundComparison, report: Report) -> MultiRoundComparison:
    """The comparison with the losses of those who have measured in a round."""
    clients = multi_round.comparison.clients
    losses = torch.cat([each.losses_by_share for each in multi_round.comparisons], dim=1)
    for name, candidates in multi_round.candidates().items():
        result = report.results[loss_task(name)]
        here = torch.isin(result.updates.clients, clients)
        places = torch.searchsorted(clients, result.updates.clients[here])
        losses[places, candidates[places].flatten()] = bounded_losses(result.losses[here])
    count = len(multi_round.comparison.models)
    comparison = replace(multi_round.comparison, losses_by_share=losses[:, :count].clone())
    if multi_round.beyond_mixes is None:
        return replace(multi_round, comparison=comparison)
    of_all = losses[:, :1]
    beyond_mixes = replace(multi_round.beyond_mixes, losses_by_share=torch.cat([of_all, losses[:, count + 1 :]], dim=1))
    return replace(multi_round, comparison=comparison, beyond_mixes=beyond_mixes)


def multi_round_decision(multi_round: MultiRoundComparison, round: int, *, holdout_check: bool) -> ClusterSplit:
    """Which groups get a cluster each: of two splits that lower the loss, the one that lowers it more.

    Args:
        multi_round: One in which enough have measured.
        round: The round of the last answers.
        holdout_check: Whether a split must lower the loss.
    """
    decided, *others = (split_decision(each, round, holdout_check=holdout_check) for each in multi_round.comparisons)
    for other in others:
        gains_more = other.decision.values["gain"] > decided.decision.values["gain"]
        if other.count > 1 and (decided.count == 1 or gains_more):
            decided = other
    return decided


def add_multi_round_tasks(plan: Plan, problem: Problem, multi_rounds: Sequence[MultiRoundComparison]) -> Plan:
    """The plan in which members also train models of groups, or make personal models of them and measure these.

    Args:
        plan: The plan.
        problem: What is fixed for the run.
        multi_rounds: The comparisons over several rounds.
    """
    if not multi_rounds:
        return plan
    to_train = dict[str, torch.Tensor]()
    to_measure = dict[str, torch.Tensor]()
    models = [plan.models]
    for multi_round in multi_rounds:
        _add_candidates(
            to_measure if multi_round.is_trained else to_train, multi_round, plan.cohort, first=sum(map(len, models))
        )
        models.append(multi_round.models)
    work = replace(plan.tasks[TRAIN], fold="A", selection_fold="A")
    tasks = dict(plan.tasks)
    for name, candidates in to_train.items():
        tasks[name] = replace(work, candidates=candidates, stream=name)
    for name, candidates in to_measure.items():
        tasks |= _measuring_tasks(problem, replace(work, candidates=candidates), name)
    return replace(plan, models=torch.cat(models), tasks=tasks)


def _add_candidates(
    known: dict[str, torch.Tensor], multi_round: MultiRoundComparison, cohort: torch.Tensor, first: int
) -> None:
    """Add the models for the clients of a comparison that have not measured yet.

    Args:
        known: The models for each client of the cohort by task, (m', c) each; changed in place.
        multi_round: The comparison over several rounds.
        cohort: The clients that the round selects, ids (m',).
        first: The place of the first model of the comparison in the plan.
    """
    comparison = multi_round.comparison
    rows = torch.isin(cohort, comparison.clients[~comparison.answered])
    places = torch.searchsorted(comparison.clients, cohort[rows])
    for name, candidates in multi_round.candidates().items():
        of_cohort = known.setdefault(name, torch.full((len(cohort), candidates.shape[1]), -1))
        own = candidates[places]
        of_cohort[rows] = torch.where(own >= 0, first + own, -1)


def _measuring_tasks(problem: Problem, work: LocalTask, trained: str) -> dict[str, LocalTask]:
    """The tasks in which clients make personal models of what a task trained, and measure their losses on half B."""
    work = replace(work, upload=problem.layout.nothing)
    name = f"{trained} tuning"
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
        stream=loss_task(trained),
    )
    return {**tuning, loss_task(trained): loss}
