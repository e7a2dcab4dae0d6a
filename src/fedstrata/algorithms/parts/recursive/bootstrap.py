"""Twins: two more trainings of every client, in parallel, on two disjoint random halves of its data."""

from __future__ import annotations

from dataclasses import replace

from fedstrata.core import Mask, Plan, Report, Rows
from fedstrata.lazy_torch import torch


def twins(plan: Plan, upload: Mask) -> Plan:
    """The plan with the twins of its first task, which end up as the second and third result: they are to come first.

    Both start from the model that the task itself starts from: one after the other, the second would lean against the
    noise of the first.
    """
    halves = (replace(plan.tasks[0], fold=half, stream=half, upload=upload) for half in ("A", "B"))
    return replace(plan, tasks=(*plan.tasks, *halves))


def pair(report: Report) -> tuple[Rows, Rows]:
    """What the twins sent."""
    first, second = report.results[1:3]
    return first.updates, second.updates


def disagreement(first: torch.Tensor, second: torch.Tensor) -> float:
    """Largest |a - b| / |a + b| of a pair of twins, (m, q) each: an estimate of Theorem 1's gamma."""
    apart, together = ((rows.double().norm(dim=1)) for rows in (first - second, first + second))
    return float((apart / together.clamp(min=1e-12)).max())


def doubt(report: Report, clients: torch.Tensor, columns: torch.Tensor) -> float:
    """Theorem 1's gamma of some clients, (m,), in some columns, (q,), by the twins of a round."""
    halves = [half.only(columns) for half in pair(report)]
    # Nobody vouches for a member whose data cannot be halved; at 1, Theorem 1 refuses every split.
    whole = all(bool(torch.isin(clients, half.clients).all()) for half in halves)
    return disagreement(*(half.of(clients) for half in halves)) if whole else 1.0
