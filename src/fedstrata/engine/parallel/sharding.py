"""The clients of a plan, shared out to workers, and their reports put together.

Every row comes back whole, and only then are rows summed. So the number of workers changes no bit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Protocol

import torch
from torch import Tensor

from fedstrata.base.registry import PortableObject, portable_objects, receive_objects
from fedstrata.core import Evaluation, LocalTask, Plan, Report, Result, Rows, Score, empty_rows
from fedstrata.core.rows import are_unsent, unsent_rows
from fedstrata.engine.client_data import ClientData, SimulationSpec
from fedstrata.engine.client_store import ClientStore, parse_stored_name, stored_name
from fedstrata.engine.loop import Loop, empty_result

Shard = tuple[int, ...]
"""The ids of the clients whose work a worker does."""


@dataclass(frozen=True)
class ShardRequest:
    """What all workers need to know of a round.

    Attributes:
        plan: The plan of all clients.
        local_tensors: The local tensors that the plan loads, as `ClientStore.restore` takes them.
        functions: The functions of a script or notebook that the work calls, by the names by which it does.
    """

    plan: Plan
    local_tensors: Mapping[str, Tensor]
    functions: Mapping[str, PortableObject] = field(default_factory=dict)


@dataclass(frozen=True)
class ShardReply:
    """What one worker did.

    Attributes:
        report: The report of its clients.
        stored: The local tensors that they saved, as `ClientStore.tensors` returns them.
    """

    report: Report
    stored: Mapping[str, Tensor]


class Transport(Protocol):
    """Workers in other processes or on other machines, each with a `Loop` on the same specification."""

    @property
    def workers(self) -> int:
        """The number of workers at most."""

    def run(self, request: ShardRequest, shards: Sequence[Shard]) -> Sequence[ShardReply]:
        """Let a worker do every shard, and another one if that worker is lost.

        Raises:
            EngineError: When several workers in turn were lost with the same shard.
            Exception: When a worker raised it.
        """

    def close(self) -> None:
        """End the workers. The next round starts new ones."""


class Parallel:
    """Clients on several workers, bit for bit as `Loop` has them, whatever the number of workers.

    The local tensors of the clients stay in this process, so that a lost worker loses none of them.

    Args:
        spec: The network and the data.
        transport: The way to the workers.
    """

    def __init__(self, spec: SimulationSpec, transport: Transport) -> None:
        """Start nothing yet."""
        self.store = ClientStore()
        self._transport = transport
        self._client_data = spec.client_data
        self._objective = spec.objective
        self._loop = Loop.at(spec)

    def run(self, plan: Plan) -> Report:
        """Score the evaluations, then do the work of every client."""
        shards = split_into_shards(plan, self._client_data, self._transport.workers)
        functions = portable_objects([*plan.client_stats, *self._objective.names])
        replies = self._transport.run(ShardRequest(plan, self._local_tensors(plan), functions), shards)
        stored: dict[int, dict[int, Tensor]] = {}
        for name, values in (item for reply in replies for item in reply.stored.items()):
            client, tensor, _ = parse_stored_name(name)
            stored.setdefault(client, {})[tensor] = values
        for client in plan.cohort.tolist():
            self.store.write(client, plan.round, stored.get(client, {}))
        return merge_reports(plan, [reply.report for reply in replies])

    def outputs(self, models: Tensor, inputs: Tensor) -> Tensor:
        """As `Loop.outputs`, in this process."""
        return self._loop.outputs(models, inputs)

    def close(self) -> None:
        """End the workers. Without this they end with the last reference to this object."""
        self._transport.close()

    def _local_tensors(self, plan: Plan) -> dict[str, Tensor]:
        """The local tensors that a plan loads, by their names in the store."""
        masks = [task.load_local for task in plan.tasks.values()]
        masks += [evaluation.load_local for evaluation in plan.evaluations.values()]
        wanted = {tensor for mask in masks for tensor, keep in enumerate(mask) if keep}
        clients = set(plan.cohort.tolist()).union(*(each.clients.tolist() for each in plan.evaluations.values()))
        return {
            stored_name(client, tensor, plan.round - 1): values
            for client in sorted(clients if wanted else ())
            for tensor, values in self.store.read(client, before=plan.round).items()
            if tensor in wanted
        }


def split_into_shards(plan: Plan, client_data: ClientData, workers: int) -> list[Shard]:
    """Give the longest work that is left to the least busy worker, so that all workers are busy about as long.

    Returns:
        One shard for each worker that has work. If none has, one shard without clients.
    """
    costs = Counter[int]()
    for row, client in enumerate(plan.cohort.tolist()):
        samples = len(client_data.train(client, round=plan.round))
        tasks = [task for task in plan.tasks.values() if bool((task.candidates[row] >= 0).any())]
        # Without training it may still send statistics of its data.
        costs[client] += 1 + sum(task.training.samples_seen(samples) for task in tasks)
    for evaluation in plan.evaluations.values():
        for client in evaluation.clients.tolist():
            # Scores complete the record of the round before.
            costs[client] += len(client_data.held_out(client, evaluation.split, plan.round - 1))
    shards: list[list[int]] = [[] for _ in range(workers)]
    busy = [0] * workers
    for client in sorted(costs, key=lambda client: (-costs[client], client)):
        least = busy.index(min(busy))
        shards[least].append(client)
        busy[least] += costs[client]
    return [tuple(shard) for shard in shards if shard] or [()]


def perform(engine: Loop, request: ShardRequest, shard: Shard) -> ShardReply:
    """Do one shard of a request."""
    receive_objects(request.functions)
    engine.store.restore(request.local_tensors)
    plan = request.plan
    wanted = torch.tensor(shard, dtype=torch.int64)
    evaluations = {name: each.only(torch.isin(each.clients, wanted)) for name, each in plan.evaluations.items()}
    report = engine.run(replace(plan.only(torch.isin(plan.cohort, wanted)), evaluations=evaluations))
    return ShardReply(report, engine.store.saved_in(plan.round))


def merge_reports(plan: Plan, reports: Sequence[Report]) -> Report:
    """Put the reports of some clients of a plan together, every row where it would have been in one report."""
    results = {
        name: merge_results(plan, task, [report.results[name] for report in reports if name in report.results])
        for name, task in plan.tasks.items()
    }
    scores = {
        name: merge_scores(evaluation, [report.scores[name] for report in reports if name in report.scores])
        for name, evaluation in plan.evaluations.items()
    }
    client_stats = dict[str, Rows]()
    for name in plan.client_stats:
        parts = [report.client_stats[name] for report in reports if name in report.client_stats]
        if parts:
            client_stats[name] = _merge_rows(parts, _order(plan.cohort, [part.clients for part in parts]))
    return Report(results, scores, client_stats)


def merge_results(plan: Plan, task: LocalTask, parts: Sequence[Result]) -> Result:
    """Put results of some clients for a task together, in the order of the cohort."""
    if not parts:
        return empty_result(task, plan.models.shape[1])
    order = _order(plan.cohort, [part.updates.clients for part in parts])
    return Result(
        _merge_rows([part.updates for part in parts], order),
        torch.cat([part.chosen for part in parts])[order],
        torch.cat([part.sizes for part in parts])[order],
        torch.cat([part.losses for part in parts])[order],
    )


def merge_scores(evaluation: Evaluation, parts: Sequence[Score]) -> Score:
    """Put scores of some clients together, in the order of the evaluation."""
    if not parts:
        nobody = torch.empty(0, dtype=torch.int64)
        return Score(nobody, torch.empty(0, dtype=torch.float64), nobody, torch.empty(0))
    order = _order(evaluation.clients, [part.clients for part in parts])
    return Score(*(torch.cat([getattr(part, each.name) for part in parts])[order] for each in fields(Score)))


def _merge_rows(parts: Sequence[Rows], order: Tensor) -> Rows:
    """The rows of all parts in an order. Rows of one part are not copied, for they may not fit into memory twice."""
    if len(parts) == 1:
        return parts[0].at(order)
    clients = torch.cat([part.clients for part in parts])[order]
    width = parts[0].values.shape[1]
    if all(are_unsent(part.values) for part in parts):
        return Rows(clients, unsent_rows(len(order), width))
    values = empty_rows(len(order), width)
    for part, rows in zip(parts, order.argsort().split([len(part.clients) for part in parts]), strict=True):
        values[rows] = part.values
    return Rows(clients, values)


def _order(asked: Tensor, clients: Sequence[Tensor]) -> Tensor:
    """The order that puts the clients of all parts into the order in which they were asked."""
    place = {client: row for row, client in enumerate(asked.tolist())}
    return torch.tensor([place[client] for client in torch.cat(tuple(clients)).tolist()]).argsort()
