"""Several algorithms on one federation: what more than one of them asks of a client in a round is done once.

Before their first splits CFL, LayerCFL, HiCFL and FedAvg ask for the same work, and after them some of their clusters
still start from the same model. Only plans and reports are handled here, so every engine serves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedstrata.core import Clients, Evaluation, LocalTask, Plan, Report, Result, Rows, Score, empty_rows
from fedstrata.engine.batched import Batched, run_together
from fedstrata.engine.choice import Engine
from fedstrata.engine.merging import Place, Wish, merge
from fedstrata.engine.store import Store

STEP = 3
"""What a training step costs in passes forward: the way back takes about twice as long."""


class Devices:
    """The devices of one of several algorithms on one engine: what they keep is their own.

    Args:
        engine: that computes for all of them.
    """

    def __init__(self, engine: Engine) -> None:
        """Start with empty devices."""
        self.store = Store()
        self._engine = engine

    def run(self, plan: Plan) -> Report:
        """Score the evaluations, then do the work of every client."""
        others = self._engine.store
        self._engine.store = self.store
        try:
            return self._engine.run(plan)
        finally:
            self._engine.store = others

    def predict(self, models: Tensor, inputs: Tensor) -> Tensor:
        """Class probabilities (r, b, classes) that models (r, p) give inputs (b, ...), in evaluation mode."""
        return self._engine.predict(models, inputs)


@dataclass(frozen=True)
class Answers:
    """What came back for several plans that shared their work.

    Attributes:
        reports: of each plan, bit for bit what it would have got alone.
        seconds: that each took: its private work, and its part of what was shared.
        done: local jobs that had to be done; a job is what a client does for one task.
    """

    reports: tuple[Report, ...]
    seconds: tuple[float, ...]
    done: int


NOTHING = Report(())


@dataclass(frozen=True)
class Asked:
    """What several algorithms ask of one federation in a round.

    Attributes:
        plans: of the algorithms.
        engine: does what they share, on devices that keep nothing.
        devices: of each algorithm; do what is private.
    """

    plans: Sequence[Plan]
    engine: Clients
    devices: Sequence[Clients]


def together(plans: Sequence[Plan], engine: Clients, devices: Sequence[Clients]) -> Answers:
    """Have plans for one round of the same federation answered, equal jobs once; see `Asked`.

    Raises:
        ContractError: when the plans are of several rounds or seeds.
    """
    (answers,) = all_together([Asked(plans, engine, devices)])
    return answers


def all_together(asked: Sequence[Asked]) -> tuple[Answers, ...]:
    """Have plans on several federations answered, those of each as in `together`.

    What is not private is one batch, where all engines are batched.

    Raises:
        ContractError: when the plans on a federation are of several rounds or seeds.
    """
    wanted = [merge(each.plans) for each in asked]
    began = perf_counter()
    shared = [(each.engine, plan) for each, (plan, _) in zip(asked, wanted, strict=True) if plan is not None]
    told = iter(_told(shared))
    common = [NOTHING if plan is None else next(told) for plan, _ in wanted]
    spent, found = perf_counter() - began, list[Answers]()
    borne = [costs(plan, wishes, report) for (plan, wishes), report in zip(wanted, common, strict=True)]
    rate = spent / (sum(map(sum, borne)) or 1)
    for each, (_, wishes), report, own in zip(asked, wanted, common, borne, strict=True):
        private, seconds = _private(each, wishes)
        times = tuple(rate * cost + more for cost, more in zip(own, seconds, strict=True))
        found.append(Answers(cut(wishes, report, private), times, sum(map(jobs, (report, *private)))))
    return tuple(found)


def jobs(report: Report) -> int:
    """Number of local jobs that a report is about."""
    return sum(len(result.sizes) for result in report.results)


def _told(shared: Sequence[tuple[Clients, Plan]]) -> tuple[Report, ...]:
    """The reports of plans, each by an engine of its own."""
    batch = [(engine, plan) for engine, plan in shared if isinstance(engine, Batched)]
    if len(batch) == len(shared):
        return run_together(batch)
    return tuple(engine.run(plan) for engine, plan in shared)


def _private(asked: Asked, wishes: Sequence[Wish]) -> tuple[list[Report], list[float]]:
    """What each algorithm's own devices do, and the seconds it took."""
    reports, seconds = list[Report](), list[float]()
    for wish, own in zip(wishes, asked.devices, strict=True):
        began = perf_counter()
        reports.append(NOTHING if wish.private is None else own.run(wish.private))
        seconds.append(perf_counter() - began)
    return reports, seconds


