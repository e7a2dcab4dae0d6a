"""A plan's clients, shared out to workers; what comes back is put together as if by one.

Every row comes back whole, and only then are rows summed: so who did it leaves no trace in any bit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from fedstrata.core import Evaluation, Plan, Report, Result, Rows, Score, empty_rows
from fedstrata.engine.holdings import Holdings
from fedstrata.engine.loop import Loop
from fedstrata.engine.site import Site
from fedstrata.engine.store import Store

Shard = tuple[int, ...]
"""Ids of the clients whose work a worker does."""


@dataclass(frozen=True)
class Order:
    """What all workers need to know of a round.

    Attributes:
        plan: for everyone.
        kept: what is on the clients' devices and may be read, as `Store.restore` takes it.
    """

    plan: Plan
    kept: Mapping[str, Tensor]


@dataclass(frozen=True)
class Answer:
    """What one worker did.

    Attributes:
        report: of its clients.
        stored: what it left on their devices, as `Store.tensors` tells it.
    """

    report: Report
    stored: Mapping[str, Tensor]


class Transport(Protocol):
    """Workers somewhere else, each with a `Loop` on the same site."""

    @property
    def workers(self) -> int:
        """How many there are at most."""

    def run(self, order: Order, shards: Sequence[Shard]) -> Sequence[Answer]:
        """Let every shard be done by a worker, by another one if it is lost.

        Raises:
            EngineError: when several workers in turn were lost with the same shard.
            Exception: what a worker raised.
        """

    def close(self) -> None:
        """End the workers; the next round starts new ones."""


class Workers:
    """Clients on several workers, bit for bit as `Loop` has them, whatever the number of workers.

    What lives on the clients' devices is here: a worker that is lost takes nothing with it.

    Args:
        site: the network and the data.
        transport: where the workers are.
        store: what the clients' devices keep.
    """

    def __init__(self, site: Site, transport: Transport, store: Store | None = None) -> None:
        """Start nothing yet."""
        self.store, self._transport = store or Store(), transport
        self._holdings, self._loop = site.holdings, site.loop()

    def run(self, plan: Plan) -> Report:
        """Score the evaluations, then do the work of every client."""
        order = Order(plan, self._kept(plan))
        answers = self._transport.run(order, shards(plan, self._holdings, self._transport.workers))
        stored: dict[int, dict[int, Tensor]] = {}
        for name, values in (item for answer in answers for item in answer.stored.items()):
            client, tensor, _ = map(int, name.split("/"))
            stored.setdefault(client, {})[tensor] = values
        for client in plan.cohort.tolist():
            self.store.write(client, plan.round, stored.get(client, {}))
        return merge(plan, [answer.report for answer in answers])

    def predict(self, models: Tensor, inputs: Tensor) -> Tensor:
        """As `Loop.predict`, here."""
        return self._loop.predict(models, inputs)

    def close(self) -> None:
        """End the workers; without this they end with the last reference to this object."""
        self._transport.close()

    def _kept(self, plan: Plan) -> dict[str, Tensor]:
        """Of what the clients' devices keep, what the plan lets them use."""
        masks = [task.load_local for task in plan.tasks] + [evaluation.load_local for evaluation in plan.evaluations]
        wanted = {tensor for mask in masks for tensor, keep in enumerate(mask) if keep}
        clients = {
            client
            for ids in (plan.cohort, *(evaluation.clients for evaluation in plan.evaluations))
            for client in ids.tolist()
        }
        return {
            f"{client}/{tensor}/{plan.round - 1}": values
            for client in sorted(clients if wanted else ())
            for tensor, values in self.store.read(client, before=plan.round).items()
            if tensor in wanted
        }


