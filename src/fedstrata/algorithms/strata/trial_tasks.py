"""What the members of a cluster are asked in a trial, and how their answers are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from fedstrata.algorithms.evidence.split_half import MIN_FOLD
from fedstrata.algorithms.strata.trial import Trial
from fedstrata.base.lazy_torch import torch
from fedstrata.core import TRAIN, Layout, LocalTask, Plan, Report, Result, Rows
from fedstrata.core.standard_round import padded_candidates

_MAX_LOSS = 1e30
"""Larger losses, and losses that are not finite, count as this one: differences of larger ones may not be finite."""

GROUP_TASK = "groups"
"""The task on half A whose updates make candidate groups."""

_SIDE_TASK = "trial sides"
"""The task on half A by which those who did not make the groups choose a side."""

_OWN_TASK = "trial own"
"""The task in which members train on half A by themselves, where personal models are compared."""

_LOSS_TASK = "trial losses"
"""The task in which members judge models on half B."""

_MIN_STEPS = 10
"""The steps on half A that a client of the usual size takes at least. After fewer, the model of a group is still much
like that of the cluster, and its members hardly prefer it."""


def add_group_task(plan: Plan, labels: torch.Tensor, clusters: Sequence[int], samples: int) -> Plan:
    """The plan in which the members of some clusters also train on half A, from the model of their cluster.

    They go through it twice as often as through all data, so that a model of a group is as far from that of the cluster
    as one more round would bring it; or more often where that are few steps.

    Args:
        plan: The plan of the round.
        labels: The cluster of each client, (n,).
        clusters: The clusters.
        samples: The usual number of training samples of a client.
    """
    if not clusters:
        return plan
    own = labels[plan.cohort]
    candidates = torch.where(torch.isin(own, torch.tensor(clusters)), own, -1)[:, None]
    normal = plan.tasks[TRAIN]
    steps_per_epoch = normal.training.with_epochs(1).steps_of(max(samples // 2, 1))
    epochs = max(2 * normal.training.epochs, ceil(_MIN_STEPS / steps_per_epoch))
    training = replace(normal.training, epochs=epochs)
    task = replace(normal, candidates=candidates, training=training, fold="A", stream=GROUP_TASK)
    return replace(plan, tasks={**plan.tasks, GROUP_TASK: task})


def group_updates(report: Report, members: torch.Tensor) -> Rows:
    """What the members of a cluster, bool (n,), sent for candidate groups, by ascending id."""
    result = _of_enough_samples(report.results[GROUP_TASK], members)
    return result.updates.at(result.updates.clients.argsort())


@dataclass(frozen=True)
class _Request:
    """What a client is asked in a trial.

    Attributes:
        models: The models that it judges, places in the plan.
        sides: The models by which it chooses a side, if it did not make the groups.
        shares: How far from them it judges models.
        start: The model from which it trains by itself; -1 where it does not.
    """

    models: Sequence[int] = ()
    sides: Sequence[int] = ()
    shares: Sequence[float] = ()
    start: int = -1


def add_trial_tasks(plan: Plan, layout: Layout, labels: torch.Tensor, trials: Mapping[int, Trial]) -> Plan:
    """The plan in which the members of clusters with a trial also judge its models.

    Args:
        plan: The plan of the round.
        layout: The layout of the network.
        labels: The cluster of each client, (n,).
        trials: The trials, by cluster.
    """
    if not trials:
        return plan
    first = dict[int, int]()
    models = [plan.models]
    for cluster, trial in trials.items():
        first[cluster] = sum(map(len, models))
        models += [trial.models, trial.start]
    own = labels[plan.cohort].tolist()
    requests = [
        _request(trials[cluster], client, first[cluster]) if cluster in trials else _Request()
        for client, cluster in zip(plan.cohort.tolist(), own, strict=True)
    ]
    judging = replace(
        plan.tasks[TRAIN],
        candidates=padded_candidates([each.models for each in requests]),
        trainable=layout.nothing,
        upload=layout.nothing,
        fold="B",
        selection_fold="B",
        stream=_LOSS_TASK,
    )
    tasks = dict(plan.tasks)
    if any(each.sides for each in requests):
        rows = padded_candidates([each.sides for each in requests])
        tasks[_SIDE_TASK] = replace(judging, candidates=rows, fold="A", selection_fold="A")
    tasks |= _loss_tasks(judging, layout, requests)
    return replace(plan, models=torch.cat(models), tasks=tasks)


def _request(trial: Trial, client: int, first: int) -> _Request:
    """What a member is asked in a trial whose first model has a place in the plan; nothing if it has answered."""
    place = (trial.clients == client).nonzero().flatten().tolist()
    if place and bool(trial.answered[place[0]]):
        return _Request()
    start = first + len(trial.groups) if trial.of_personal_models else -1
    groups = trial.judged(place[0]) if place else trial.compared
    sides = [] if place else [first + group for group in range(len(trial.groups))]
    return _Request([first + group for group in groups], sides, trial.shares, start)


def _loss_tasks(judging: LocalTask, layout: Layout, requests: Sequence[_Request]) -> dict[str, LocalTask]:
    """The task that measures losses, after one in which clients train by themselves where personal models are compared.

    Args:
        judging: The task that judges models as they are.
        layout: The layout of the network.
        requests: What each client is asked, m.
    """
    starts = torch.tensor([[each.start] for each in requests])
    if not bool((starts >= 0).any()):
        return {_LOSS_TASK: judging}
    candidates = [[model for model in each.models for _ in each.shares] for each in requests]
    ways = [[share for _ in each.models for share in each.shares] for each in requests]
    width = max([1, *map(len, ways)])
    shares = torch.tensor([[*row, *[0.0] * (width - len(row))] for row in ways])
    own = replace(
        judging, candidates=starts, trainable=layout.everything, fold="A", selection_fold="all", stream=_OWN_TASK
    )
    loss = replace(judging, candidates=padded_candidates(candidates), shares=shares, continues=_OWN_TASK)
    return {_OWN_TASK: own, _LOSS_TASK: loss}


def with_answers(trial: Trial, report: Report, members: torch.Tensor) -> Trial:
    """A trial with the answers of a round, of those who are still members of its cluster, bool (n,)."""
    known = trial.only(members[trial.clients])
    trial = _with_sides(known, report, members)
    measured = _of_enough_samples(report.results[_LOSS_TASK], members)
    answers = dict(zip(measured.updates.clients.tolist(), measured.losses, strict=True))
    sizes = dict(zip(measured.updates.clients.tolist(), measured.sizes.tolist(), strict=True))
    losses = trial.losses.clone()
    samples = trial.samples.clone()
    for place, client in enumerate(trial.clients.tolist()):
        if client in answers and not bool(trial.answered[place]):
            # Whoever has just chosen a side was asked about all groups that are compared.
            asked = trial.judged(place) if place < len(known.clients) else trial.compared
            own = answers[client][: len(asked) * len(trial.shares)].reshape(len(asked), -1)
            losses[place, asked] = _bounded(own)
            samples[place] = sizes[client]
    return replace(trial, losses=losses, samples=samples)


def _with_sides(trial: Trial, report: Report, members: torch.Tensor) -> Trial:
    """A trial with those members, bool (n,), who have chosen a side in a round."""
    if _SIDE_TASK not in report.results:
        return trial
    result = _of_enough_samples(report.results[_SIDE_TASK], members)
    result = result.only(~torch.isin(result.updates.clients, trial.clients))
    if not len(result.updates.clients):
        return trial  # The task is of other clusters, whose trees may be smaller.
    # By ascending id, so that a report may come in any order.
    result = result.only(result.updates.clients.argsort())
    return trial.joined_by(result.updates.clients, _bounded(result.losses[:, : len(trial.groups)]))


def _of_enough_samples(result: Result, members: torch.Tensor) -> Result:
    """The answers of members, bool (n,), whose half has enough samples."""
    return result.only(members[result.updates.clients] & (result.sizes >= MIN_FOLD))


def _bounded(losses: torch.Tensor) -> torch.Tensor:
    """Losses as far as they count."""
    return losses.nan_to_num(nan=_MAX_LOSS).clamp(max=_MAX_LOSS)
