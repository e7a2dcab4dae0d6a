"""What one client replies in a round, as a message, and what an honest one keeps to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite, isnan
from types import MappingProxyType

import torch
from torch import Tensor

from fedstrata.base.errors import InputError
from fedstrata.core import Layout, LocalTask, Mask, Report, Result, Rows, Score
from fedstrata.engine import RESIDUAL
from fedstrata.engine.client_store import parse_stored_name
from fedstrata.engine.loop import empty_result
from fedstrata.flower.payload import (
    ONE_DOUBLE,
    ONE_FLOAT,
    ONE_INT,
    ArrayForm,
    ExpectedReply,
    Payload,
    Schema,
    row_of_values,
    values_of_row,
    width_of,
)
from fedstrata.flower.requests import Request
from fedstrata.objective import Objective
from fedstrata.uploads.compression import Compression, Packed


@dataclass(frozen=True)
class Reply:
    """What one client replies.

    Attributes:
        report: The report of it alone. Its chosen candidates are models of the plan for everyone.
        stored: The tensors that this round left on its device.
        not_finite: Whether these are not finite, so that the device has none at all.
    """

    report: Report
    stored: tuple[int, ...] = ()
    not_finite: bool = False

    @classmethod
    def of(cls, report: Report, saved: Mapping[str, Tensor]) -> Reply:
        """The reply of a device that saved tensors in the round, by name as in `ClientStore`."""
        stored = tuple(sorted(parse_stored_name(name)[1] for name in saved))
        return cls(report, stored, any(not bool(values.isfinite().all()) for values in saved.values()))


@dataclass(frozen=True)
class ReplyBounds:
    """What the replies of one client have to keep to.

    Attributes:
        run: The name of the run.
        samples: The number of samples that a client may claim, of either kind. Nobody can count them.
        objective: What the networks learn, which bounds the loss and the metric.
        unknown: Whether clients need not tell the metric.
    """

    run: str
    samples: int
    objective: Objective = field(default_factory=Objective)
    unknown: bool = False


@dataclass(frozen=True)
class _ReplyHead:
    """The plain values of a reply. `stored` has the numbers of tensors."""

    run: str
    round: int
    client: int
    stored: tuple[int, ...]
    not_finite: bool


@dataclass(frozen=True)
class _ResultRecord:
    """A result beside its update: the chosen model of the request, the samples, and the loss of each candidate."""

    chosen: int
    size: int
    losses: tuple[float, ...]


_UPDATES = "updates"
"""The group of the updates in a reply that are not compressed, by task."""


_REPLY_HEAD = Schema(_ReplyHead)


_RESULT = Schema(_ResultRecord)


_SCORE = Schema(Score, clients=ONE_INT, correct=ONE_DOUBLE, samples=ONE_INT, loss=ONE_FLOAT)


def write_reply(
    reply: Reply,
    request: Request,
    layout: Layout,
    run: str,
    compression: Compression | None = None,
    packed: Mapping[str, Packed] = MappingProxyType({}),
) -> Payload:
    """Write a reply, whose chosen candidates are models of the request.

    Args:
        reply: The reply.
        request: The request.
        layout: The layout of the network.
        run: The name of the run.
        compression: How the client compresses its updates; None where it does not.
        packed: The compressed updates, by task.
    """
    head = _ReplyHead(run, request.plan.round, request.client, reply.stored, reply.not_finite)
    records = {"reply": _REPLY_HEAD.write(head)}
    arrays = dict[str, Mapping[str, Tensor]]()
    updates = dict[str, Tensor]()
    for name, result in reply.report.results.items():
        upload = _sent_as_they_are(request.plan.tasks[name], compression)
        if len(result.sizes):
            losses = tuple(result.losses[0].tolist())
            records[f"result-{name}"] = _RESULT.write(_ResultRecord(int(result.chosen), int(result.sizes), losses))
            if any(upload):
                updates[name] = values_of_row(result.updates.values[0], upload, layout)
            if name in packed:
                arrays[f"compressed-{name}"] = packed[name]
    # A client of somebody's own app need not have samples to be tested on.
    scores = {name: score for name, score in reply.report.scores.items() if len(score.clients)}
    records |= {f"score-{name}": _SCORE.write(score) for name, score in scores.items()}
    if updates:
        arrays[_UPDATES] = updates
    if reply.report.client_stats:
        arrays["client_stats"] = {name: rows.values[0] for name, rows in reply.report.client_stats.items()}
    return Payload(records, arrays)


def _sent_as_they_are(task: LocalTask, compression: Compression | None) -> Mask:
    """The tensors whose updates are not compressed, (l,)."""
    return task.upload if compression is None else compression.plain(task)


def expected_reply(
    request: Request, layout: Layout, stat_sizes: Mapping[str, int], compression: Compression | None = None
) -> ExpectedReply:
    """Say what the reply to a request may hold, with the size of each statistic that it asks for."""
    plan = request.plan
    arrays: dict[str, dict[str, ArrayForm]] = {_UPDATES: {}}
    for name, task in plan.tasks.items():
        upload = _sent_as_they_are(task, compression)
        if any(upload):
            arrays[_UPDATES][name] = ArrayForm((width_of(upload, layout),))
        if compression is not None:
            forms = compression.forms(task).items()
            arrays[f"compressed-{name}"] = {part: ArrayForm(*form) for part, form in forms}
    arrays["client_stats"] = {name: ArrayForm((stat_sizes[name],)) for name in plan.client_stats}
    records = {"reply", "missing", "failed"}
    records |= {f"result-{name}" for name in plan.tasks}
    records |= {f"score-{name}" for name in plan.evaluations}
    # Beside its tensors, a device keeps what compression leaves out.
    kept = len(layout.tensors) + (compression is not None)
    longest = max(kept, *(task.candidates.shape[1] for task in plan.tasks.values()), 0)
    return ExpectedReply(frozenset(records), arrays, longest)


def read_reply(
    payload: Payload,
    request: Request,
    layout: Layout,
    bounds: ReplyBounds,
    compression: Compression | None = None,
) -> Reply:
    """Read the reply in a payload that was decoded as `expected_reply` says, in terms of the plan for everyone.

    Raises:
        InputError: When it does not answer this request, or holds anything that no honest reply would.
    """
    plan = request.plan
    head = _REPLY_HEAD.read(payload.record("reply"))
    expected = {"run": bounds.run, "round": plan.round, "client": request.client}
    for name, value in expected.items():
        if (found := getattr(head, name)) != value:
            raise InputError(f"expected a reply of {name} {value}, found {name} {found}")
    count = len(layout.tensors)
    kept = [*range(count), RESIDUAL] if compression else range(count)
    if len({*head.stored} & {*kept}) < len(head.stored):
        raise InputError(f"expected stored to name tensors 0 to {count - 1}, each once, found {list(head.stored)}")
    results = {name: _read_result(payload, name, request, layout, bounds, compression) for name in plan.tasks}
    scored = [name for name in plan.evaluations if not bounds.unknown or f"score-{name}" in payload.records]
    scores = {name: _read_score(payload, name, request, bounds) for name in scored}
    return Reply(Report(results, scores, _read_client_stats(payload, request, bounds)), head.stored, head.not_finite)


def _read_result(
    payload: Payload,
    name: str,
    request: Request,
    layout: Layout,
    bounds: ReplyBounds,
    compression: Compression | None,
) -> Result:
    task = request.plan.tasks[name]
    if f"result-{name}" not in payload.records:
        # A client without a sample in the fold that it was to train on has nothing to say.
        return empty_result(task, layout.p)
    found = _RESULT.read(payload.record(f"result-{name}"))
    width = task.candidates.shape[1]
    if found.chosen < 0 or found.chosen not in task.candidates[0].tolist():
        raise InputError(f"expected result {name} to be trained from an offered model, found {found.chosen}")
    # A fold that seems larger than all others would keep their clients out of a test.
    largest = bounds.samples if task.max_samples is None else min(bounds.samples, int(task.max_samples[0]))
    if not 1 <= found.size <= largest:
        raise InputError(f"expected result {name} to be of 1 to {largest} samples, found {found.size}")
    least = bounds.objective.least_loss
    if len(found.losses) != width or any(not (isnan(loss) or loss >= least) for loss in found.losses):
        wanted = f"{width} losses, each of at least {least:g}"
        raise InputError(f"expected result {name} to have {wanted}, found {list(found.losses)}")
    row = row_of_values(_UPDATES, name, payload, _sent_as_they_are(task, compression), layout)
    if compression is not None and any(compression.mask(task)):
        row[layout.columns(compression.mask(task))] = _unpacked(payload, name, task, compression)
    # Numbers that are not finite are taken: as in a simulation, the server rejects the client and says so.
    return Result(
        updates=Rows(torch.tensor([request.client]), row[None]),
        chosen=torch.tensor([request.models[found.chosen]]),
        sizes=torch.tensor([found.size]),
        losses=torch.tensor([found.losses]),
    )


def _unpacked(payload: Payload, name: str, task: LocalTask, compression: Compression) -> Tensor:
    """The compressed part of an update as the server has it, in the columns that the task compresses, (d,)."""
    packed = {part: payload.array(f"compressed-{name}", part) for part in compression.forms(task)}
    compression.check(task, packed)
    return compression.unpack(task, packed)


def _read_score(payload: Payload, name: str, request: Request, bounds: ReplyBounds) -> Score:
    score = _SCORE.read(payload.record(f"score-{name}"))
    client = int(score.clients)
    correct = float(score.correct)
    samples = int(score.samples)
    if client != request.client:
        raise InputError(f"expected a score of client {request.client}, found one of client {client}")
    objective = bounds.objective
    least, most = objective.metric_info.bounds
    known = isfinite(correct) and least * samples <= correct <= most * samples
    unknown = bounds.unknown or objective.may_be_unknown(samples)
    if not 1 <= samples <= bounds.samples or not (known or (unknown and not isfinite(correct))):
        raise InputError(
            f"expected a score of 1 to {bounds.samples} test samples, found {correct:g} right of {samples}"
        )
    if float(score.loss) < objective.least_loss:
        raise InputError(f"expected a loss of at least {objective.least_loss:g}, found {float(score.loss):g}")
    return score


def _read_client_stats(payload: Payload, request: Request, bounds: ReplyBounds) -> dict[str, Rows]:
    found = {name: payload.array("client_stats", name) for name in request.plan.client_stats}
    for name, values in found.items():
        if not bool(values.isfinite().all()):
            raise InputError(f"expected finite numbers in the statistic {name}, found others")
    return {name: Rows(torch.tensor([request.client]), values[None]) for name, values in found.items()}