def shards(plan: Plan, holdings: Holdings, workers: int) -> list[Shard]:
    """Deal the clients of a plan so that all workers are busy about as long: the longest work first, to the least busy.

    Returns:
        One shard for each worker that has something to do, and one without clients when nobody has.
    """
    costs = Counter[int]()
    for row, client in enumerate(plan.cohort.tolist()):
        passes = sum(task.training.epochs for task in plan.tasks if bool((task.candidates[row] >= 0).any()))
        # At least something, for it may be asked about its data.
        costs[client] += 1 + passes * len(holdings.train(client, round=plan.round))
    for evaluation in plan.evaluations:
        for client in evaluation.clients.tolist():
            costs[client] += len(holdings.test(client, plan.round))
    dealt: list[list[int]] = [[] for _ in range(workers)]
    busy = [0] * workers
    for client in sorted(costs, key=lambda client: (-costs[client], client)):
        least = busy.index(min(busy))
        dealt[least].append(client)
        busy[least] += costs[client]
    return [tuple(shard) for shard in dealt if shard] or [()]


def perform(engine: Loop, order: Order, shard: Shard) -> Answer:
    """Do one shard of an order."""
    engine.store.restore(order.kept)
    report = engine.run(_cut(order.plan, shard))
    end = f"/{order.plan.round}"
    return Answer(report, {name: values for name, values in engine.store.tensors().items() if name.endswith(end)})


def _cut(plan: Plan, shard: Shard) -> Plan:
    """The plan of some clients."""
    wanted = torch.tensor(shard, dtype=torch.int64)

    def cut(evaluation: Evaluation) -> Evaluation:
        rows = torch.isin(evaluation.clients, wanted)
        return replace(evaluation, clients=evaluation.clients[rows], candidates=evaluation.candidates[rows])

    return replace(plan.only(torch.isin(plan.cohort, wanted)), evaluations=tuple(map(cut, plan.evaluations)))


def merge(plan: Plan, reports: Sequence[Report]) -> Report:
    """Put the reports of all shards of a plan together, every row where it would have been."""
    results = tuple(_result(plan, parts) for parts in zip(*(report.results for report in reports), strict=True))
    scores = zip(plan.evaluations, zip(*(report.scores for report in reports), strict=True), strict=True)
    told = {
        name: [report.client_stats[name] for report in reports if name in report.client_stats]
        for name in plan.client_stats
    }
    facts = {name: _rows(plan.cohort, parts) for name, parts in told.items() if parts}
    return Report(results, tuple(_score(evaluation, parts) for evaluation, parts in scores), facts)


def _result(plan: Plan, parts: Sequence[Result]) -> Result:
    gather = _gatherer(plan.cohort, [part.updates.clients for part in parts])
    return Result(
        _rows(plan.cohort, [part.updates for part in parts]),
        gather([part.chosen for part in parts]),
        gather([part.sizes for part in parts]),
        gather([part.losses for part in parts]),
    )


def _score(evaluation: Evaluation, parts: Sequence[Score]) -> Score:
    gather = _gatherer(evaluation.clients, [part.clients for part in parts])
    correct, samples, loss = ([getattr(part, name) for part in parts] for name in ("correct", "samples", "loss"))
    return Score(evaluation.clients, gather(correct), gather(samples), gather(loss))


def _rows(asked: Tensor, parts: Sequence[Rows]) -> Rows:
    gather = _gatherer(asked, [part.clients for part in parts])
    values = [part.values for part in parts]
    room = empty_rows(sum(map(len, values)), values[0].shape[1])
    return Rows(gather([part.clients for part in parts]), gather(values, room))


def _gatherer(asked: Tensor, clients: Sequence[Tensor]) -> Callable[..., Tensor]:
    """What puts rows of several shards into the order in which their clients were asked.

    Args:
        asked: all ids in order; some may not have answered.
        clients: the ids of each shard's rows.
    """
    here = {client for ids in clients for client in ids.tolist()}
    place = {client: row for row, client in enumerate(client for client in asked.tolist() if client in here)}
    places = [torch.tensor([place[client] for client in ids.tolist()], dtype=torch.int64) for ids in clients]

    def gather(parts: Sequence[Tensor], room: Tensor | None = None) -> Tensor:
        whole = parts[0].new_empty(len(place), *parts[0].shape[1:]) if room is None else room
        for part, to in zip(parts, places, strict=True):
            whole[to] = part
        return whole

    return gather
