"""What an app does with a message that holds a whole round: `serve` lets its own functions answer it on the node."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from safetensors.torch import load, save
from torch import Tensor

from fedstrata.base.errors import FedstrataError, InputError
from fedstrata.base.files import replace_file
from fedstrata.base.quoting import one_line, without_paths
from fedstrata.core import Layout, TensorSpec
from fedstrata.engine import ClientStore
from fedstrata.flower.app_work import Answer, AppForm, AppKeys, Ask, Work, refuse_whole, report_of
from fedstrata.flower.grid import reply_to
from fedstrata.flower.payload import Payload, decode
from fedstrata.flower.replies import Reply, write_reply
from fedstrata.flower.requests import missing_tensors, read_request

SERVED = "train.fedstrata"
"""The type of the message with a whole round."""

_KEPT = "fedstrata"
"""The record of the node's state that holds a client's own layers, where the node has no "state-dir"."""

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

    @app.train("fedstrata")
    def work(message: Message, context: Context) -> Message:
        try:
            payload = _work(message, context, {"train": train, "evaluate": evaluate})
        except FedstrataError as error:
            payload = Payload({"failed": {"reason": one_line(without_paths(str(error)))}})
        return reply_to(message, payload)


def _work(message: Message, context: Context, functions: Mapping[str, AppFunction]) -> Payload:
    """Do what a request asks, by messages to the app's own functions."""
    payload = decode(message.content)
    form, configs, run = _job_in(payload)
    request = read_request(payload, form.layout)
    client, plan = request.client, request.plan
    file = _file(context, f"{run}-{client}")
    kept = request.of_use(_kept(context, file))
    store = ClientStore()
    store.restore(kept)
    if missing := missing_tensors(request, form.layout, store):
        return Payload({"missing": {"tensors": missing}})
    work = Work(plan, client, form.layout, store.read(client, before=plan.round))
    steps = work.steps()
    whole: int | None = None
    answers: list[Answer] | None = None
    while True:
        try:
            # A generator that has not begun takes None alone.
            asks = steps.send(answers)  # type: ignore[arg-type]
        except StopIteration:
            break
        answers = [_answer(form, ask, configs, plan.round, message, context, functions) for ask in asks]
        for ask, answer in zip(asks, answers, strict=True):
            if ask.kind == "train" and ask.fold == "all" and not ask.most:
                whole = answer.samples
            refuse_whole(ask, answer.samples, whole)
    store.write(client, plan.round, work.stored)
    saved = store.saved_in(plan.round)
    if saved:
        _keep(context, file, {**kept, **store.tensors()})
    return write_reply(Reply.of(report_of(plan, [work], form.layout), saved), request, form.layout, run)


def _answer(
    form: AppForm,
    ask: Ask,
    configs: Mapping[str, Mapping[str, Any]],
    round: int,
    message: Message,
    context: Context,
    functions: Mapping[str, AppFunction],
) -> Answer:
    """What the app's own function answers to a message of its own."""
    content = form.content(ask, {**configs[ask.kind], "server-round": round})
    asked = Message(content, message.metadata.dst_node_id, ask.kind, group_id=str(round))
    return form.answer(functions[ask.kind](asked, context).content, ask)


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
    fixed = {name: torch.from_numpy(np.array(values)) for name, values in form.fixed.items()}
    return Payload({"app": {"job": json.dumps(told)}}, {"fixed": fixed} if fixed else {})


def _job_in(payload: Payload) -> tuple[AppForm, Mapping[str, Mapping[str, Any]], str]:
    """The form of the app's messages, the user's configs, and the name of the run, as `job_of` wrote them."""
    told = json.loads(str(payload.record("app")["job"]))
    specs = tuple(TensorSpec(**{**spec, "shape": tuple(spec["shape"])}) for spec in told["tensors"])
    fixed = {name: values.numpy() for name, values in payload.arrays.get("fixed", {}).items()}
    return AppForm(Layout(specs), fixed, told["dtypes"], AppKeys(**told["keys"])), told["configs"], told["run"]


def _file(context: Context, name: str) -> Path | None:
    """The file of what the node keeps of its client; None where its context has it."""
    folder = context.node_config.get("state-dir")
    if folder is None:
        return None
    if not name.replace("-", "").isalnum():
        raise InputError(f"expected a run named by letters and digits, found {name!r}")
    return Path(str(folder)) / f"{name}.safetensors"


def _kept(context: Context, file: Path | None) -> dict[str, Tensor]:
    """What the node keeps of its client, by name as in `ClientStore`."""
    if file is not None:
        return load(file.read_bytes()) if file.exists() else {}
    found = context.state.array_records.get(_KEPT)
    return {} if found is None else dict(found.to_torch_state_dict())


def _keep(context: Context, file: Path | None, tensors: dict[str, Tensor]) -> None:
    """Keep them, in the file or in the context."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, save(tensors), private=True)
    else:
        context.state[_KEPT] = ArrayRecord(tensors)
