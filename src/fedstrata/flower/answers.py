"""What one client answers; as a letter, and back through all the doubt that a letter from outside deserves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, inf, isnan, prod

import torch

from fedstrata.core import Evaluation, Layout, LocalTask, Report, Result, Rows, Score
from fedstrata.errors import InputError
from fedstrata.flower.exchange import CHUNK, ReplyLimit
from fedstrata.flower.letter import Letter, Record, chosen, mask_of, named, one, several, unnamed
from fedstrata.flower.messages import HEADER, Expected
from fedstrata.flower.orders import Order

RECORD_BYTES = 16 * 2**10
"""Bytes for which there is room in a record beside its lists."""


@dataclass(frozen=True)
class Answer:
    """What one client answers.

    Attributes:
        report: of it alone; what it took is a model of the plan for everyone.
        stored: tensors that this round left on its device.
        spoilt: whether these are not finite, so that the device has none at all.
    """

    report: Report
    stored: tuple[int, ...] = ()
    spoilt: bool = False


class NotFiniteError(InputError):
    """An update holds a number that is not finite: the training of this client diverged, or it is malicious."""


@dataclass(frozen=True)
class Bounds:
    """What answers of one client have to keep to.

    Attributes:
        run: which run of which federation this is.
        train: samples that the client said it trains on.
        test: samples that it said it tests on.
        facts: numbers that each fact consists of, by its name.
    """

    run: str
    train: int
    test: int
    facts: Mapping[str, int]


def write_answer(answer: Answer, order: Order, layout: Layout, run: str) -> Letter:
    """The letter of an answer, whose models are those of the order."""
    settings: dict[str, Record] = {
        "answer": {
            "run": run,
            "round": order.plan.round,
            "client": order.client,
            "stored": list(answer.stored),
            "spoilt": answer.spoilt,
        }
    }
    arrays: dict[str, Mapping[str, torch.Tensor]] = {}
    for place, (task, result) in enumerate(zip(order.plan.tasks, answer.report.results, strict=True)):
        if len(result.sizes):
            losses = result.losses[0].tolist()
            settings[f"result-{place}"] = {"given": int(result.chosen), "size": int(result.sizes), "losses": losses}
            if any(task.upload):
                arrays[f"update-{place}"] = named(result.updates.values[0], task.upload, layout)
    for place, score in enumerate(answer.report.scores):
        if len(score.clients):
            counts = {"correct": int(score.correct), "samples": int(score.samples)}
            settings[f"score-{place}"] = {**counts, "loss": float(score.loss)}
    if answer.report.client_stats:
        arrays["facts"] = {name: rows.values[0] for name, rows in answer.report.client_stats.items()}
    return Letter(settings, arrays)


def read_answer(letter: Letter, order: Order, layout: Layout, bounds: Bounds) -> Answer:
    """The answer in a letter, in terms of the plan for everyone.

    Raises:
        InputError: when it does not answer this order, or holds anything that no honest answer would.
    """
    head, plan = letter.record("answer"), order.plan
    found = {"run": one(head, "run", str), "round": one(head, "round", int), "client": one(head, "client", int)}
    for key, expected in {"run": bounds.run, "round": plan.round, "client": order.client}.items():
        if found[key] != expected:
            raise InputError(f"expected an answer of {key} {expected}, found {key} {found[key]}")
    _nothing_else(letter, plan.tasks, plan.evaluations)
    results = tuple(_result(letter, place, task, order, layout, bounds) for place, task in enumerate(plan.tasks))
    scores = tuple(_score(letter, place, evaluation, bounds) for place, evaluation in enumerate(plan.evaluations))
    facts = _facts(letter, order, bounds)
    stored = chosen(mask_of(head, "stored", layout))
    return Answer(Report(results, scores, facts), tuple(stored), one(head, "spoilt", bool))


def expected_reply(order: Order, layout: Layout, facts: Mapping[str, int]) -> Expected:
    """What the reply to an order may hold.

    Args:
        order: what the client is asked.
        layout: of the network.
        facts: numbers that each fact consists of, by its name.
    """
    plan = order.plan
    arrays: dict[str, dict[str, tuple[int, ...]]] = {
        f"update-{place}": {
            slot.name: slot.shape for slot, sent in zip(layout.tensors, task.upload, strict=True) if sent
        }
        for place, task in enumerate(plan.tasks)
    }
    arrays["facts"] = {name: (facts[name],) for name in plan.client_stats}
    records = {"answer", "lacking", "failed"}
    records |= {f"result-{place}" for place in range(len(plan.tasks))}
    records |= {f"score-{place}" for place in range(len(plan.evaluations))}
    longest = max(len(layout.tensors), *(task.candidates.shape[1] for task in plan.tasks), 0)
    return Expected(frozenset(records), arrays, longest)


def limit_of(expected: Expected) -> ReplyLimit:
    """The limit of a reply, from what it may hold."""
    shapes = [shape for group in expected.arrays.values() for shape in group.values()]
    sizes = [HEADER + 4 * prod(shape) for shape in shapes]
    # Each array is an object beside its pieces; a group, a record and the message are objects as well.
    pieces = sum(1 + ceil(size / CHUNK) for size in sizes)
    records = len(expected.records) + len(expected.arrays) + 2
    # A value of a list takes up to 20 bytes, and an object names those in it.
    plain = RECORD_BYTES * records + 20 * expected.longest * len(expected.records) + 128 * pieces
    return ReplyLimit(2 * sum(sizes) + plain, pieces + records)


def nobody(task: LocalTask, layout: Layout) -> Result:
    """The result of a task that nobody did."""
    ids = torch.empty(0, dtype=torch.int64)
    return Result(Rows(ids, torch.empty(0, layout.p)), ids, ids, torch.empty(0, task.candidates.shape[1]))


def _nothing_else(letter: Letter, work: tuple[LocalTask, ...], score: tuple[Evaluation, ...]) -> None:
    """Refuse parts that were not asked for; they would pass unread."""
    updates = {f"update-{place}" for place in range(len(work)) if f"result-{place}" in letter.settings}
    known = {"answer", *(f"result-{place}" for place in range(len(work)))}
    known |= {f"score-{place}" for place, evaluation in enumerate(score) if len(evaluation.clients)}
    if strange := sorted((set(letter.settings) - known) | (set(letter.arrays) - updates - {"facts"})):
        raise InputError(f"expected no part {strange[0]}: it was not asked for")


def _result(letter: Letter, place: int, task: LocalTask, order: Order, layout: Layout, bounds: Bounds) -> Result:
    if f"result-{place}" not in letter.settings:
        # A client without a sample in the part that it was to train on has nothing to say.
        return nobody(task, layout)
    record, width = letter.record(f"result-{place}"), task.candidates.shape[1]
    given, size, losses = one(record, "given", int), one(record, "size", int), several(record, "losses", float)
    if given < 0 or given not in task.candidates[0].tolist():
        raise InputError(f"expected result {place} to be trained from an offered model, found {given}")
    if not 1 <= size <= bounds.train:
        raise InputError(f"expected result {place} to be of 1 to {bounds.train} samples, found {size}")
    most = 1.0 if task.selection_metric == "errors" else inf
    if len(losses) != width or any(not (isnan(loss) or 0 <= loss <= most) for loss in losses):
        raise InputError(
            f"expected result {place} to have {width} {task.selection_metric}, each of 0 to {most:g}, found {losses}"
        )
    row = torch.zeros(layout.p)
    unnamed(letter.arrays.get(f"update-{place}", {}), task.upload, layout, row)
    for slot, span in zip(layout.tensors, layout.spans, strict=True):
        if not bool(row[span].isfinite().all()):
            raise NotFiniteError(f"expected finite numbers in {slot.name}, found others")
    ids = torch.tensor([order.client])
    model, of = torch.tensor([order.models[given]]), torch.tensor([size])
    return Result(Rows(ids, row[None]), model, of, torch.tensor([losses]))


def _score(letter: Letter, place: int, evaluation: Evaluation, bounds: Bounds) -> Score:
    if not len(evaluation.clients):
        return Score(evaluation.clients, evaluation.clients, evaluation.clients, torch.empty(0))
    record = letter.record(f"score-{place}")
    correct, samples, loss = one(record, "correct", int), one(record, "samples", int), one(record, "loss", float)
    if samples != bounds.test or not 0 <= correct <= samples:
        raise InputError(f"expected a score of {bounds.test} test samples, found {correct} right of {samples}")
    if loss < 0:
        raise InputError(f"expected a loss of at least 0, found {loss}")
    return Score(evaluation.clients, torch.tensor([correct]), torch.tensor([samples]), torch.tensor([loss]))


def _facts(letter: Letter, order: Order, bounds: Bounds) -> dict[str, Rows]:
    told = letter.arrays.get("facts", {})
    if set(told) != set(order.plan.client_stats):
        raise InputError(f"expected the facts {sorted(order.plan.client_stats)}, found {sorted(told)}")
    for name, values in told.items():
        wanted = (bounds.facts[name],)
        if values.dtype != torch.float32 or tuple(values.shape) != wanted or not bool(values.isfinite().all()):
            found = f"{values.dtype} {tuple(values.shape)}"
            raise InputError(f"expected the fact {name} to be finite torch.float32 {wanted}, found {found}")
        # Who claims more samples than it has could prove any two clients different.
        if name == "units" and not 0 <= float(values) <= bounds.train:
            raise InputError(f"expected 0 to {bounds.train} independent samples, found {float(values):g}")
    return {name: Rows(torch.tensor([order.client]), told[name][None]) for name in order.plan.client_stats}