def costs(merged: Plan | None, wishes: Sequence[Wish], common: Report) -> tuple[float, ...]:
    """The part of the merged plan's cost that each plan bears; 0 where nothing was done.

    Several that asked for a job bear it in equal parts. It costs as many passes forward as it takes samples; a
    training step counts as three. What clients tell about their data is free.
    """
    known: dict[Place, float] = {}
    for slot, (task, result) in enumerate(zip(merged.tasks if merged else (), common.results, strict=True)):
        passes = STEP * task.training.epochs * any(task.trainable) + (~result.losses.isnan()).sum(dim=1)
        spent = zip(result.updates.clients.tolist(), (result.sizes * passes).tolist(), strict=True)
        known |= {("work", slot, client): cost for client, cost in spent}
    for slot, score in enumerate(common.scores):
        spent = zip(score.clients.tolist(), score.samples.tolist(), strict=True)
        known |= {("score", slot, client): cost for client, cost in spent}
    askers = Counter(place for wish in wishes for place in wish.places)
    return tuple(sum(known.get(place, 0.0) / askers[place] for place in wish.places) for wish in wishes)


def cut(wishes: Sequence[Wish], common: Report, private: Sequence[Report]) -> tuple[Report, ...]:
    """The report of each plan.

    Args:
        wishes: of `merge`.
        common: of the merged plan; an empty one if there is none.
        private: of each private plan; an empty one if there is none.
    """
    trained = [_rows(result.updates.clients) for result in common.results]
    scored = [_rows(score.clients) for score in common.scores]
    reports = []
    for wish, own in zip(wishes, private, strict=True):
        results, scores, plan = iter(own.results), iter(own.scores), wish.plan
        work, score = zip(plan.tasks, wish.work, strict=True), zip(plan.evaluations, wish.score, strict=True)
        asked = {name: plan.cohort[rows] for name, rows in plan.client_stats.items() if bool(rows.any())}
        report = Report(
            tuple(next(results) if s is None else _result(wish, task, s, common.results, trained) for task, s in work),
            tuple(
                next(scores) if s is None else _score(evaluation, s, common.scores, scored) for evaluation, s in score
            ),
            {name: Rows(clients, common.client_stats[name].of(clients)) for name, clients in asked.items()},
        )
        reports.append(report)
    return tuple(reports)


def _rows(clients: Tensor) -> dict[int, int]:
    return {client: row for row, client in enumerate(clients.tolist())}


def _result(
    wish: Wish,
    task: LocalTask,
    slots: Mapping[int, int],
    results: Sequence[Result],
    trained: Sequence[Mapping[int, int]],
) -> Result:
    """What came back for one task of a plan."""
    cohort, offers = wish.plan.cohort.tolist(), task.candidates.tolist()
    # A client without enough samples has sent nothing.
    rows = [row for row, client in enumerate(cohort) if client in slots and client in trained[slots[client]]]
    places = [(slots[cohort[row]], trained[slots[cohort[row]]][cohort[row]]) for row in rows]
    given = []
    for row, (slot, place) in zip(rows, places, strict=True):
        # Of two offers with the same values the first is taken.
        taken = [wish.models[offer] for offer in offers[row]].index(int(results[slot].chosen[place]))
        given.append(offers[row][taken])
    m, width = len(rows), task.candidates.shape[1]
    values = [result.updates.values for result in results]
    losses = [pad(result.losses, (0, width - result.losses.shape[1]), value=torch.nan) for result in results]
    return Result(
        Rows(wish.plan.cohort[rows], _gathered(values, places, partial(empty_rows, m, wish.plan.models.shape[1]))),
        torch.tensor(given, dtype=torch.int64),
        _gathered([result.sizes for result in results], places, partial(torch.empty, m, dtype=torch.int64)),
        _gathered(losses, places, partial(torch.empty, m, width)),
    )


def _score(
    evaluation: Evaluation, slots: Mapping[int, int], scores: Sequence[Score], scored: Sequence[Mapping[int, int]]
) -> Score:
    """How one evaluation of a plan did."""
    places = [(slots[client], scored[slots[client]][client]) for client in evaluation.clients.tolist()]
    counts = partial(torch.empty, len(places), dtype=torch.int64)
    return Score(
        evaluation.clients,
        _gathered([score.correct for score in scores], places, counts),
        _gathered([score.samples for score in scores], places, counts),
        _gathered([score.loss for score in scores], places, partial(torch.empty, len(places))),
    )


def _gathered(parts: Sequence[Tensor], places: Sequence[tuple[int, int]], room: Callable[[], Tensor]) -> Tensor:
    """Rows of several tensors, each by tensor and row; a tensor as it is where that is all of it."""
    slot = places[0][0] if places else 0
    if places and places == [(slot, row) for row in range(len(parts[slot]))]:
        return parts[slot]
    gathered = room()
    for row, (part, place) in enumerate(places):
        gathered[row] = parts[part][place]
    return gathered
