"""What an app does with a message that holds a whole round: `serve` lets its own functions answer it on the node."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedstrata.base.errors import InputError
from fedstrata.core import Layout, TensorSpec
from fedstrata.engine import Answer, Ask, ClientStore, Work, report_of
from fedstrata.flower.app_form import AppForm, AppKeys, refuse_whole
from fedstrata.flower.node import RoundWork, WorkDone, answer_rounds
from fedstrata.flower.payload import Payload
from fedstrata.flower.requests import Request

AppFunction = Callable[[Message, Context], Message]
"""A function of a ClientApp."""


def serve(app: ClientApp, train: AppFunction, evaluate: AppFunction) -> None:
    """Let an app do a whole round with one message, as `Clustered` sends it with ``serve=True``.

    So clients can have layers and models of their own (FedPer, Ditto, ``personal.method = "best"``), and a round of
    many questions is one exchange. A client's own layers are in the folder "state-dir" of the node's configuration, or
    else in its context, which is gone when the node restarts.

    Args:
        app: The app.
        train: Its function for "train", as it answers a single message.
        evaluate: Its function for "evaluate".
    """
    functions = {"train": train, "evaluate": evaluate}

    def prepare(payload: Payload, message: Message, context: Context) -> tuple[str, Layout, RoundWork]:
        form, configs, run = _job_in(payload)

        def answer(ask: Ask, round: int) -> Answer:
            # An app can make no message of its own: the questions come one after the other in the one that it has.
            message.content = form.content(ask, {**configs[ask.kind], "server-round": round})
            return form.answer(functions[ask.kind](message, context).content, ask)

        return run, form.layout, partial(_work, form.layout, answer)

    answer_rounds(app, prepare)


def _work(layout: Layout, answer: Callable[[Ask, int], Answer], request: Request, store: ClientStore) -> WorkDone:
    """Do what a request asks, by messages to the app's own functions."""
    client, plan = request.client, request.plan
    work = Work(plan, client, layout, store.read(client, before=plan.round))
    whole = 0

    def checked(ask: Ask) -> Answer:
        nonlocal whole
        given = answer(ask, plan.round)
        if ask.kind == "train" and ask.fold == "all" and not ask.most:
            whole = given.samples
        refuse_whole(ask, given.samples, whole)
        return given

    work.do(checked)
    store.write(client, plan.round, work.stored)
    return WorkDone(report_of(plan, [work], layout))


def job_of(form: AppForm, configs: Mapping[str, Mapping[str, Any]], run: str) -> Payload:
    """What a node must know of a run besides its request; it comes with every message.

    Args:
        form: How models and questions become messages of the app.
        configs: The user's own config, by "train" and "evaluate".
        run: The name of the run.
    """
    told = {
        "run": run,
        "tensors": [asdict(spec) for spec in form.layout.tensors],
        "dtypes": dict(form.dtypes),
        "keys": asdict(form.keys),
        "configs": configs,
    }
    try:
        text = json.dumps(told)
    except TypeError as error:
        raise InputError(
            f"train_config, evaluate_config: expected texts and numbers with serve=True: {error}"
        ) from None
    fixed = {name: torch.from_numpy(np.array(values)) for name, values in form.fixed.items()}
    return Payload({"app": text}, {"fixed": fixed} if fixed else {})


def _job_in(payload: Payload) -> tuple[AppForm, Mapping[str, Mapping[str, Any]], str]:
    """The form of the app's messages, the user's configs, and the name of the run, as `job_of` wrote them."""
    told = json.loads(payload.record("app"))
    specs = tuple(TensorSpec(**{**spec, "shape": tuple(spec["shape"])}) for spec in told["tensors"])
    fixed = {name: values.numpy() for name, values in payload.arrays.get("fixed", {}).items()}
    return AppForm(Layout(specs), fixed, told["dtypes"], AppKeys(**told["keys"])), told["configs"], told["run"]
