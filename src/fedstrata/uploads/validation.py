"""Which answers an algorithm may see, and which decisions the next round may start from.

Every upload is measured once: the float64 norms of its weights, of its normalisation layers and of its buffers. A norm
that is not finite rejects the answer. So does a norm that is far above those of the other clients, by the modified
z-score of the log norms: Iglewicz and Hoaglin, "How to detect and handle outliers", ASQC 1993. That norms expose
updates that were scaled up: Sun et al., "Can you really backdoor federated learning?", arXiv 1911.07963, 2019.

A negative running variance rejects the answer too. Its norm may be ordinary, but no normalisation layer can take its
root: the outputs of everyone who gets the model would not be numbers.

A client whose answer is rejected is treated as absent. A decision that leaves a model from which no client can start
is taken back. Both are events of the round's record, as data; ``report/words.toml`` has the sentences.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from statistics import median
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstrata.base.lazy_torch import torch
from fedstrata.core import (
    Algorithm,
    Diagnostics,
    Layout,
    LocalTask,
    Mask,
    Plan,
    Problem,
    Report,
    Result,
    State,
    TensorSpec,
)
from fedstrata.core.row_products import column_ranges, norms_of, row_norms
from fedstrata.core.state import StateT

_FACTOR = 10.0
"""A norm up to this multiple of the median is always accepted. A client with r times the median number of samples
takes r times as many steps, so r times this multiple is accepted.

In honest federations (`honest_norms.py`) the largest multiple was 10.4 among clients that took part from
the start, and 27 for one whose data changed after the federation had converged: `_MODEL_NORM_SHARE` accepts both.
"""

_Z_SCORE = 3.5
"""Modified z-score of a log norm up to which it is accepted: the cut that Iglewicz and Hoaglin recommend."""

_MAD_TO_DEVIATION = 1.4826
"""Standard deviation of a normal distribution whose median absolute deviation is 1."""

_MAX_FACTOR = 100.0
"""Neither a wide spread of the norms nor many samples excuse more than this multiple of the median."""

_MODEL_NORM_SHARE = 1.0
"""Share of the norm of the model that a client started from, up to which its update is always accepted.

After convergence most updates are almost zero. A newcomer, a client with one hard sample, or one in a wrong cluster is
then many times above the median. The largest share of such a client was 0.68, in the tests of every algorithm; a client
that is rejected in each round could never find its cluster.
"""

_MIN_CLUSTER_NORMS = 4
"""Clients that start from the same model are compared with each other if there are so many, else with everyone."""

_MIN_NORMS = 3
"""With fewer norms than these there is no comparison."""

_LEAST_VARIANCE = -1e-6
"""Running variances down to this number are accepted: the mean of updates to zero may end so far below it by rounding.

