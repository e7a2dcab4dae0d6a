"""Several algorithms on one federation: what more than one of them asks of a client in a round is done once.

Before their first splits CFL, LayerCFL, HiCFL and FedAvg ask for the same work. After them some of their clusters still
start from the same model. Only plans and reports are handled here, so every engine serves.

A job is what one client does for one task or evaluation. Two jobs are the same if the values of the candidate models
and all other fields of the task or evaluation are. The distinct jobs of all plans are one merged plan. What loads or
saves local tensors is private: each algorithm has local stores of its own. So is a task that continues another one, and
that other one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedstrata.base.errors import ContractError
from fedstrata.core import Evaluation, LocalTask, Plan, Report, Result, Rows, Score
from fedstrata.core.standard_round import padded_candidates
from fedstrata.engine.client_store import ClientStore
from fedstrata.engine.parallel.sharding import merge_results, merge_scores
from fedstrata.engine.registry import Engine

_PASSES_PER_STEP = 3
"""Cost of a training step in forward passes: the backward pass takes about twice as long as the forward pass."""

_PER_CLIENT = ("clients", "candidates", "max_samples")
"""Fields of a task or evaluation that hold a row for each client. All other fields say what kind of work it is."""

_Piece = LocalTask | Evaluation


class LocalStores:
    """The local stores of one of several algorithms that use one engine.

    Attributes:
        engine: The engine that computes for all of them.
        store: The local stores of this one.
    """

    def __init__(self, engine: Engine) -> None:
        """Start with an empty store."""
        self.store = ClientStore()
        self.engine = engine

    def run(self, plan: Plan) -> Report:
        """Score the evaluations, then do the work of every client."""
        others = self.engine.store
        self.engine.store = self.store
        try:
            return self.engine.run(plan)
        finally:
            self.engine.store = others

    def outputs(self, models: Tensor, inputs: Tensor) -> Tensor:
        """As `Engine.outputs`."""
        return self.engine.outputs(models, inputs)


@dataclass(frozen=True)
class SharedReports:
    """What came back for several plans that shared their work.

    Attributes:
        reports: The report of each plan, bit for bit what it would be without sharing.
        seconds: The time of each plan: its private work, and its part of the shared work. Plans with the same job bear
            its cost in equal parts.
        done: The number of local training jobs that were done.
    """

    reports: tuple[Report, ...]
    seconds: tuple[float, ...]
    done: int


def run_shared(plans: Sequence[Plan], devices: Sequence[LocalStores]) -> SharedReports:
    """Run the plans of several algorithms on one federation, and do equal jobs once.

    Args:
        plans: The plan of each algorithm.
        devices: The clients of each algorithm. They share an engine.

    Raises:
        ContractError: When the plans are of several rounds or seeds.
    """
    merged = MergedPlan(plans)
    began = perf_counter()
    # Nothing that is shared uses a local store.
    common = devices[0].engine.run(merged.plan) if merged.plan else Report()
    spent = perf_counter() - began
    costs = merged.costs(common)
    rate = spent / (sum(costs) or 1)
    private = list[Report]()
    seconds = list[float]()
    for plan, clients, cost in zip(merged.private, devices, costs, strict=True):
        began = perf_counter()
        private.append(clients.run(plan) if plan.tasks or plan.evaluations else Report())
        seconds.append(rate * cost + perf_counter() - began)
    done = sum(map(count_jobs, (common, *private)))
    return SharedReports(merged.reports(common, private), tuple(seconds), done)


def count_jobs(report: Report) -> int:
    """The number of local training jobs in a report."""
    return sum(len(result.sizes) for result in report.results.values())


class _Job(NamedTuple):
    """The identity of what one client does for one task or evaluation.

    Attributes:
        kind: The number of all that the task or evaluation asks of every client alike.
        client: The id of the client.
        models: The candidates as models of the merged plan, without -1 at the end.
        max_samples: The client's entry of `LocalTask.max_samples`.
    """

    kind: int
    client: int
    models: tuple[int, ...]
    max_samples: int | None


class MergedPlan:
    """The distinct jobs of several plans as one plan, and the way back from its report to theirs.

    Args:
        plans: The plans.

    Attributes:
        plan: The merged plan; None where no plan has a job to share.
        private: The private tasks and evaluations of each plan.

    Raises:
        ContractError: When the plans are of several rounds or seeds.
    """

    def __init__(self, plans: Sequence[Plan]) -> None:
        """Merge the plans."""
        rounds = sorted({(plan.round, plan.seed) for plan in plans})
        if len(rounds) != 1:
            raise ContractError(f"expected plans for one round of one seed, found (round, seed) of {rounds}")
        self._plans = plans
        self._shared = [_part(plan, private=False) for plan in plans]
        self.private = [_part(plan, private=True) for plan in plans]
        self._kinds = dict[Hashable, int]()
        self._digests = dict[bytes, int]()
        self._models = list[Tensor]()
        # By job: the name of the merged task or evaluation that holds it.
        self._names = dict[_Job, str]()
        self._counts = Counter[tuple[int, int]]()
        # By the name of a merged task or evaluation: one that it came from, and the job of each client.
        self._merged = dict[str, tuple[_Piece, dict[int, _Job]]]()
        # For each plan the job of every row of its shared tasks and evaluations, None where there is no work.
        self._jobs = [self._jobs_of(plan) for plan in self._shared]
        self.plan = self._merge()

    def costs(self, common: Report) -> list[float]:
        """The part of the merged plan's cost that each plan bears.

        A job costs its samples times the forward passes. Statistics of the training data cost nothing.

        Args:
            common: The report of the merged plan.
        """
        cost = dict[tuple[str, int], float]()
        for name, result in common.results.items():
            assert self.plan is not None  # there are no results without it
            task = self.plan.tasks[name]
            weight = _PASSES_PER_STEP * any(task.trainable)
            compared = (~result.losses.isnan()).sum(dim=1) * result.sizes
            rows = zip(result.updates.clients.tolist(), result.sizes.tolist(), compared.tolist(), strict=True)
            for client, samples, passed in rows:
                cost[name, client] = weight * task.training.samples_seen(samples) + passed
        for name, score in common.scores.items():
            for client, samples in zip(score.clients.tolist(), score.samples.tolist(), strict=True):
                cost[name, client] = samples
        asked = [{job for found in own.values() for job in found if job} for own in self._jobs]
        sharers = Counter(job for own in asked for job in own)
        return [sum(cost.get((self._names[job], job.client), 0) / sharers[job] for job in own) for own in asked]

    def reports(self, common: Report, private: Sequence[Report]) -> tuple[Report, ...]:
        """The report of each plan.

        Args:
            common: The report of the merged plan.
            private: The report of each private plan, empty where there is none.
        """
        found = []
        for plan, jobs, own in zip(self._shared, self._jobs, private, strict=True):
            tasks = plan.tasks.items()
            evaluations = plan.evaluations.items()
            results = {name: self._result(plan, task, jobs[LocalTask, name], common) for name, task in tasks}
            scores = {name: self._score(each, jobs[Evaluation, name], common) for name, each in evaluations}
            senders = {name: plan.cohort[rows] for name, rows in plan.client_stats.items() if bool(rows.any())}
            stats = {name: Rows(clients, common.client_stats[name].of(clients)) for name, clients in senders.items()}
            found.append(Report(results | dict(own.results), scores | dict(own.scores), stats))
        return tuple(found)

    def _result(self, plan: Plan, task: LocalTask, jobs: Sequence[_Job | None], common: Report) -> Result:
        """The result of a task of a plan. A client without samples in the fold of the task has none."""
        width = task.candidates.shape[1]
        parts = list[Result]()
        for name, clients in self._clients(jobs).items():
            result = common.results[name]
            part = result.only(torch.isin(result.updates.clients, clients))
            losses = pad(part.losses, (0, width - part.losses.shape[1]), value=torch.nan)
            parts.append(replace(part, losses=losses))
        merged = merge_results(plan, task, parts)
        # Of two candidates with the same values the first is taken.
        candidate = {
            (job.client, model): int(candidates[place])
            for job, candidates in zip(jobs, task.candidates, strict=True)
            if job
            for place, model in reversed(list(enumerate(job.models)))
        }
        taken = zip(merged.updates.clients.tolist(), merged.chosen.tolist(), strict=True)
        return replace(merged, chosen=torch.tensor([candidate[each] for each in taken], dtype=torch.int64))

    def _score(self, evaluation: Evaluation, jobs: Sequence[_Job | None], common: Report) -> Score:
        """The score of an evaluation of a plan."""
        parts = list[Score]()
        for name, clients in self._clients(jobs).items():
            score = common.scores[name]
            rows = torch.isin(score.clients, clients)
            parts.append(Score(score.clients[rows], score.correct[rows], score.samples[rows], score.loss[rows]))
        return merge_scores(evaluation, parts)

    def _clients(self, jobs: Sequence[_Job | None]) -> dict[str, Tensor]:
        """The clients of some jobs, by the merged task or evaluation that holds their jobs."""
        clients = dict[str, list[int]]()
        for job in jobs:
            if job:
                clients.setdefault(self._names[job], []).append(job.client)
        return {name: torch.tensor(ids) for name, ids in clients.items()}

    def _jobs_of(self, plan: Plan) -> dict[tuple[type[_Piece], str], list[_Job | None]]:
        """The job of every row of the tasks and evaluations of a plan."""
        models = dict[int, int]()
        pieces: list[tuple[str, _Piece, Tensor]] = [(name, task, plan.cohort) for name, task in plan.tasks.items()]
        pieces += [(name, each, each.clients) for name, each in plan.evaluations.items()]
        found = dict[tuple[type[_Piece], str], list[_Job | None]]()
        for name, piece, clients in pieces:
            limits = piece.max_samples if isinstance(piece, LocalTask) else None
            alike = (getattr(piece, field.name) for field in fields(piece) if field.name not in _PER_CLIENT)
            kind = self._kinds.setdefault((type(piece), limits is None, *alike), len(self._kinds))
            jobs = list[_Job | None]()
            for row, (client, candidates) in enumerate(zip(clients.tolist(), piece.candidates.tolist(), strict=True)):
                while candidates and candidates[-1] < 0:
                    candidates.pop()
                for model in candidates:
                    if model >= 0 and model not in models:
                        models[model] = self._model(plan.models[model])
                merged = tuple(models.get(model, -1) for model in candidates)
                limit = None if limits is None else int(limits[row])
                job = _Job(kind, client, merged, limit) if merged else None
                if job:
                    self._place(piece, job)
                jobs.append(job)
            found[type(piece), name] = jobs
        return found

    def _model(self, values: Tensor) -> int:
        """The model of the merged plan that has these values, (p,)."""
        digest = blake2b(values.contiguous().numpy().data).digest()
        number = self._digests.setdefault(digest, len(self._models))
        if number == len(self._models):
            self._models.append(values)
        return number

    def _place(self, piece: _Piece, job: _Job) -> None:
        """Give a new job a place in the first merged task or evaluation of its kind where its client has no other."""
        if job not in self._names:
            others = self._counts[job.kind, job.client]
            self._counts[job.kind, job.client] += 1
            self._names[job] = f"{job.kind}.{others}"
            self._merged.setdefault(self._names[job], (piece, {}))[1][job.client] = job

    def _merge(self) -> Plan | None:
        senders = dict[str, set[int]]()
        for plan in self._plans:
            for name, rows in plan.client_stats.items():
                senders.setdefault(name, set()).update(plan.cohort[rows].tolist())
        tasks = {name: (task, jobs) for name, (task, jobs) in self._merged.items() if isinstance(task, LocalTask)}
        cohort = sorted(set().union(*(jobs for _, jobs in tasks.values()), *senders.values()))
        if not (cohort or self._merged):
            return None
        return replace(
            self._plans[0],
            cohort=torch.tensor(cohort, dtype=torch.int64),
            models=torch.stack(self._models) if self._models else self._plans[0].models[:0],
            tasks={name: _task(task, [jobs.get(client) for client in cohort]) for name, (task, jobs) in tasks.items()},
            evaluations={
                name: replace(piece, clients=torch.tensor(list(jobs)), candidates=_candidates(jobs.values()))
                for name, (piece, jobs) in self._merged.items()
                if isinstance(piece, Evaluation)
            },
            client_stats={
                name: torch.tensor([client in clients for client in cohort]) for name, clients in senders.items()
            },
        )


def _part(plan: Plan, private: bool) -> Plan:
    """The tasks and evaluations of a plan that are private, or all others and the statistics."""
    own = {
        name: bool(task.continues) or name in plan.continued or any((*task.load_local, *task.save_local))
        for name, task in plan.tasks.items()
    }
    return replace(
        plan,
        tasks={name: task for name, task in plan.tasks.items() if own[name] == private},
        evaluations={name: each for name, each in plan.evaluations.items() if any(each.load_local) == private},
        client_stats={} if private else plan.client_stats,
    )


def _task(task: LocalTask, jobs: Sequence[_Job | None]) -> LocalTask:
    """A task of the same kind with a row for each job; None has no work."""
    limits = None if task.max_samples is None else torch.tensor([(job and job.max_samples) or 0 for job in jobs])
    return replace(task, candidates=_candidates(jobs), max_samples=limits)


def _candidates(jobs: Iterable[_Job | None]) -> Tensor:
    return padded_candidates([job.models if job else () for job in jobs])
