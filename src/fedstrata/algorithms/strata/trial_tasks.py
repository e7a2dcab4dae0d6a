"""What the members of a cluster are asked in a trial: to train the models of their groups, and then to measure them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedstrata.algorithms.shared.interpolation import SHARES
from fedstrata.algorithms.shared.tuning import tuning_by_epochs
from fedstrata.algorithms.strata.trial import GroupTrial, loss_task
from fedstrata.core import TRAIN, LocalTask, Plan, Problem
from fedstrata.lazy_torch import torch

_TUNING_EPOCHS = 4
"""The epochs on half A by which a client makes a personal model, as many as the personal stage `best` takes by default
on all data. The trial does not know the keys of that stage."""


def add_trial_tasks(plan: Plan, problem: Problem, trials: Sequence[GroupTrial]) -> Plan:
    """The plan in which members also train the models of trials, or make personal models of them and measure these.

    Args:
        plan: The plan.
        problem: What is fixed for the run.
        trials: The trials.
    """
    if not trials:
        return plan
    to_train = dict[str, torch.Tensor]()
    to_measure = dict[str, torch.Tensor]()
    models = [plan.models]
    for trial in trials:
        _add_candidates(to_measure if trial.is_trained else to_train, trial, plan.cohort, first=sum(map(len, models)))
        models.append(trial.models)
    work = replace(plan.tasks[TRAIN], fold="A", selection_fold="A")
    tasks = dict(plan.tasks)
    for name, candidates in to_train.items():
        tasks[name] = replace(work, candidates=candidates, stream=name)
    for name, candidates in to_measure.items():
        tasks |= _measuring_tasks(problem, replace(work, candidates=candidates), name)
    return replace(plan, models=torch.cat(models), tasks=tasks)


def _add_candidates(known: dict[str, torch.Tensor], trial: GroupTrial, cohort: torch.Tensor, first: int) -> None:
    """Add the models for the clients of a trial that have not measured yet.

    Args:
        known: The models for each client of the cohort by task, (m', c) each; changed in place.
        trial: The trial.
        cohort: The clients that the round selects, ids (m',).
        first: The place of the first model of the trial in the plan.
    """
    comparison = trial.comparison
    rows = torch.isin(cohort, comparison.clients[~comparison.answered])
    places = torch.searchsorted(comparison.clients, cohort[rows])
    for name, candidates in trial.candidates().items():
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
