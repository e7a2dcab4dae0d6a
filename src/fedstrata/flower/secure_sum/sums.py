"""Sums of quantised updates, which with secure aggregation are all that the server sees of them.

A client cuts its update to a range, rounds it to whole multiples of a step, and multiplies them by its weight. Whole
numbers add up exactly, in any order, and can be masked: Bonawitz et al., "Practical secure aggregation for
privacy-preserving machine learning", CCS 2017. A simulation adds up the same numbers without masks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedstrata.base.errors import ContractError
from fedstrata.base.lazy_torch import torch
from fedstrata.core import TRAIN, Layout, LocalTask, Plan, Report, Rows

EXTRA = 2
"""The numbers behind those of an update: its weight, and 1 if the update was cut."""


@dataclass(frozen=True)
class SumTerms:
    """What all clients of a run have to agree on.

    Attributes:
        secure: Whether the server sees sums alone.
        limit: The largest absolute value of a number of an update. Larger ones are cut to it.
        bits: The bits of a quantised number, with its sign.
        min_clients: The smallest number of clients whose sum is opened.
        weighted: Whether a client weighs by its samples. Otherwise all weigh the same.
    """

    secure: bool = False
    limit: float = 1.0
    bits: int = 16
    min_clients: int = 3
    weighted: bool = True

    @property
    def levels(self) -> int:
        """The largest quantised number."""
        return (1 << (self.bits - 1)) - 1

    @property
    def step(self) -> float:
        """The distance of two quantised numbers. Rounding moves a number, and so a mean, by at most half of it."""
        return self.limit / self.levels

    def needed(self, clients: int) -> int:
        """The number of clients that must stay to the end of a sum of so many: two thirds, rounded up."""
        return max(self.min_clients, -(-2 * clients // 3))

    def weight(self, samples: int) -> int:
        """The weight of a client with so many samples."""
        return samples if self.weighted else 1

    def encoded(self, update: torch.Tensor, samples: int) -> torch.Tensor:
        """What a client adds to the sum: weighted numbers, its weight, whether it was cut, (q + 2,) int64.

        Args:
            update: The update of the tensors that are uploaded, finite, (q,).
            samples: The number of its training samples, at least 1.
        """
        values = update.double()
        cut = values.clamp(-self.limit, self.limit)
        weight = self.weight(samples)
        extra = torch.tensor([weight, int(not torch.equal(cut, values))])
        return torch.cat([(cut / self.step).round().long() * weight, extra])

    def mean(self, opened: OpenedSum) -> torch.Tensor | None:
        """The mean update of a sum, (q,) float32; None for a sum that no clients that keep to the terms have."""
        if opened.total is None:
            return None
        sums = opened.total[:-EXTRA]
        weight, cut = opened.total[-EXTRA:].tolist()
        largest = int(sums.abs().max()) if len(sums) else 0
        sound = 1 <= weight <= opened.max_weight and 0 <= cut <= len(opened.clients)
        if not sound or largest > self.levels * weight:
            return None
        mean: torch.Tensor = (sums.double() / weight * self.step).float()
        return mean


@dataclass(frozen=True)
class OpenedSum:
    """A sum at its end.

    Attributes:
        clients: The clients that stayed.
        total: The sum of what they added, (q + 2,) int64; None where it could not be opened.
        max_weight: The largest weight that they can have together.
    """

    clients: tuple[int, ...] = ()
    total: torch.Tensor | None = None
    max_weight: int = 2**62


@dataclass(frozen=True)
class Summed:
    """A report of which only sums were seen.

    Attributes:
        report: The report. Each client of a sum has the mean of all in it for an update, and one sample.
        absent: Why clients are in no sum, by client.
        events: What happened to the sums.
    """

    report: Report
    absent: Mapping[int, str] = field(default_factory=dict)
    events: Sequence[Mapping[str, Any]] = ()


def require_sums_alone(plan: Plan) -> None:
    """Refuse a plan by which the server would see something of a single client beside its part of a sum.

    Raises:
        ContractError: When an algorithm that says that its server needs sums alone asks for more.
    """
    uploading = {name: task for name, task in plan.tasks.items() if any((*task.upload, *task.upload_values))}
    further = [repr(name) for name in uploading if name != TRAIN]
    found = {
        f"updates in {', '.join(further)}": bool(further),
        "values of layers": any(any(task.upload_values) for task in uploading.values()),
        "statistics of clients' data": bool(plan.client_stats),
        "updates of clients that choose among models": any(task.offers_choice for task in uploading.values()),
    }
    asked = [text for text, there in found.items() if there]
    if asked:
        raise ContractError(
            f"the plan of round {plan.round} asks for {' and '.join(asked)}: expected updates in {TRAIN!r} alone, as "
            "the algorithm says that its server needs nothing but their sums; change its Disclosure, or the plan"
        )


def is_summed(plan: Plan) -> bool:
    """Whether clients send updates that have to be summed."""
    return TRAIN in plan.tasks and any(plan.tasks[TRAIN].upload)


def groups_of(plan: Plan) -> dict[int, tuple[int, ...]]:
    """The clients whose updates are summed together, by the model that they start from.

    Who may choose among several models is in no group: its choice would have to be known before the sum.
    """
    groups = dict[int, list[int]]()
    for client, row in zip(plan.cohort.tolist(), plan.tasks[TRAIN].candidates.tolist(), strict=True):
        models = {model for model in row if model >= 0}
        if len(models) == 1:
            groups.setdefault(models.pop(), []).append(client)
    return {model: tuple(clients) for model, clients in sorted(groups.items())}


def without_update(task: LocalTask) -> LocalTask:
    """The same work, of which no update is sent in clear."""
    nothing = tuple(False for _ in task.upload)
    return replace(task, upload=nothing, upload_values=())


def without_sizes(report: Report) -> Report:
    """The report of a client that weighs in a sum: its number of samples is in the sum alone."""
    results = {name: replace(each, sizes=torch.ones_like(each.sizes)) for name, each in report.results.items()}
    return replace(report, results=results)


def summed_report(terms: SumTerms, layout: Layout, plan: Plan, report: Report) -> Summed:
    """What the server sees of a report with secure aggregation, without any masks: what a simulation has.

    Args:
        terms: The terms of the sums.
        layout: The tensors of the network.
        plan: The plan for the whole cohort. Clients of it that are not in the report dropped out.
        report: The report.

    Raises:
        ContractError: When the plan asks for more than sums.
    """
    require_sums_alone(plan)
    if not is_summed(plan):
        return Summed(report)
    result = report.results[TRAIN]
    columns = layout.columns(plan.tasks[TRAIN].upload)
    places = {client: row for row, client in enumerate(result.updates.clients.tolist())}
    absent = dict[int, str]()
    opened = dict[int, OpenedSum]()
    groups = groups_of(plan)
    for model, members in groups.items():
        total = torch.zeros(len(columns) + EXTRA, dtype=torch.int64)
        found = list[int]()
        for client in (each for each in members if each in places):
            update = result.updates.values[places[client], columns]
            if not bool(update.isfinite().all()):
                absent[client] = NOT_FINITE
                continue
            total += terms.encoded(update, int(result.sizes[places[client]]))
            found.append(client)
        opened[model] = OpenedSum(tuple(found), total)
    summed = report_of_sums(terms, layout, plan, report, groups, opened)
    return replace(summed, absent=absent)


NOT_FINITE = "its update is not finite, so that it took no part in the sum"


def report_of_sums(
    terms: SumTerms,
    layout: Layout,
    plan: Plan,
    report: Report,
    groups: Mapping[int, tuple[int, ...]],
    opened: Mapping[int, OpenedSum],
) -> Summed:
    """A report whose updates are the means of the sums that were opened.

    Args:
        terms: The terms of the sums.
        layout: The tensors of the network.
        plan: The plan.
        report: The report. The updates in it are not read.
        groups: The clients of each sum when it began, by the model that they start from.
        opened: The sums at their end, likewise; one that ended early may be missing.
    """
    task = plan.tasks[TRAIN]
    columns = layout.columns(task.upload)
    means = dict[int, torch.Tensor]()
    counted = dict[int, int]()
    events = list[Mapping[str, Any]]()
    for model, members in groups.items():
        end = opened.get(model, OpenedSum())
        needed = terms.needed(len(members))
        enough = end.total is not None and len(end.clients) >= needed
        mean = terms.mean(end) if enough else None
        if mean is None or end.total is None:
            reason = "sum out of range" if enough else "too few clients"
            event = {"reason": reason, "clients": list(members), "answered": len(end.clients), "needed": needed}
            events.append({"kind": "no_sum", **event})
            continue
        if cut := int(end.total[-1]):
            events.append({"kind": "cut_updates", "clients": sorted(end.clients), "cut": cut, "limit": terms.limit})
        means[model] = torch.zeros(layout.p)
        means[model][columns] = mean
        counted |= dict.fromkeys(end.clients, model)
    result = report.results[TRAIN]
    here = torch.tensor([client in counted for client in result.updates.clients.tolist()], dtype=torch.bool)
    result = result.only(here)
    models = [counted[client] for client in result.updates.clients.tolist()]
    values = _rows([means[model] for model in means], [list(means).index(model) for model in models], layout.p)
    result = replace(result, updates=Rows(result.updates.clients, values), sizes=torch.ones_like(result.sizes))
    return Summed(replace(report, results={**report.results, TRAIN: result}), events=events)


def _rows(means: Sequence[torch.Tensor], places: Sequence[int], p: int) -> torch.Tensor:
    """A mean for each client, (m, p); one for all takes no room for each."""
    if len(means) == 1:
        return means[0].expand(len(places), p)
    return torch.stack(list(means))[list(places)] if means else torch.zeros(0, p)
