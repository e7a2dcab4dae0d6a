"""What the members of a cluster are asked in a hold-out comparison, and how their answers are read.

They evaluate the models that concern them on half B of their data. Where personal models are compared, they first train
on half A by themselves. Stand-ins also choose a side, by the losses on half A.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fedstrata.algorithms.strata.groups import placed
from fedstrata.algorithms.strata.holdout import HoldoutComparison, comparison_of
from fedstrata.base.lazy_torch import torch
from fedstrata.core import TRAIN, Layout, LocalTask, Plan, Report, Result
from fedstrata.core.standard_round import padded_candidates

_MAX_ROUNDS = 10
"""The number of rounds after which a comparison is given up if too few have answered."""

_OWN_TASK = "holdout own"
"""The task in which members train on half A by themselves, where personal models are compared."""

_SIDE_TASK = "holdout side"
"""The task in which stand-ins measure the loss of models on half A, by which they choose a side."""

_LOSS_TASK = "holdout loss"
"""The task in which members measure the loss of models on data that did not train them."""

_ERRORS_TASK = "holdout errors"
"""The task in which members measure the share of errors of the same models."""

_MAX_LOSS = 1e3
"""Larger losses, and losses that are not finite, count as so many nats."""


def stand_ins(comparison: HoldoutComparison, members: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
    """The ids of those who stand in for the clients of a comparison in a round, (s,).

    Args:
        comparison: The comparison.
        members: Who is in its cluster, bool (n,).
        present: The clients that the round selects, or those of them that have answered.
    """
    if not comparison.has_stand_ins:
        return present[:0]
    return present[members[present] & ~torch.isin(present, comparison.clients)]


def add_evaluation_tasks(
    plan: Plan, layout: Layout, comparisons: Sequence[tuple[HoldoutComparison, torch.Tensor]]
) -> Plan:
    """The plan in which members also evaluate the models of comparisons that concern them, without training.

    Where personal models are compared, they first train on half A by themselves.

    Args:
        plan: The plan.
        layout: The layout of the network.
        comparisons: The comparisons, and the ids of the stand-ins of each.
    """
    if not comparisons:
        return plan
    asked = _eval_requests(plan, comparisons)
    requests = [asked.get(client, _EvalRequest()) for client in plan.cohort.tolist()]
    candidates = padded_candidates([each.models for each in requests])
    evaluation = replace(
        plan.tasks[TRAIN],
        candidates=candidates,
        trainable=layout.nothing,
        upload=layout.nothing,
        fold="B",
        selection_fold="B",
        # This name is a seed of random numbers, so it stays as it is.
        stream="benefit",
    )
    # The Hoeffding bound counts independent samples: those of fold B, or their units where `data.unit` names a column.
    statistics = {**plan.client_stats, "units": (candidates >= 0).any(dim=1)}
    return replace(
        plan,
        models=torch.cat([plan.models, *(comparison.all_models for comparison, _ in comparisons)]),
        tasks={
            **plan.tasks,
            **_loss_tasks(evaluation, layout, requests),
            _ERRORS_TASK: replace(evaluation, selection_metric="errors"),
            **_side_tasks(evaluation, requests),
        },
        client_stats=statistics,
    )


@dataclass(frozen=True)
class _EvalRequest:
    """What a client is asked. One that is in no comparison is asked nothing.

    Attributes:
        models: The models of groups that it evaluates, places in the plan.
        shares: How far from them it evaluates models.
        start: The model from which it trains by itself; -1 where it does not.
        chooses_side: Whether it stands in for others, and chooses a side.
    """

    models: Sequence[int] = ()
    shares: Sequence[float] = ()
    start: int = -1
    chooses_side: bool = False


def _eval_requests(
    plan: Plan, comparisons: Sequence[tuple[HoldoutComparison, torch.Tensor]]
) -> dict[int, _EvalRequest]:
    """What the clients of a plan are asked in comparisons, by id. The arguments are as in `add_evaluation_tasks`."""
    found = dict[int, _EvalRequest]()
    first = len(plan.models)
    for comparison, others in comparisons:
        start = first + len(comparison.models) if comparison.of_personal_models else -1
        for place, client in _unanswered(comparison, plan.cohort):
            models = [first + group for group in comparison.models_for(place)]
            found[client] = _EvalRequest(models, comparison.shares, start)
        everything = list(range(first, first + len(comparison.groups)))
        for client in others.tolist():
            found[client] = _EvalRequest(everything, comparison.shares, start, chooses_side=True)
        first += len(comparison.all_models)
    return found


def _side_tasks(evaluation: LocalTask, requests: Sequence[_EvalRequest]) -> dict[str, LocalTask]:
    """The task by which stand-ins choose a side; none without stand-ins."""
    if not any(each.chooses_side for each in requests):
        return {}
    candidates = padded_candidates([each.models if each.chooses_side else () for each in requests])
    return {_SIDE_TASK: replace(evaluation, candidates=candidates, fold="A", selection_fold="A")}


def _loss_tasks(evaluation: LocalTask, layout: Layout, requests: Sequence[_EvalRequest]) -> dict[str, LocalTask]:
    """The task that measures losses, after one in which clients train by themselves where personal models are compared.

    Args:
        evaluation: The task that evaluates the models of groups as they are.
        layout: The layout of the network.
        requests: What each client is asked, m.
    """
    starts = torch.tensor([[each.start] for each in requests])
    if not bool((starts >= 0).any()):
        return {_LOSS_TASK: evaluation}
    candidates = [[model for model in each.models for _ in each.shares] for each in requests]
    ways = [[share for _ in each.models for share in each.shares] for each in requests]
    width = max([1, *map(len, ways)])
    padded = torch.tensor([[*row, *[0.0] * (width - len(row))] for row in ways])
    own = replace(
        evaluation, candidates=starts, trainable=layout.everything, fold="A", selection_fold="all", stream=_OWN_TASK
    )
    loss = replace(evaluation, candidates=padded_candidates(candidates), shares=padded, continues=_OWN_TASK)
    return {_OWN_TASK: own, _LOSS_TASK: loss}


def with_answers(
    comparison: HoldoutComparison, report: Report, round: int, others: torch.Tensor
) -> HoldoutComparison | None:
    """A comparison with the answers of a round; None if too few have answered for too long.

    Args:
        comparison: The comparison, as in the plan that `add_evaluation_tasks` made.
        report: The report of that plan.
        round: The round of the answers.
        others: The stand-ins that have answered, ids.
    """
    comparison = _with_stand_ins(comparison, report, others)
    losses_by_share = comparison.losses_by_share.clone()
    errors = comparison.errors.clone()
    samples = comparison.samples.clone()
    measured_losses = report.results[_LOSS_TASK]
    measured_errors = report.results[_ERRORS_TASK]
    both = torch.isin(measured_losses.updates.clients, measured_errors.updates.clients)
    new = set(others.tolist())
    for place, client in _unanswered(comparison, measured_losses.updates.clients[both]):
        nodes = comparison.models_for(place)
        # A stand-in was asked for the models of all groups, before it was on a side.
        asked = list(range(len(comparison.groups))) if client in new else nodes
        own = [asked.index(node) for node in nodes]
        answer = _losses_of(measured_losses, client, len(asked) * losses_by_share.shape[2])
        losses_by_share[place, nodes] = bounded_losses(answer.reshape(len(asked), -1)[own])
        # Nothing that a client claims may spoil a test of all: an error rate of nan, or no samples behind it.
        errors[place, nodes] = _losses_of(measured_errors, client, len(asked))[own].nan_to_num(nan=1.0)
        units = report.client_stats["units"].of(torch.tensor([client]))
        samples[place] = units.flatten()[0].clamp(min=1.0)
    answered = replace(comparison, losses_by_share=losses_by_share, errors=errors, samples=samples)
    late = round >= comparison.round + _MAX_ROUNDS
    return None if late and not answered.complete else answered


def _losses_of(result: Result, client: int, count: int) -> torch.Tensor:
    """The first losses of a client in a result, (count,)."""
    row = int((result.updates.clients == client).nonzero())
    return result.losses[row, :count]


def bounded_losses(losses: torch.Tensor) -> torch.Tensor:
    """The losses that clients have measured, as far as they count."""
    return losses.nan_to_num(nan=_MAX_LOSS).clamp(max=_MAX_LOSS)


def _with_stand_ins(comparison: HoldoutComparison, report: Report, others: torch.Tensor) -> HoldoutComparison:
    """A comparison in which stand-ins are clients, each on the side whose model suits half A of its data best."""
    # Another cluster may have stand-ins in the same round.
    if not comparison.has_stand_ins or not len(others) or _SIDE_TASK not in report.results:
        return comparison
    result = report.results[_SIDE_TASK]
    here = torch.isin(result.updates.clients, others)
    clients = result.updates.clients[here]
    losses = result.losses[here, : len(comparison.groups)].nan_to_num(nan=_MAX_LOSS)
    new = comparison_of(
        clients,
        placed(comparison.groups, losses),
        comparison.models,
        comparison.start,
        level=comparison.level,
        decision=comparison.decision,
        round=comparison.round,
    )
    return replace(
        comparison,
        clients=torch.cat([comparison.clients, clients]),
        groups=replace(comparison.groups, inside=torch.cat([comparison.groups.inside, new.groups.inside], dim=1)),
        losses_by_share=torch.cat([comparison.losses_by_share, new.losses_by_share]),
        errors=torch.cat([comparison.errors, new.errors]),
        samples=torch.cat([comparison.samples, new.samples]),
    )


def _unanswered(comparison: HoldoutComparison, present: torch.Tensor) -> Iterator[tuple[int, int]]:
    """Place and id of those among some clients that have not answered yet."""
    here = torch.isin(comparison.clients, present) & ~comparison.answered
    yield from zip(here.nonzero().flatten().tolist(), comparison.clients[here].tolist(), strict=True)
