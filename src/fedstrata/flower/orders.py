"""What one client is asked, cut out of the plan for all; as a letter and back. No pickle, no flwr, no state."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

import torch

from fedstrata.core import Fit, Layout, Mask, Plan, Recipe, Use
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
        mine = replace(mine, work=(), ask={})
    score = [(use, use.clients == client) for use in plan.score]
    mine = replace(
        mine,
        ask={name: asked for name, asked in mine.ask.items() if bool(asked.any())},
        score=tuple(replace(use, clients=use.clients[rows], offers=use.offers[rows]) for use, rows in score),
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
        work=tuple(replace(fit, offers=places[fit.offers]) for fit in mine.work),
        score=tuple(replace(use, offers=places[use.offers]) for use in mine.score),
    )
    return Order(client, mine, models, tuple(wanted[model] for model in models), tuple(sorted(counted)))


def needed(plan: Plan, layout: Layout, own: Collection[int]) -> dict[int, Mask]:
    """Which tensors of which models a client has to be sent: model -> mask (l,)."""
    wanted: dict[int, Mask] = {}
    pieces: tuple[Fit | Use, ...] = (*plan.work, *plan.score)
    for piece in pieces:
        # A pull goes towards the received values, so that they are needed beside a client's own.
        pulled = piece.train if isinstance(piece, Fit) and piece.pull else layout.nothing
        mask = tuple(
            not (keep and tensor in own) or pull
            for tensor, (keep, pull) in enumerate(zip(piece.keep, pulled, strict=True))
        )
        for model in set(piece.offers.flatten().tolist()) - {-1}:
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
            "fits": len(plan.work),
            "uses": len(plan.score),
            "models": list(order.models),
            "counted": list(order.counted),
            "ask": list(plan.ask),
        }
    }
    settings |= {f"fit-{place}": _fit(fit) for place, fit in enumerate(plan.work)}
    settings |= {f"use-{place}": _use(use) for place, use in enumerate(plan.score)}
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
            work=tuple(_read_fit(letter.record(f"fit-{place}"), layout) for place in range(one(head, "fits", int))),
            score=tuple(
                _read_use(letter.record(f"use-{place}"), client, layout) for place in range(one(head, "uses", int))
            ),
            ask={name: torch.tensor([True]) for name in several(head, "ask", str)},
        )
    except ContractError as error:
        raise InputError(str(error)) from None
    return Order(client, plan, tuple(models), tuple(masks), tuple(counted))


def _fit(fit: Fit) -> Record:
    recipe = fit.recipe
    masks: dict[str, Value] = {name: chosen(getattr(fit, name)) for name in MASKS}
    return masks | {
        "offers": fit.offers.flatten().tolist(),
        "epochs": recipe.epochs,
        "batch": recipe.batch,
        "optimizer": recipe.optimizer,
        "lr": float(recipe.lr),
        "momentum": float(recipe.momentum),
        "pull": float(fit.pull),
        "part": fit.part,
        "most": [] if fit.most is None else fit.most.tolist(),
        "compare": fit.compare,
        "by": fit.by,
        "stream": fit.stream,
    }


def _read_fit(record: Record, layout: Layout) -> Fit:
    masks = {name: mask_of(record, name, layout) for name in MASKS}
    most = several(record, "most", int)
    return Fit(
        offers=torch.tensor([several(record, "offers", int)], dtype=torch.int64),
        recipe=Recipe(
            epochs=one(record, "epochs", int),
            batch=one(record, "batch", int),
            optimizer=one(record, "optimizer", str),
            lr=one(record, "lr", float),
            momentum=one(record, "momentum", float),
        ),
        train=masks["train"],
        upload=masks["upload"],
        keep=masks["keep"],
        store=masks["store"],
        pull=one(record, "pull", float),
        part=one(record, "part", str),
        most=torch.tensor(most) if most else None,
        compare=one(record, "compare", str),
        by=_by(one(record, "by", str)),
        stream=one(record, "stream", str),
        values=masks["values"] if any(masks["values"]) else (),
    )


def _by(name: str) -> Literal["loss", "errors"]:
    if name not in ("loss", "errors"):
        raise InputError(f"expected by to be loss or errors, found {name}")
    return "errors" if name == "errors" else "loss"


MASKS = ("train", "upload", "keep", "store", "values")
"""Fields of a Fit that are masks over tensors."""


def _use(use: Use) -> Record:
    return {
        "name": use.name,
        "scored": bool(len(use.clients)),
        "offers": use.offers.flatten().tolist(),
        "width": use.offers.shape[1],
        "keep": chosen(use.keep),
    }


def _read_use(record: Record, client: int, layout: Layout) -> Use:
    clients = [client] if one(record, "scored", bool) else []
    offers = torch.tensor(several(record, "offers", int), dtype=torch.int64)
    if len(offers) != len(clients) * (width := one(record, "width", int)):
        raise InputError(f"expected offers of {len(clients)} times {width} models, found {len(offers)}")
    ids = torch.tensor(clients, dtype=torch.int64)
    return Use(one(record, "name", str), ids, offers.view(len(clients), width), mask_of(record, "keep", layout))
