"""Which model each client uses when a run is over, and what these models predict for their test samples.

It is the model of a cluster, with the client's own tensors where it has some.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedstrata.build.run_setup import RunSetup
from fedstrata.core import CLIENT, Evaluation, LocalTask, Mask, Plan, Problem, Report, State
from fedstrata.engine.loop import EVALUATION_BATCH, start_row
from fedstrata.objective.metrics import probability_scores
from fedstrata.records.client_models import ClientModelsRecord, UsedModel, write_client_models
from fedstrata.records.schema import Predictions

_CHOICE = "choice"
"""The task by which clients that may use several models say which one fits their training data best."""


def last_plan(
    problem: Problem, state: State, uses: Evaluation, evaluations: Mapping[str, Evaluation], *, inputs: bool = False
) -> Plan:
    """The plan after the last round: nobody trains, and nothing is sent but scores, choices and statistics.

    Clients that may use several models, such as one that waits for a cluster, choose one of them.

    Args:
        problem: What is fixed for the run.
        state: The last state.
        uses: The models that the clients may use.
        evaluations: What is scored.
        inputs: Whether all clients send the statistic "inputs" too.
    """
    several = (uses.candidates >= 0).sum(dim=1) > 1
    cohort = several | inputs
    nothing = problem.layout.nothing
    task = LocalTask(
        candidates=uses.candidates.where(several[:, None], -1)[cohort],
        training=problem.training,
        trainable=nothing,
        upload=nothing,
        load_local=uses.load_local,
        save_local=nothing,
        stream=_CHOICE,
    )
    tasks = {_CHOICE: task} if bool(several.any()) else {}
    stats = {"inputs": cohort[cohort]} if inputs else {}
    return Plan(state.round + 1, problem.seed, uses.clients[cohort], state.models, tasks, evaluations, stats)


def models_in_use(setup: RunSetup, state: State) -> Evaluation:
    """The models that the clients would use that take part at the end of a run."""
    clients = setup.server.participation.active(state.round)
    return setup.server.algorithm.evaluations(setup.server.problem, state, clients)[CLIENT]


def chosen_models(uses: Evaluation, report: Report) -> dict[int, int | None]:
    """The model of each client: its only candidate, or the one that it chose; None where it did not say which.

    Args:
        uses: The models that the clients may use.
        report: What came back for the last plan.
    """
    answer = report.results.get(_CHOICE)
    chosen = {} if answer is None else dict(zip(answer.updates.clients.tolist(), answer.chosen.tolist(), strict=True))
    found = dict[int, int | None]()
    for client, row in zip(uses.clients.tolist(), uses.candidates.tolist(), strict=True):
        candidates = [model for model in row if model >= 0]
        found[client] = candidates[0] if len(candidates) == 1 else chosen.get(client)
    return found


class ModelInUse(NamedTuple):
    """The model that a client uses at the end of a run.

    Attributes:
        client: The id of the client.
        model: Its place among the models of the state; None where the client did not say which one it chose.
        own: The tensors of its own that replace those of the model, by their places in the layout.
    """

    client: int
    model: int | None
    own: Mapping[int, torch.Tensor]


def with_own_tensors(
    setup: RunSetup, models: Mapping[int, int | None], load_local: Mask, before: int
) -> list[ModelInUse]:
    """The model of each client that takes part at the end of a run.

    Args:
        setup: What the run was built from. Its clients' store has what they keep to themselves.
        models: The model of each client, as `chosen_models` returns them.
        load_local: The tensors that clients take from their stores.
        before: The round before which the store has the tensors.
    """
    found = list[ModelInUse]()
    for client, model in models.items():
        stored = setup.clients.store.read(client, before=before) if any(load_local) else {}
        own = {place: values for place, values in sorted(stored.items()) if load_local[place]}
        found.append(ModelInUse(client, model, own))
    return found


def write_used_models(folder: Path, setup: RunSetup, state: State, used: Sequence[ModelInUse]) -> None:
    """Write which model each client uses, and the tensors of clients' own.

    Args:
        folder: The run folder.
        setup: What the run was built from.
        state: The last state.
        used: The model of each client.
    """
    nodes = state.nodes.tolist()
    tensors = setup.server.problem.layout.tensors
    shapes = {spec.name: spec.shape for spec in tensors}
    clients = list[UsedModel]()
    personal = dict[int, dict[str, torch.Tensor]]()
    for client, model, stored in used:
        own = {tensors[place].name: values for place, values in stored.items()}
        # The store of real devices says with an empty tensor that the values are there.
        on_device = any(values.numel() == 0 for values in own.values())
        if own and not on_device:
            personal[client] = {name: values.reshape(shapes[name]).contiguous() for name, values in own.items()}
        node = None if model is None else nodes[model]
        clients.append(UsedModel(client=client, node=node, personal=list(own), on_device=on_device))
    sample_format = asdict(setup.client_data.dataset.sample_format)
    write_client_models(folder, ClientModelsRecord(sample_format=sample_format, clients=clients), personal)


MOST_OUTPUTS = 2**25
"""Outputs for all test samples that are kept at most: 128 MB of float32."""


def predict_test_samples(
    setup: RunSetup, state: State, used: Sequence[ModelInUse], change: Callable[[Tensor], Tensor] | None = None
) -> tuple[Predictions, Tensor] | None:
    """Predict the class or the number of each client's test samples with the model that it uses.

    Args:
        setup: What the run was built from.
        state: The last state.
        used: The model of each client that takes part at the end.
        change: Changes the inputs (b, ...) of samples before they are normalised; None leaves them as they are.

    Returns:
        What they predict, and of classes the outputs, (s, classes), or (s, 0) where they are too many. None on real
        devices, which keep their test samples.
    """
    data = setup.client_data
    tests = {each.client: data.test(each.client, state.round) for each in used}
    if not tests or not all(map(len, tests.values())):
        return None
    of_classes = data.dataset.targets is None
    width = data.dataset.classes if of_classes else 0
    width = width if sum(map(len, tests.values())) * width <= MOST_OUTPUTS else 0
    # Clients without tensors of their own share the model of their cluster, and so its batches.
    sharing = dict[int, list[int]]()
    rows = list[tuple[Tensor, list[int]]]()
    for client, model, own in used:
        if model is not None and own:
            rows.append((start_row(state.models[model], own, setup.server.problem.layout.spans), [client]))
        elif model is not None:
            sharing.setdefault(model, []).append(client)
    rows += [(state.models[model], clients) for model, clients in sharing.items()]
    parts = list[tuple[Tensor, ...]]()
    for row, clients in rows:
        index = torch.cat([tests[client] for client in clients])
        owners = torch.tensor(clients).repeat_interleave(torch.tensor([len(tests[client]) for client in clients]))
        parts.append((owners, index, *_predicted(setup, row, index, width, change)))
    if not parts:
        return None
    owners, index, values, outputs = (torch.cat(column) for column in zip(*parts, strict=True))
    order = owners.argsort(stable=True)
    owners, index, outputs = owners[order], index[order], outputs[order]
    # Numbers that a unit has with every seed.
    every = data.dataset.units
    units = index.numpy() if every is None else np.unique(every, return_inverse=True)[1][index.numpy()]
    return Predictions(owners.numpy(), index.numpy(), units.astype(np.int64), *values[order].T.numpy()), outputs


def _predicted(
    setup: RunSetup, row: Tensor, index: Tensor, width: int, change: Callable[[Tensor], Tensor] | None
) -> tuple[Tensor, Tensor]:
    """The truth, the prediction and the score of some samples, (s, 3) float64, as of `Predictions`, and the outputs.

    Args:
        setup: What the run was built from.
        row: The model, (p,).
        index: The samples, (s,).
        width: How many of the outputs for a sample are kept: all or none.
        change: Changes the inputs before they are normalised; None leaves them as they are.
    """
    data = setup.client_data
    dataset = data.dataset
    # One tensor for all batches: small ones that stay between them would keep the memory of each from being used again.
    values = torch.full((len(index), 3), torch.nan, dtype=torch.float64)
    outputs = torch.empty(len(index), width)
    if dataset.targets is not None and dataset.outputs != (1,):
        return values, outputs
    for samples, value, kept in zip(*(each.split(EVALUATION_BATCH) for each in (index, values, outputs)), strict=True):
        raw, targets = data.raw_samples(samples)
        inputs = dataset.normalise(raw if change is None else change(raw), data.owner[samples])
        found = setup.clients.outputs(row[None], inputs)[0]
        value[:, 0] = targets.reshape(len(samples))
        if dataset.answer == "classes":
            value[:, 1] = found.argmax(dim=1)
            if found.shape[1] == 2:
                value[:, 2] = found.double().diff(dim=1)[:, 0]
        elif dataset.answer == "labels":
            value[:, 1:] = torch.stack((found[:, 0] > 0, found[:, 0]), dim=1)
        else:
            value[:, 1] = found[:, 0]
        kept.copy_(found[:, :width])
    return values, outputs


def scores_of_probabilities(setup: RunSetup, found: Predictions, outputs: Tensor) -> dict[str, Any]:
    """What the summary says of class probabilities; nothing where outputs are none, or were not kept.

    Args:
        setup: What the run was built from.
        found: What the models predict.
        outputs: The outputs for them, (s, classes).
    """
    if not setup.server.objective.classifies or outputs.shape[1] < 2:
        return {}
    scores = probability_scores(torch.from_numpy(found.client), torch.from_numpy(found.truth).long(), outputs)
    names = setup.client_data.dataset.class_names or tuple(map(str, range(outputs.shape[1])))
    return {"probabilities": {"classes": list(names), **scores}} if scores else {}


def backdoor_summary(
    setup: RunSetup, state: State, used: Sequence[ModelInUse], labels: Mapping[int, int]
) -> dict[str, float | None]:
    """The attack success rates of a backdoor, as means over honest clients; nothing where there is no backdoor.

    The rate of a client is the share of its test samples of other classes than the target which its model calls the
    target, once they have the trigger.

    Args:
        setup: What the run was built from.
        state: The last state.
        used: The model of each client that takes part at the end.
        labels: The cluster, or the node of the tree, of each client.
    """
    if setup.byzantine is None or setup.trigger is None:
        return {}
    byzantine = setup.byzantine.ids
    attacked = {labels[client] for client in byzantine if client in labels}
    honest = [each for each in used if each.client not in byzantine]
    rates = _success_rates(setup, state, honest)
    inside = [rate for client, rate in rates.items() if labels.get(client) in attacked]
    outside = [rate for client, rate in rates.items() if labels.get(client) not in attacked]
    return {
        "backdoor_success": _mean(list(rates.values())),
        "backdoor_success_attacked": _mean(inside),
        "backdoor_success_elsewhere": _mean(outside),
    }


def _success_rates(setup: RunSetup, state: State, used: Sequence[ModelInUse]) -> dict[int, float]:
    """The success rate of the backdoor with each client that has test samples of another class than the target."""
    assert setup.trigger is not None
    of_classes = setup.client_data.dataset.targets is None
    predicted = predict_test_samples(setup, state, used, setup.trigger.stamp) if of_classes else None
    if predicted is None:
        return {}
    samples, _ = predicted
    others = samples.truth != setup.trigger.target
    owners = samples.client[others]
    fooled = samples.predicted[others] == setup.trigger.target
    return {client: float(fooled[owners == client].mean()) for client in np.unique(owners).tolist()}


def _mean(rates: Sequence[float]) -> float | None:
    """The mean of some rates; None where there are none."""
    return mean(rates) if rates else None