A normalisation layer of torch adds 1e-5 to a variance before it takes the root.
"""

LARGEST_NORM = math.sqrt(float(np.finfo(np.float32).max))
"""Largest norm whose square is a float32 number, 1.8e19: beyond it, neither an update nor a model can be used."""

_DIVERGED_SHARE = 0.5
"""A round has diverged if more than this share of the answers is not finite."""

_MAX_GUESSING_LOSSES = 2.0
"""A round has diverged if its models have more than this multiple of the loss of guessing, ln(classes)."""


@dataclass(frozen=True)
class ValidAnswers:
    """A step that removes the answers that `validate` rejects.

    Attributes:
        layout: The tensors of the network.
        compared: As in `validate`.
    """

    layout: Layout
    compared: bool = True

    def of_report(self, plan: Plan, report: Report) -> Report:
        """The report without any row of the clients that are rejected."""
        valid = validate(self.layout, plan, report, compared=self.compared)
        return replace(valid, events=(*valid.events, *divergence_of_answers(report, valid.events)))


@dataclass(frozen=True)
class Norms:
    """The norms of one part of what the clients sent for one task.

    Attributes:
        task: The name of the task.
        part: The kind of tensors that were measured.
        spans: The columns of these tensors.
        result: What the m clients sent.
        values: The norm of each client, (m,) float64.
        all_compared: Whether norms are compared with each other at all.
    """

    task: str
    part: str
    spans: Sequence[slice]
    result: Result
    values: NDArray[np.float64]
    all_compared: bool

    @property
    def clients(self) -> NDArray[np.int64]:
        """The ids of the clients, (m,)."""
        return self.result.updates.clients.numpy()

    @property
    def given(self) -> NDArray[np.int64]:
        """The model of the plan that each client started from, (m,)."""
        return self.result.chosen.numpy()

    @cached_property
    def sizes(self) -> NDArray[np.float64]:
        """The number of samples of each client, (m,)."""
        return self.result.sizes.double().numpy()

    @cached_property
    def comparable(self) -> NDArray[np.bool_]:
        """Whose norm is compared with those of others, bool (m,)."""
        # A norm of zero is no outlier, and says nothing about how large the others may be.
        return np.isfinite(self.values) & (self.values > 0) & (self.sizes > 0) & self.all_compared

    @cached_property
    def medians_and_limits(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The median of the clients that each was compared with, nan where there is none, and its limit, (m,) each.

        Up to the limit a norm is accepted, wherever the client started from.
        """
        medians = np.full(len(self.values), np.nan)
        limits = np.full(len(self.values), LARGEST_NORM)
        for model in np.unique(self.given):
            members = self.given == model
            others = self.comparable & members
            if others.sum() < _MIN_CLUSTER_NORMS:
                others = self.comparable
            if others.sum() < _MIN_NORMS:
                continue
            logs = np.log(self.values[others])
            # Of a few numbers, and those of numpy take ten times as long.
            center = median(logs.tolist())
            deviation = _MAD_TO_DEVIATION * median(np.abs(logs - center).tolist())
            more_samples = np.maximum(self.sizes[members] / median(self.sizes[others].tolist()), 1.0)
            # The spread of attackers' norms has no bound; its exponential would overflow.
            by_spread = np.exp(np.minimum(_Z_SCORE * deviation, math.log(_MAX_FACTOR)))
            allowed = np.minimum(np.maximum(_FACTOR * more_samples, by_spread), _MAX_FACTOR)
            medians[members] = np.exp(center)
            limits[members] = np.minimum(np.exp(center) * allowed, LARGEST_NORM)
        return medians, limits

    @property
    def alike(self) -> bool:
        """Whether the norms are so close to each other that none is above its limit."""
        least = self.values.min(initial=np.inf)
        if not least > 0:
            least = self.values.min(where=self.comparable, initial=np.inf)
        return bool(self.values.max(initial=0) <= min(_FACTOR * least, LARGEST_NORM))


def validate(layout: Layout, plan: Plan, report: Report, *, compared: bool = True) -> Report:
    """Remove every client whose answer is not finite, is far too large, has no samples or a negative running variance.

    Args:
        layout: The tensors of the network.
        plan: The plan for the whole cohort.
        report: The report of the clients that answered.
        compared: Whether norms are compared with those of the other clients. Where they are not, only a norm is too
            large with which nothing can be computed.

    Returns:
        The report without any row of these clients; events say why. The report itself where there are none.
    """
    not_finite = set[int]()
    no_samples = set[int]()
    negative = set[int]()
    long = list[dict[str, Any]]()
    too_large = dict[int, dict[str, Any]]()
    for name, result in report.results.items():
        if result.sizes.numpy().min(initial=1) <= 0:
            no_samples.update(result.updates.clients[result.sizes <= 0].tolist())
        negative.update(_with_negative_variance(layout, plan, plan.tasks[name], result))
    for norms in measure_norms(layout, plan, report, compared=compared):
        if norms.alike:
            continue
        not_finite.update(norms.clients[~np.isfinite(norms.values)].tolist())
        long += _too_large(norms, plan)
    # Of several norms of a client, that is told which is farthest above its limit.
    for event in sorted(long, key=lambda each: each["norm"] / each["limit"], reverse=True):
        too_large.setdefault(event["clients"][0], event)
    for rows in report.client_stats.values():
        values = norms_of(rows, [slice(0, rows.values.shape[1])])
        not_finite.update(rows.clients.numpy()[~np.isfinite(values)].tolist())
    no_samples -= not_finite
    negative -= not_finite | no_samples | too_large.keys()
    reasons = (("not finite", not_finite), ("no samples", no_samples), ("negative variance", negative))
    events: list[dict[str, Any]] = [
        {"kind": "rejected", "reason": reason, "clients": sorted(clients)} for reason, clients in reasons if clients
    ]
    events += [too_large[client] for client in sorted(too_large.keys() - not_finite - no_samples)]
    if not events:
        return report
    rejected = not_finite | no_samples | negative | too_large.keys()
    return replace(without_clients(report, rejected), events=(*report.events, *events))


