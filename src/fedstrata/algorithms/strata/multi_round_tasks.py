"""What members are asked in a comparison over several rounds: to train the models of their groups, then to measure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedstrata.algorithms.strata.multi_round import MultiRoundComparison, loss_task
from fedstrata.algorithms.tuning import SHARES, tuning_by_epochs
from fedstrata.base.lazy_torch import torch
from fedstrata.core import TRAIN, LocalTask, Plan, Problem

_TUNING_EPOCHS = 4
"""The epochs on half A by which a client makes a personal model, as many as the personal stage `best` takes by default
on all data. The keys of that stage are not known here."""


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
