"""Who votes on whether a cluster has groups, on which folds of its data, and what came back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from fedstrata.algorithms.parts.proof.hearings import Hearing
from fedstrata.core import Plan, Report, Result, Rows
from fedstrata.lazy_torch import torch

PARTS = {1: ("A",), 2: ("A", "B"), 4: ("A1", "A2", "B1", "B2")}
"""The folds; those of half A come first. Where only half A is asked for, half B is kept to judge by."""


def twins(plan: Plan, hearings: Sequence[Hearing], sizes: torch.Tensor) -> Plan:
    """The plan with one more training of every voter by each fold, from its cluster's model, on equally many samples.

    All from the same model: one after the other, the second would lean against the noise of the first. A quarter of the
    data is gone through twice, so that its update has as many steps behind it as that of a half: the first two or
    three from a common model turn nearly the same way for everyone.
    """
    work, first = list(plan.tasks), plan.tasks[0]
    for folds in sorted({each.folds for each in hearings}):
        offers, most = torch.full((len(plan.cohort), 1), -1), torch.zeros(len(plan.cohort), dtype=torch.int64)
        for each in hearings:
            if each.folds == folds:
                here, known = torch.isin(plan.cohort, each.clients), sizes[each.clients]
                offers[here], most[here] = each.cluster, int(known[known > 0].min()) // each.cut
        training = replace(first.training, epochs=first.training.epochs * max(2, folds) // 2)
        fold = replace(first, candidates=offers, max_samples=most, training=training)
        work += [replace(fold, fold=part, stream=part) for part in PARTS[folds]]
    return replace(plan, tasks=tuple(work))


def heard(report: Report, hearings: Sequence[Hearing], done: int) -> Mapping[int, tuple[Rows, ...]]:
    """What the voters of each cluster sent, by fold; only of those who sent all of them.

    Args:
        report: of the plan.
        hearings: as in the plan.
        done: results that come before those of the folds.
    """
    sent = dict[int, tuple[Rows, ...]]()
    for each, results in _answers(report, hearings, done):
        # A dead network does not move, and a diverged one is not let in: both say nothing about their clients. Folds
        # that are cut between independent units may fall short; unequal noise would look like groups.
        most = max((int(result.sizes.max()) for result in results if len(result.sizes)), default=0)
        sound = [(fold.sizes == most) & (fold.updates.values.double().norm(dim=1) > 0) for fold in results]
        able = [set(fold.updates.clients[good].tolist()) for fold, good in zip(results, sound, strict=True)]
        ids = torch.tensor(sorted(set(each.clients.tolist()).intersection(*able)), dtype=torch.int64)
        sent[each.cluster] = tuple(Rows(ids, fold.updates.of(ids)) for fold in results)
    return sent


def counted(sizes: torch.Tensor, report: Report, hearings: Sequence[Hearing], done: int) -> torch.Tensor:
    """The samples (n,) that clients can share out among folds, 0 where not known, by what they have used.

    Args:
        sizes: as known before.
        report: of the plan.
        hearings: as in the plan.
        done: results that come before those of the folds.
    """
    first, known = report.results[0], sizes.clone()
    clients = first.updates.clients
    known[clients] = torch.where(known[clients] > 0, known[clients], first.sizes)
    for each, results in _answers(report, hearings, done):
        most = max((int(result.sizes.max()) for result in results if len(result.sizes)), default=0)
        for result in results:
            short = result.updates.clients[result.sizes < most]
            known[short] = torch.minimum(known[short], each.cut * result.sizes[result.sizes < most])
    return known


def _answers(report: Report, hearings: Sequence[Hearing], done: int) -> Iterator[tuple[Hearing, list[Result]]]:
    """The results by every fold of the voters of each hearing."""
    for folds in sorted({each.folds for each in hearings}):
        results, done = report.results[done : done + folds], done + folds
        for each in hearings:
            if each.folds == folds:
                yield each, [result.only(torch.isin(result.updates.clients, each.clients)) for result in results]
