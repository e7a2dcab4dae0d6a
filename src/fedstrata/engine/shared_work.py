"""Several algorithms on one federation: what more than one of them asks of a client in a round is done once.

Before their first splits CFL, LayerCFL, HiCFL and FedAvg ask for the same work. After them some of their clusters still
start from the same model. Only plans and reports are handled here, so every engine serves.

A job is what one client does for one task or evaluation. Two jobs are the same if the values of the candidate models
and all other fields of the task or evaluation are. The distinct jobs of all plans are one merged plan. What loads or
saves local tensors is private: each algorithm has local stores of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from hashlib import blake2b
from time import perf_counter
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedstrata.core import Clients, Evaluation, LocalTask, Plan, Report, Result, Rows, Score, empty_rows
from fedstrata.engine.client_store import ClientStore
from fedstrata.engine.registry import Engine
from fedstrata.engine.vectorized import Vectorized, run_together
from fedstrata.errors import ContractError

STEP = 3
"""Cost of a training step in forward passes: the backward pass takes about twice as long as the forward pass."""

P = TypeVar("P", LocalTask, Evaluation)

OF_CLIENT = ("clients", "candidates", "max_samples")
"""Fields of a task or evaluation that hold a row for each client. All other fields say what kind of work it is."""


class LocalStores:
    """The local stores of one of several algorithms that use one engine.

    Args:
        engine: The engine that computes for all of them.
    """

    def __init__(self, engine: Engine) -> None:
        """Start with an empty store."""
        self.store = ClientStore()
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
class SharedRequest:
    """What several algorithms ask of one federation in a round.

    Attributes:
        plans: The plans of the algorithms.
        engine: The engine that does the shared jobs. It uses no local store for them.
        stores: The clients with the local stores of each algorithm. They do the private jobs.
    """

    plans: Sequence[Plan]
    engine: Clients
    stores: Sequence[Clients]


@dataclass(frozen=True)
class SharedReports:
    """What came back for several plans that shared their work.

    Attributes:
        reports: The report of each plan, bit for bit what it would be without sharing.
        seconds: The time of each plan: its private work, and its part of the shared work.
        done: The number of local training jobs that were done.
    """

    reports: tuple[Report, ...]
    seconds: tuple[float, ...]
    done: int


def run_shared(plans: Sequence[Plan], engine: Clients, stores: Sequence[Clients]) -> SharedReports:
    """Run plans for one round of the same federation and do equal jobs once; see `SharedRequest`.

    Raises:
        ContractError: When the plans are of several rounds or seeds.
    """
    (reports,) = run_all_shared([SharedRequest(plans, engine, stores)])
    return reports


def run_all_shared(requests: Sequence[SharedRequest]) -> tuple[SharedReports, ...]:
    """Run plans on several federations, those of each as `run_shared` does.

    The shared jobs of all federations are one batch where all engines are vectorized.

    Raises:
        ContractError: When the plans on a federation are of several rounds or seeds.
    """
    merged = [MergedPlan(request.plans) for request in requests]
    began = perf_counter()
    pairs = [(request.engine, each.plan) for request, each in zip(requests, merged, strict=True) if each.plan]
    answers = iter(_run(pairs))
    common = [next(answers) if each.plan else Report() for each in merged]
    spent = perf_counter() - began
    costs = [each.costs(report) for each, report in zip(merged, common, strict=True)]
    rate = spent / (sum(map(sum, costs)) or 1)
    found = []
    for request, each, report, cost in zip(requests, merged, common, costs, strict=True):
        private, seconds = _run_private(each.private(), request.stores)
        reports = each.reports(report, private)
        times = tuple(rate * own + more for own, more in zip(cost, seconds, strict=True))
        found.append(SharedReports(reports, times, sum(map(jobs, (report, *private)))))
    return tuple(found)


def jobs(report: Report) -> int:
    """The number of local training jobs in a report."""
    return sum(len(result.sizes) for result in report.results.values())


class Job(NamedTuple):
    """What one client does for one task or evaluation.

    Attributes:
        kind: All that tasks or evaluations of several plans must agree on to be the same.
        client: The id of the client.
        models: The candidates as models of the merged plan, without -1.
        max_samples: The client's entry of `LocalTask.max_samples`.
    """

    kind: Hashable
    client: int
    models: tuple[int, ...]
    max_samples: int | None


class MergedPlan:
    """The distinct jobs of several plans for one round of the same federation.

    Attributes:
        plan: All jobs that are not private; None if there are none.
    """

    def __init__(self, plans: Sequence[Plan]) -> None:
        """Merge the plans.

        Raises:
            ContractError: When they are of several rounds or seeds.
        """
        rounds = sorted({(plan.round, plan.seed) for plan in plans})
        if len(rounds) != 1:
            raise ContractError(f"expected plans for one round of one seed, found (round, seed) of {rounds}")
        self._plans = plans
        self._models = dict[bytes, int]()
        self._known = dict[tuple[int, int], int]()
        self._rows = list[Tensor]()
        # By plan, then by the name of the task or evaluation: the job of every row, None where there is no work.
        self._tasks = [{name: self._jobs(plan, task) for name, task in _shared(plan.tasks)} for plan in plans]
        self._evaluations = [{name: self._jobs(plan, e) for name, e in _shared(plan.evaluations)} for plan in plans]
        self._place = dict[Job, str]()
        self.plan = self._merge()

    def private(self) -> list[Plan | None]:
        """For each plan its private jobs; None where it has none."""
        found = list[Plan | None]()
        for plan, shared_tasks, shared_evaluations in self._each():
            tasks = {name: task for name, task in plan.tasks.items() if name not in shared_tasks}
            evaluations = {name: e for name, e in plan.evaluations.items() if name not in shared_evaluations}
            private = replace(plan, tasks=tasks, evaluations=evaluations, client_stats={})
            found.append(private if tasks or evaluations else None)
        return found

    def costs(self, common: Report) -> list[float]:
        """The part of the merged plan's cost that each plan bears.

        Several plans with the same job bear its cost in equal parts. A job costs its samples times the forward passes;
        a training step counts as `STEP` of them. Statistics of the training data cost nothing.

        Args:
            common: The report of the merged plan.
        """
        cost = dict[tuple[str, int], float]()
        for name, result in common.results.items():
            assert self.plan is not None  # there are no results without it
            task = self.plan.tasks[name]
            passes = STEP * task.training.epochs * any(task.trainable) + (~result.losses.isnan()).sum(dim=1)
            clients = result.updates.clients.tolist()
            cost |= {
                (name, client): each for client, each in zip(clients, (result.sizes * passes).tolist(), strict=True)
            }
        for name, score in common.scores.items():
            samples = zip(score.clients.tolist(), score.samples.tolist(), strict=True)
            cost |= {(name, client): float(count) for client, count in samples}
        asked = [
            {job for found in (*tasks.values(), *evaluations.values()) for job in found if job}
            for _, tasks, evaluations in self._each()
        ]
        sharers = Counter(job for own in asked for job in own)
        return [sum(cost.get((self._place[job], job.client), 0.0) / sharers[job] for job in own) for own in asked]

    def reports(self, common: Report, private: Sequence[Report]) -> tuple[Report, ...]:
        """The report of each plan.

        Args:
            common: The report of the merged plan.
            private: The report of each private plan, empty where there is none.
        """
        trained = {name: _positions(result.updates.clients) for name, result in common.results.items()}
        scored = {name: _positions(score.clients) for name, score in common.scores.items()}
        found = []
        for (plan, tasks, evaluations), own in zip(self._each(), private, strict=True):
            results = dict[str, Result]()
            for name, task in plan.tasks.items():
                shared = self._places(tasks[name], trained) if name in tasks else None
                results[name] = own.results[name] if shared is None else self._result(plan, task, shared, common)
            scores = dict[str, Score]()
            for name, evaluation in plan.evaluations.items():
                shared = self._places(evaluations[name], scored) if name in evaluations else None
                scores[name] = own.scores[name] if shared is None else _score(evaluation, shared, common.scores)
            senders = {name: plan.cohort[rows] for name, rows in plan.client_stats.items() if bool(rows.any())}
            stats = {name: Rows(clients, common.client_stats[name].of(clients)) for name, clients in senders.items()}
            found.append(Report(results, scores, stats))
        return tuple(found)

    def _each(self) -> Iterator[tuple[Plan, dict[str, list[Job | None]], dict[str, list[Job | None]]]]:
        return zip(self._plans, self._tasks, self._evaluations, strict=True)

    def _jobs(self, plan: Plan, piece: LocalTask | Evaluation) -> list[Job | None]:
        """The job of every row of a task or evaluation."""
        clients = piece.clients if isinstance(piece, Evaluation) else plan.cohort
        limits = piece.max_samples if isinstance(piece, LocalTask) else None
        rest = (getattr(piece, field.name) for field in fields(piece) if field.name not in OF_CLIENT)
        kind = (type(piece), limits is None, *rest)
        found = list[Job | None]()
        for row, (client, candidates) in enumerate(zip(clients.tolist(), piece.candidates.tolist(), strict=True)):
            models = [self._model(plan, model) for model in candidates]
            while models and models[-1] < 0:
                models.pop()
            limit = None if limits is None else int(limits[row])
            found.append(Job(kind, client, tuple(models), limit) if models else None)
        return found

    def _model(self, plan: Plan, model: int) -> int:
        """The place in the merged plan of a model with these values."""
        if model < 0:
            return -1
        key = id(plan), model
        if key not in self._known:
            digest = blake2b(plan.models[model].contiguous().numpy().data).digest()
            self._known[key] = self._models.setdefault(digest, len(self._rows))
            if self._known[key] == len(self._rows):
                self._rows.append(plan.models[model])
        return self._known[key]

    def _merge(self) -> Plan | None:
        """Put the distinct jobs into tasks and evaluations in which no client occurs twice."""
        senders = dict[str, set[int]]()
        tasks = dict[str, tuple[LocalTask, dict[int, Job]]]()
        evaluations = dict[str, tuple[Evaluation, dict[int, Job]]]()
        for plan, task_jobs, evaluation_jobs in self._each():
            for name, found in task_jobs.items():
                self._assign(plan.tasks[name], found, tasks)
            for name, found in evaluation_jobs.items():
                self._assign(plan.evaluations[name], found, evaluations)
            for name, rows in plan.client_stats.items():
                senders.setdefault(name, set()).update(plan.cohort[rows].tolist())
        cohort = sorted(set().union(*(own for _, own in tasks.values()), *senders.values()))
        if not (cohort or evaluations):
            return None
        return replace(
            self._plans[0],
            cohort=torch.tensor(cohort, dtype=torch.int64),
            models=torch.stack(self._rows) if self._rows else self._plans[0].models[:0],
            tasks={name: _task(task, [own.get(client) for client in cohort]) for name, (task, own) in tasks.items()},
            evaluations={name: _evaluation(piece, own) for name, (piece, own) in evaluations.items()},
            client_stats={
                name: torch.tensor([client in clients for client in cohort]) for name, clients in senders.items()
            },
        )

    def _assign(self, piece: P, found: Sequence[Job | None], merged: dict[str, tuple[P, dict[int, Job]]]) -> None:
        """Give every new job a place in the first task or evaluation of its kind where its client is free."""
        for job in found:
            if job is None or job in self._place:
                continue
            free = (
                name
                for name, (_, own) in merged.items()
                if job.client not in own and next(iter(own.values())).kind == job.kind
            )
            name = next(free, f"{type(piece).__name__} {len(merged)}")
            merged.setdefault(name, (piece, {}))[1][job.client] = job
            self._place[job] = name

    def _places(
        self, found: Sequence[Job | None], positions: Mapping[str, Mapping[int, int]]
    ) -> list[tuple[int, str, int]]:
        """Where the answers to jobs are: row of the plan, merged task or evaluation, row in it.

        A client without samples in the fold of a task has no answer.
        """
        return [
            (row, self._place[job], positions[self._place[job]][job.client])
            for row, job in enumerate(found)
            if job is not None and job.client in positions[self._place[job]]
        ]

    def _result(self, plan: Plan, task: LocalTask, places: Sequence[tuple[int, str, int]], common: Report) -> Result:
        """The result of one task of a plan."""
        rows = [row for row, _, _ in places]
        width = task.candidates.shape[1]
        chosen = []
        for row, name, position in places:
            # Of two candidates with the same values the first is taken.
            models = [self._model(plan, model) for model in task.candidates[row].tolist()]
            chosen.append(int(task.candidates[row, models.index(int(common.results[name].chosen[position]))]))
        updates = {name: result.updates.values for name, result in common.results.items()}
        sizes = {name: result.sizes for name, result in common.results.items()}
        losses = {
            name: pad(result.losses, (0, width - result.losses.shape[1]), value=torch.nan)
            for name, result in common.results.items()
        }
        room = partial(empty_rows, len(rows), plan.models.shape[1])
        return Result(
            Rows(plan.cohort[rows], _take(updates, places, room)),
            torch.tensor(chosen, dtype=torch.int64),
            _take(sizes, places, partial(torch.empty, len(rows), dtype=torch.int64)),
            _take(losses, places, partial(torch.empty, len(rows), width)),
        )


def _shared(pieces: Mapping[str, P]) -> list[tuple[str, P]]:
    """The tasks or evaluations that neither load nor save local tensors."""
    return [
        (name, piece)
        for name, piece in pieces.items()
        if not any(piece.load_local) and not (isinstance(piece, LocalTask) and any(piece.save_local))
    ]


def _run(pairs: Sequence[tuple[Clients, Plan]]) -> tuple[Report, ...]:
    """The report of each plan, by its own engine."""
    batch = [(engine, plan) for engine, plan in pairs if isinstance(engine, Vectorized)]
    if len(batch) == len(pairs):
        return run_together(batch)
    return tuple(engine.run(plan) for engine, plan in pairs)


def _run_private(plans: Sequence[Plan | None], stores: Sequence[Clients]) -> tuple[list[Report], list[float]]:
    """The reports of the private plans, and the seconds that each took."""
    reports = list[Report]()
    seconds = list[float]()
    for plan, clients in zip(plans, stores, strict=True):
        began = perf_counter()
        reports.append(Report() if plan is None else clients.run(plan))
        seconds.append(perf_counter() - began)
    return reports, seconds


def _task(task: LocalTask, found: Sequence[Job | None]) -> LocalTask:
    """A task of the same kind that holds these jobs, a row for each client; None has no work."""
    limits = None if task.max_samples is None else torch.tensor([(job and job.max_samples) or 0 for job in found])
    return replace(task, candidates=_candidates([job.models if job else () for job in found]), max_samples=limits)


def _evaluation(evaluation: Evaluation, found: Mapping[int, Job]) -> Evaluation:
    candidates = _candidates([job.models for job in found.values()])
    return replace(evaluation, clients=torch.tensor(list(found)), candidates=candidates)


def _candidates(rows: Sequence[tuple[int, ...]]) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([[*row, *[-1] * (width - len(row))] for row in rows])


def _positions(clients: Tensor) -> dict[int, int]:
    return {client: row for row, client in enumerate(clients.tolist())}


def _score(evaluation: Evaluation, places: Sequence[tuple[int, str, int]], scores: Mapping[str, Score]) -> Score:
    """The score of one evaluation of a plan."""
    counts = partial(torch.empty, len(places), dtype=torch.int64)
    return Score(
        evaluation.clients,
        _take({name: score.correct for name, score in scores.items()}, places, counts),
        _take({name: score.samples for name, score in scores.items()}, places, counts),
        _take({name: score.loss for name, score in scores.items()}, places, partial(torch.empty, len(places))),
    )


def _take(tensors: Mapping[str, Tensor], places: Sequence[tuple[int, str, int]], room: Callable[[], Tensor]) -> Tensor:
    """Rows of several tensors; a tensor itself where the rows are all of it, for it may not fit into memory twice."""
    names = {name for _, name, _ in places}
    if len(names) == 1:
        (name,) = names
        if [position for _, _, position in places] == list(range(len(tensors[name]))):
            return tensors[name]
    taken = room()
    for row, (_, name, position) in enumerate(places):
        taken[row] = tensors[name][position]
    return taken
