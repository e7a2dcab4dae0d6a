"""How the members of trials are asked about models, and what they say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from fedstrata.algorithms.parts.strata.trial import Trial
from fedstrata.core import Layout, Plan, Report, Result, Rows
from fedstrata.lazy_torch import torch

PATIENCE = 10
"""Rounds after which a trial is given up in which too few have answered."""

WORST = 1e3
"""Loss in nats of a model that leads to nothing finite, or to more."""


def offered(plan: Plan, layout: Layout, trials: Sequence[Trial | None]) -> Plan:
    """The plan in which members of trials also judge the models that concern them, without training."""
    running = [trial for trial in trials if trial is not None]
    if not running:
        return plan
    offers = torch.full((len(plan.cohort), max(len(trial.groups) for trial in running)), -1)
    first = len(plan.models)
    for trial in running:
        for place, client in _silent(trial, plan.cohort):
            nodes = trial.groups.path(place)
            offers[plan.cohort == client, : len(nodes)] = first + torch.tensor(nodes)
        first += len(trial.groups)
    none, asked = layout.nothing, (offers >= 0).any(dim=1)
    task = replace(
        plan.tasks[0], candidates=offers, trainable=none, upload=none, fold="B", selection_fold="B", stream="benefit"
    )
    models = torch.cat([plan.models, *(trial.models for trial in running)])
    work = (*plan.tasks, task, replace(task, selection_metric="errors"))
    return replace(plan, models=models, tasks=work, client_stats={**plan.client_stats, "units": asked})


def weighed(report: Report, round: int, trials: Sequence[Trial | None]) -> tuple[list[Trial | None], int]:
    """The trials, with what members said in a round; and the first results that are not about them.

    Args:
        report: of the plan.
        round: of the answers.
        trials: as in the plan.

    Returns:
        The trials, but those in which too few have answered for too long, and a position.
    """
    if all(trial is None for trial in trials):
        return list(trials), 1
    losses, errors = report.results[1:3]
    units = report.client_stats.get("units", Rows(losses.updates.clients[:0], torch.empty(0, 1)))
    heard = [trial and _heard(trial, losses, errors, units) for trial in trials]
    return [trial if trial and (trial.over or round < trial.round + PATIENCE) else None for trial in heard], 3


def _heard(trial: Trial, losses: Result, errors: Result, units: Rows) -> Trial:
    said, wrong, samples = trial.losses.clone(), trial.errors.clone(), trial.samples.clone()
    for place, client in _silent(trial, losses.updates.clients):
        row = losses.updates.clients == client
        nodes = trial.groups.path(place)
        said[place, nodes] = losses.losses[row][0, : len(nodes)].nan_to_num(nan=WORST).clamp(max=WORST)
        wrong[place, nodes] = errors.losses[row][0, : len(nodes)]
        samples[place] = units.of(torch.tensor([client])).flatten()[0]
    return replace(trial, losses=said, errors=wrong, samples=samples)


def _silent(trial: Trial, present: torch.Tensor) -> Iterator[tuple[int, int]]:
    """Place and id of those among some clients that have not said it yet."""
    here = torch.isin(trial.clients, present) & ~trial.answered
    yield from zip(here.nonzero().flatten().tolist(), trial.clients[here].tolist(), strict=True)