def measure_norms(layout: Layout, plan: Plan, report: Report, *, compared: bool = True) -> Iterator[Norms]:
    """The norms of everything that was uploaded, by task and part, in one pass over the rows.

    The arguments are those of `validate`.
    """
    for name, result in report.results.items():
        task = plan.tasks[name]
        for part, spans in _parts(layout, tuple(task.upload), tuple(task.upload_values or layout.nothing)).items():
            yield Norms(name, part, spans, result, norms_of(result.updates, spans), compared)


def decide(
    algorithm: Algorithm[StateT], problem: Problem, state: StateT, report: Report
) -> tuple[StateT, Diagnostics, list[dict[str, Any]]]:
    """Let the algorithm decide, and take its decision back if a model of the new state cannot be used.

    Args:
        algorithm: The algorithm.
        problem: What is fixed for the run.
        state: The state before the round.
        report: The validated report.

    Returns:
        The new state, the notes of the algorithm, and an event if the decision was taken back. Then the state is the
        one after a round in which nobody answered: its models are those from before.
    """
    after, diagnostics = algorithm.update(problem, state, report)
    unusable = _unusable(after, problem.layout)
    if not unusable:
        return after, diagnostics, []
    told = {client for rows in report.client_stats.values() for client in rows.clients.tolist()}
    nodes = sorted({_node_before(state, after, node) for node in unusable})
    after, diagnostics = algorithm.update(problem, state, without_clients(report, _answered(report) | told))
    return after, diagnostics, [{"kind": "diverged", "reason": "models", "nodes": nodes}]


