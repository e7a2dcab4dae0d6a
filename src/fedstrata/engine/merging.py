"""Plans of several algorithms for one round -> one plan in which no client does the same job twice."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from typing import Generic, Literal, TypeVar

import torch
from torch import Tensor

from fedstrata.core import Evaluation, LocalTask, Plan
from fedstrata.errors import ContractError

Job = tuple[tuple[int, ...], int | None]
"""What tells a client's jobs of a kind apart: models of the merged plan, without the -1 at the end; and the samples."""

Place = tuple[Literal["work", "score"], int, int]
"""Where a job is done: in which task or evaluation of the merged plan, and by which client."""

P = TypeVar("P", LocalTask, Evaluation)


@dataclass(frozen=True)
class Wish:
    """A plan, and where its jobs are done.

    What keeps or stores tensors on devices is private: each algorithm has devices of its own.

    Attributes:
        plan: as it was given.
        models: of the merged plan, by those of its own that are offered in shared jobs.
        work: for each task the merged task by client; None where it is private.
        score: for each evaluation the merged evaluation by client; None where it is private.
    """

    plan: Plan
    models: Mapping[int, int]
    work: Sequence[Mapping[int, int] | None]
    score: Sequence[Mapping[int, int] | None]

    @property
    def private(self) -> Plan | None:
        """What only this algorithm's own devices can do; None if nothing."""
        work = tuple(task for task, slots in zip(self.plan.tasks, self.work, strict=True) if slots is None)
        score = tuple(
            evaluation for evaluation, slots in zip(self.plan.evaluations, self.score, strict=True) if slots is None
        )
        return replace(self.plan, tasks=work, evaluations=score, client_stats={}) if work or score else None

    @property
    def places(self) -> Iterator[Place]:
        """Where its shared jobs are done."""
        for task in self.work:
            yield from (("work", slot, client) for client, slot in (task or {}).items())
        for evaluation in self.score:
            yield from (("score", slot, client) for client, slot in (evaluation or {}).items())


def merge(plans: Sequence[Plan]) -> tuple[Plan | None, tuple[Wish, ...]]:
    """Merge plans for one round of the same federation: same data, partition, network and seed.

    A job is a client, the values of the models that it is offered, and all other fields of its task or evaluation.

    Returns:
        The distinct jobs of all plans, None if there are none; and for each plan where its own are done.

    Raises:
        ContractError: when the plans are of several rounds or seeds.
    """
    rounds = sorted({(plan.round, plan.seed) for plan in plans})
    if len(rounds) != 1:
        raise ContractError(f"expected plans for one round of one seed, found (round, seed) of {rounds}")
    models, work, score = _Models(), _Slots[LocalTask](), _Slots[Evaluation]()
    wishes = tuple(_wish(plan, models, work, score) for plan in plans)
    telling: dict[str, set[int]] = {}
    for plan in plans:
        for name, rows in plan.client_stats.items():
            telling.setdefault(name, set()).update(plan.cohort[rows].tolist())
    cohort = sorted(set().union(*work.jobs, *telling.values()))
    if not (cohort or score.jobs):
        return None, wishes
    merged = replace(
        plans[0],
        cohort=torch.tensor(cohort, dtype=torch.int64),
        models=torch.stack(models.rows) if models.rows else plans[0].models[:0],
        tasks=tuple(
            _fit(task, [jobs.get(c) for c in cohort]) for task, jobs in zip(work.pieces, work.jobs, strict=True)
        ),
        evaluations=tuple(_use(evaluation, jobs) for evaluation, jobs in zip(score.pieces, score.jobs, strict=True)),
        client_stats={
            name: torch.tensor([client in clients for client in cohort]) for name, clients in telling.items()
        },
    )
    return merged, wishes


