"""Report -> Report: nothing that is not a number reaches an algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedstrata.core import Report
from fedstrata.lazy import torch


def guard(report: Report) -> tuple[Report, tuple[int, ...]]:
    """Take out every client that sent a value that is not finite, or no samples.

    Returns:
        The report without any row of those clients, and their ids, ascending.
    """
    bad: set[int] = set()
    for result in report.results:
        sound = result.updates.finite() & (result.sizes > 0)
        bad.update(result.updates.clients[~sound].tolist())
    for rows in report.facts.values():
        bad.update(rows.clients[~rows.finite()].tolist())
    if not bad:
        return report, ()
    rejected = torch.tensor(sorted(bad))
    kept = tuple(result.only(~torch.isin(result.updates.clients, rejected)) for result in report.results)
    facts = {name: rows.without(rejected) for name, rows in report.facts.items()}
    return replace(report, results=kept, facts=facts), tuple(sorted(bad))


def missed(kind: str, reasons: Mapping[int, str]) -> list[dict[str, Any]]:
    """Events that say why clients are missing, those of one reason together; some may only have been scored."""
    whys = dict.fromkeys(reasons.values())
    return [{"kind": kind, "clients": [c for c, other in reasons.items() if other == why], "why": why} for why in whys]