def divergence_of_answers(report: Report, events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """An event if most of the answers were not finite.

    Args:
        report: The report before validation.
        events: The events of its validation.
    """
    bad = [client for event in events if event.get("reason") == "not finite" for client in event["clients"]]
    if not bad:
        return []
    answered = _answered(report)
    if not answered or len(bad) <= _DIVERGED_SHARE * len(answered):
        return []
    return [{"kind": "diverged", "reason": "answers", "clients": bad, "answered": len(answered)}]


def divergence_of_loss(layout: Layout, losses: torch.Tensor, classifies: bool = True) -> list[dict[str, Any]]:
    """An event if the models of a round are far worse than guessing, or have no finite loss.

    Args:
        layout: The tensors of the network. Its last linear layer has a row for each class.
        losses: The mean test cross-entropy of each client, (s,) in nats. Their median counts, so that no single client
            can report a divergence that there is not.
        classifies: Whether the loss is the cross-entropy of one class per sample. What guessing costs by another loss
            is not known, nor by a network without a last linear layer. Then only a loss that is not finite is one.
    """
    last = [slot.shape[0] for slot in layout.tensors if slot.kind == "linear"][-1:] if classifies else []
    guessing = math.log(last[0]) if last and last[0] > 1 else None
    if not len(losses):
        return []
    # The lower one of two medians, and of infinities. numpy sorts nan to the end.
    middle = (len(losses) - 1) // 2
    loss = float(np.nan_to_num(np.partition(losses.numpy(), middle)[middle], nan=np.inf, posinf=np.inf))
    largest = sys.float_info.max if guessing is None else _MAX_GUESSING_LOSSES * guessing
    return [{"kind": "diverged", "reason": "loss", "loss": loss, "guessing": guessing}] if loss > largest else []


def missing_events(kind: str, reasons: Mapping[int, str]) -> list[dict[str, Any]]:
    """Events of a kind that say why clients are missing, with the clients of one reason together."""
    whys = dict.fromkeys(reasons.values())
    return [{"kind": kind, "clients": [c for c, other in reasons.items() if other == why], "why": why} for why in whys]


def _answered(report: Report) -> set[int]:
    """The clients that sent an update."""
    return {client for result in report.results.values() for client in result.updates.clients.tolist()}


@lru_cache(maxsize=16)
def _parts(layout: Layout, upload: Mask, as_values: Mask) -> Mapping[str, tuple[slice, ...]]:
    """The columns that are uploaded, by what is measured together.

    Args:
        layout: The layout of the network.
        upload: The tensors that are uploaded.
        as_values: Those of them that are sent as they are, not as updates.
    """
    tensors = zip(layout.tensors, upload, as_values, strict=True)
    parts = [_part(slot, as_value) if sent else "" for slot, sent, as_value in tensors]
    by_part = {part: tuple(other == part for other in parts) for part in dict.fromkeys(parts) if part}
    return MappingProxyType({part: column_ranges(layout, mask) for part, mask in by_part.items()})


def _part(slot: TensorSpec, as_value: bool) -> str:
    """What a tensor is measured with: others of its kind, that are also sent as updates, or also as they are."""
    # A client can spoil a buffer or a normalisation layer whose norm is small beside that of the weights.
    part = {"norm": "normalisation layers", "buffer": "buffers"}.get(slot.kind, "weights")
    # Tensors that are sent as they are have other norms than updates.
    return f"values of {part}" if as_value else part


def _too_large(norms: Norms, plan: Plan) -> list[dict[str, Any]]:
    """An event for every client whose norm is above its limit and large beside that of the model it started from."""
    events = []
    medians, limits = norms.medians_and_limits
    for row in np.flatnonzero(np.isfinite(norms.values) & (norms.values > limits)):
        start = plan.models[int(norms.given[row])][None]
        limit = max(limits[row], min(_MODEL_NORM_SHARE * row_norms(start, norms.spans)[0], LARGEST_NORM))
        if norms.values[row] > limit:
            center = medians[row]
            event = {
                "kind": "rejected",
                "reason": "norm",
                "clients": [int(norms.clients[row])],
                "task": norms.task,
                "part": norms.part,
                "norm": _rounded(norms.values[row]),
                "median": None if np.isnan(center) else _rounded(center),
                "limit": _rounded(limit),
            }
            events.append(event)
    return events


def _running_variances(layout: Layout) -> list[int]:
    """The places of the running variances of normalisation layers among the tensors."""
    buffers = [(place, slot.name) for place, slot in enumerate(layout.tensors) if slot.kind == "buffer"]
    return [place for place, name in buffers if name.rpartition(".")[2] == "running_var"]


def _with_negative_variance(layout: Layout, plan: Plan, task: LocalTask, result: Result) -> set[int]:
    """The clients whose update leads from the model of the plan to a negative running variance.

    Where a client did not start from the running variance of that model, its update does not say what it ended with.
    """
    sent = [place for place in _running_variances(layout) if task.upload[place]]
    if not sent:
        return set()
    as_values = task.upload_values or layout.nothing
    found = torch.zeros(len(result.updates.clients), dtype=torch.bool)
    updates = result.updates.on_device
    for place in sent:
        if not as_values[place] and (task.continues or task.load_local[place]):
            continue
        ends = updates[:, layout.spans[place]].cpu()
        if not as_values[place]:
            ends = plan.models[:, layout.spans[place]][result.chosen] + ends
        found |= (ends < _LEAST_VARIANCE).any(dim=1)
    return set(result.updates.clients[found].tolist())


def _rounded(value: float) -> float:
    """Round to four digits, so that engines that add up in another order write the same record."""
    return float(f"{value:.4g}")


def without_clients(report: Report, clients: Iterable[int]) -> Report:
    """The report without any row of some clients."""
    gone = torch.tensor(sorted(clients), dtype=torch.int64)
    client_stats = {name: rows.at(~torch.isin(rows.clients, gone)) for name, rows in report.client_stats.items()}
    left = report.with_results(lambda _, result: result.only(~torch.isin(result.updates.clients, gone)))
    return replace(left, client_stats=client_stats)


def _unusable(state: State, layout: Layout) -> list[int]:
    """The tree nodes whose model no client could start from."""
    unusable = _too_long(state.models)
    for place in _running_variances(layout):
        unusable |= (state.models[:, layout.spans[place]] < _LEAST_VARIANCE).any(dim=1).numpy()
    found: list[int] = state.nodes[torch.from_numpy(unusable)].tolist()
    return found


def _too_long(rows: torch.Tensor) -> NDArray[np.bool_]:
    """Of which rows (m, p) the norm is too large, or not finite, (m,)."""
    # No row is longer than all of them together.
    if float(torch.linalg.vector_norm(rows)) <= LARGEST_NORM:
        return np.zeros(len(rows), np.bool_)
    return ~(row_norms(rows, [slice(0, rows.shape[1])]) <= LARGEST_NORM)


def _node_before(before: State, after: State, node: int) -> int:
    """The node itself, or the nearest ancestor that was there before the round."""
    while node >= len(before.tree):
        parent = after.tree[node].parent
        assert parent is not None  # the first node was there before every round
        node = parent
    return node