class _Models:
    """The distinct models of several plans, told apart by their bits."""

    def __init__(self) -> None:
        """Start without any."""
        self.rows: list[Tensor] = []
        self._known: dict[bytes, int] = {}

    def of(self, plan: Plan, pieces: Sequence[LocalTask | Evaluation]) -> dict[int, int]:
        """Which of them each model is that some pieces of a plan offer; -1 is none here as well."""
        places = {-1: -1}
        for model in sorted({model for piece in pieces for model in piece.candidates.unique().tolist()} - {-1}):
            digest = blake2b(plan.models[model].contiguous().numpy().data).digest()
            places[model] = self._known.setdefault(digest, len(self.rows))
            if places[model] == len(self.rows):
                self.rows.append(plan.models[model])
        return places


class _Slots(Generic[P]):
    """The tasks or evaluations of the merged plan: each holds jobs of one kind, and no client twice.

    Attributes:
        pieces: one that asked for the kind of each slot.
        jobs: of each slot, by client.
    """

    def __init__(self) -> None:
        """Start without any."""
        self.pieces: list[P] = []
        self.jobs: list[dict[int, Job]] = []
        self._slots: dict[Hashable, list[int]] = {}
        self._known: dict[tuple[Hashable, int], dict[Job, int]] = {}

    def place(self, piece: P, kind: Hashable, client: int, job: Job) -> int:
        """The slot of a job; a new one gets the first slot of its kind that the client is not in yet."""
        slots, known = self._slots.setdefault(kind, []), self._known.setdefault((kind, client), {})
        if job not in known:
            if len(known) == len(slots):
                slots.append(len(self.jobs))
                self.pieces.append(piece)
                self.jobs.append({})
            slot = slots[len(known)]
            self.jobs[slot][client], known[job] = job, slot
        return known[job]


def _wish(plan: Plan, models: _Models, work: _Slots[LocalTask], score: _Slots[Evaluation]) -> Wish:
    """Place every job of a plan that is not private."""
    fits = [None if any(task.load_local) or any(task.save_local) else task for task in plan.tasks]
    evaluations = [None if any(evaluation.load_local) else evaluation for evaluation in plan.evaluations]
    known = models.of(plan, [piece for piece in (*fits, *evaluations) if piece is not None])
    return Wish(
        plan,
        known,
        [None if task is None else _placed(task, plan.cohort, known, task.max_samples, work) for task in fits],
        [
            None if evaluation is None else _placed(evaluation, evaluation.clients, known, None, score)
            for evaluation in evaluations
        ],
    )


OF_CLIENT = ("name", "clients", "candidates", "max_samples")
"""Fields of a task or evaluation that do not say what kind of job it is; the name of a evaluation is for people."""


def _placed(
    piece: P, clients: Tensor, models: Mapping[int, int], most: Tensor | None, slots: _Slots[P]
) -> dict[int, int]:
    """The slot of each client that has something to do."""
    kind = (most is None, *(getattr(piece, field.name) for field in fields(piece) if field.name not in OF_CLIENT))
    placed = {}
    for row, (client, offers) in enumerate(zip(clients.tolist(), piece.candidates.tolist(), strict=True)):
        while offers and offers[-1] < 0:
            offers.pop()
        if offers:
            job = (tuple(models[offer] for offer in offers), None if most is None else int(most[row]))
            placed[client] = slots.place(piece, kind, client, job)
    return placed


def _fit(task: LocalTask, jobs: Sequence[Job | None]) -> LocalTask:
    """A task of the same kind, with a job or nothing to do for each row."""
    most = None if task.max_samples is None else torch.tensor([(job and job[1]) or 0 for job in jobs])
    return replace(task, candidates=_offers([job[0] if job else () for job in jobs]), max_samples=most)


def _use(evaluation: Evaluation, jobs: Mapping[int, Job]) -> Evaluation:
    return replace(
        evaluation, clients=torch.tensor(list(jobs)), candidates=_offers([offers for offers, _ in jobs.values()])
    )


def _offers(rows: Sequence[tuple[int, ...]]) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([[*row, *[-1] * (width - len(row))] for row in rows])
