"""What one client is asked, cut out of the plan for all; as a letter and back. No pickle, no flwr, no state."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

import torch

from fedstrata.core import Evaluation, Layout, LocalTask, LocalTraining, Mask, Plan
from fedstrata.errors import ContractError, InputError
from fedstrata.flower.letter import Letter, Record, Value, chosen, mask_of, named, one, several, unnamed


@dataclass(frozen=True)
class Order:
    """What one client is asked.

    Attributes:
        client: its id.
        plan: for it alone; its models are only those that it is offered, zero in what is not sent.
        models: of the plan for everyone, (k',) ascending; which of them the models of `plan` are.
        sent: tensors of each model that it does not have itself, (k', l).
        counted: rounds whose tensors the server counts on to be on the device, ascending. Others may be there as well,
            of an answer that came late; with these, the client would be another one than the server knows.
    """

    client: int
    plan: Plan
    models: tuple[int, ...]
    sent: tuple[Mask, ...]
    counted: tuple[int, ...] = ()


def order(plan: Plan, client: int, layout: Layout, own: Collection[int], counted: Collection[int] = ()) -> Order:
    """Cut out what one client is asked.

    Args:
        plan: for everyone.
        client: its id.
        layout: of the network.
        own: tensors that are on its device.
        counted: rounds that they are of.
    """
    mine = plan.only(plan.cohort == client)
    if not len(mine.cohort):
        mine = replace(mine, tasks=(), client_stats={})
    score = [(evaluation, evaluation.clients == client) for evaluation in plan.evaluations]
    mine = replace(
        mine,
        client_stats={name: asked for name, asked in mine.client_stats.items() if bool(asked.any())},
        evaluations=tuple(
            replace(evaluation, clients=evaluation.clients[rows], candidates=evaluation.candidates[rows])
            for evaluation, rows in score
        ),
    )
    wanted = needed(mine, layout, own)
    models = tuple(sorted(wanted))
    places = torch.full((len(plan.models) + 1,), -1)  # the last one is where an offer of -1 looks
    places[list(models)] = torch.arange(len(models))
    rows = plan.models.new_zeros(len(models), layout.p)
    for row, model in zip(rows, models, strict=True):
        columns = layout.columns(wanted[model])
        row[columns] = plan.models[model, columns]
    mine = replace(
        mine,
        models=rows,
        tasks=tuple(replace(task, candidates=places[task.candidates]) for task in mine.tasks),
        evaluations=tuple(
            replace(evaluation, candidates=places[evaluation.candidates]) for evaluation in mine.evaluations
        ),
    )
    return Order(client, mine, models, tuple(wanted[model] for model in models), tuple(sorted(counted)))


def needed(plan: Plan, layout: Layout, own: Collection[int]) -> dict[int, Mask]:
    """Which tensors of which models a client has to be sent: model -> mask (l,)."""
    wanted: dict[int, Mask] = {}
    pieces: tuple[LocalTask | Evaluation, ...] = (*plan.tasks, *plan.evaluations)
    for piece in pieces:
        # A pull goes towards the received values, so that they are needed beside a client's own.
        pulled = piece.trainable if isinstance(piece, LocalTask) and piece.prox_weight else layout.nothing
        mask = tuple(
            not (keep and tensor in own) or pull
            for tensor, (keep, pull) in enumerate(zip(piece.load_local, pulled, strict=True))
        )
        for model in set(piece.candidates.flatten().tolist()) - {-1}:
            before = wanted.get(model, layout.nothing)
            wanted[model] = tuple(a or b for a, b in zip(before, mask, strict=True))
    return wanted


def write_order(order: Order, layout: Layout) -> Letter:
    """The letter of an order."""
    plan = order.plan
    settings: dict[str, Record] = {
        "order": {
            "client": order.client,
            "round": plan.round,
            "seed": plan.seed,
            "works": bool(len(plan.cohort)),
            "fits": len(plan.tasks),
            "uses": len(plan.evaluations),
            "models": list(order.models),
            "counted": list(order.counted),
            "ask": list(plan.client_stats),
        }
    }
    settings |= {f"fit-{place}": _fit(task) for place, task in enumerate(plan.tasks)}
    settings |= {f"use-{place}": _use(evaluation) for place, evaluation in enumerate(plan.evaluations)}
    settings |= {f"model-{place}": {"sent": chosen(sent)} for place, sent in enumerate(order.sent)}
    arrays = {
        f"model-{place}": named(row, sent, layout)
        for place, (row, sent) in enumerate(zip(plan.models, order.sent, strict=True))
    }
    return Letter(settings, arrays)


def read_order(letter: Letter, layout: Layout) -> Order:
    """The order in a letter.

    Raises:
        InputError: when it is not one.
    """
    head = letter.record("order")
    client, models, counted = one(head, "client", int), several(head, "models", int), several(head, "counted", int)
    masks = [mask_of(letter.record(f"model-{place}"), "sent", layout) for place in range(len(models))]
    rows = torch.zeros(len(models), layout.p)
    for place, (row, sent) in enumerate(zip(rows, masks, strict=True)):
        unnamed(letter.arrays.get(f"model-{place}", {}), sent, layout, row)
    works = one(head, "works", bool)
    try:
        plan = Plan(
            round=one(head, "round", int),
            seed=one(head, "seed", int),
            cohort=torch.tensor([client] if works else [], dtype=torch.int64),
            models=rows,
            tasks=tuple(_read_fit(letter.record(f"fit-{place}"), layout) for place in range(one(head, "fits", int))),
            evaluations=tuple(
                _read_use(letter.record(f"use-{place}"), client, layout) for place in range(one(head, "uses", int))
            ),
            client_stats={name: torch.tensor([True]) for name in several(head, "ask", str)},
        )
    except ContractError as error:
        raise InputError(str(error)) from None
    return Order(client, plan, tuple(models), tuple(masks), tuple(counted))


def _fit(task: LocalTask) -> Record:
    training = task.training
    masks: dict[str, Value] = {name: chosen(getattr(task, name)) for name in MASKS}
    return masks | {
        "candidates": task.candidates.flatten().tolist(),
        "epochs": training.epochs,
        "batch": training.batch,
        "optimizer": training.optimizer,
        "lr": float(training.lr),
        "momentum": float(training.momentum),
        "prox_weight": float(task.prox_weight),
        "fold": task.fold,
        "max_samples": [] if task.max_samples is None else task.max_samples.tolist(),
        "selection_fold": task.selection_fold,
        "selection_metric": task.selection_metric,
        "stream": task.stream,
    }


def _read_fit(record: Record, layout: Layout) -> LocalTask:
    masks = {name: mask_of(record, name, layout) for name in MASKS}
    most = several(record, "max_samples", int)
    return LocalTask(
        candidates=torch.tensor([several(record, "candidates", int)], dtype=torch.int64),
        training=LocalTraining(
            epochs=one(record, "epochs", int),
            batch=one(record, "batch", int),
            optimizer=one(record, "optimizer", str),
            lr=one(record, "lr", float),
            momentum=one(record, "momentum", float),
        ),
        trainable=masks["trainable"],
        upload=masks["upload"],
        load_local=masks["load_local"],
        save_local=masks["save_local"],
        prox_weight=one(record, "prox_weight", float),
        fold=one(record, "fold", str),
        max_samples=torch.tensor(most) if most else None,
        selection_fold=one(record, "selection_fold", str),
        selection_metric=_by(one(record, "selection_metric", str)),
        stream=one(record, "stream", str),
        upload_values=masks["upload_values"] if any(masks["upload_values"]) else (),
    )


def _by(name: str) -> Literal["loss", "errors"]:
    if name not in ("loss", "errors"):
        raise InputError(f"expected selection_metric to be loss or errors, found {name}")
    return "errors" if name == "errors" else "loss"


MASKS = ("trainable", "upload", "load_local", "save_local", "upload_values")
"""Fields of a task that are masks over tensors."""


def _use(evaluation: Evaluation) -> Record:
    return {
        "name": evaluation.name,
        "scored": bool(len(evaluation.clients)),
        "candidates": evaluation.candidates.flatten().tolist(),
        "width": evaluation.candidates.shape[1],
        "load_local": chosen(evaluation.load_local),
    }


def _read_use(record: Record, client: int, layout: Layout) -> Evaluation:
    clients = [client] if one(record, "scored", bool) else []
    offers = torch.tensor(several(record, "candidates", int), dtype=torch.int64)
    if len(offers) != len(clients) * (width := one(record, "width", int)):
        raise InputError(f"expected candidates of {len(clients)} times {width} models, found {len(offers)}")
    ids = torch.tensor(clients, dtype=torch.int64)
    return Evaluation(
        one(record, "name", str), ids, offers.view(len(clients), width), mask_of(record, "load_local", layout)
    )
