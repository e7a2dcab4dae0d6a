"""Which model each client uses when a run is over, and what these models take their test samples for.

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
from fedstrata.records.schema import Classified

_CHOICE = "choice"
"""The task by which clients that may use several models say which one fits their training data best."""


def last_plan(problem: Problem, state: State, uses: Evaluation, evaluations: Mapping[str, Evaluation]) -> Plan:
    """The plan after the last round: nobody trains, and nothing is sent but scores and choices.

    Clients that may use several models, such as one that waits for a cluster, choose one of them.

    Args:
        problem: What is fixed for the run.
        state: The last state.
        uses: The models that the clients may use.
        evaluations: What is scored.
    """
    several = (uses.candidates >= 0).sum(dim=1) > 1
    nothing = problem.layout.nothing
    task = LocalTask(
        candidates=uses.candidates[several],
        training=problem.training,
        trainable=nothing,
        upload=nothing,
        load_local=uses.load_local,
        save_local=nothing,
        stream=_CHOICE,
    )
    tasks = {_CHOICE: task} if bool(several.any()) else {}
    return Plan(state.round + 1, problem.seed, uses.clients[several], state.models, tasks, evaluations)


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


def classify_test_samples(
    setup: RunSetup, state: State, used: Sequence[ModelInUse], change: Callable[[Tensor], Tensor] | None = None
) -> tuple[Classified, Tensor] | None:
    """Classify the test samples of each client with the model that it uses.

    Args:
        setup: What the run was built from.
        state: The last state.
        used: The model of each client that takes part at the end.
        change: Changes the inputs (b, ...) of samples before they are normalised; None leaves them as they are.

    Returns:
        What they take them for, and the outputs, (s, classes), or (s, 0) where they are too many. None where networks
        learn no classes, and on real devices, which keep their test samples.
    """
    data = setup.client_data
    test = {each.client: data.test(each.client, state.round) for each in used}
    if data.dataset.targets is not None or not test or not all(map(len, test.values())):
        return None
    width = data.dataset.classes if sum(map(len, test.values())) * data.dataset.classes <= MOST_OUTPUTS else 0
    parts = list[tuple[Tensor, Tensor]]()
    # Clients without tensors of their own share the model of their cluster, and so its batches.
    shared = dict[int, list[int]]()
    for client, model, own in used:
        if model is not None and not own:
            shared.setdefault(model, []).append(client)
        elif model is not None:
            row = start_row(state.models[model], own, setup.server.problem.layout.spans)
            parts.append(_classify(setup, row, [client], [test[client]], width, change))
    for model, clients in shared.items():
        tests = [test[client] for client in clients]
        parts.append(_classify(setup, state.models[model], clients, tests, width, change))
    if not parts:
        return None
    columns, outputs = map(torch.cat, zip(*parts, strict=True))
    by_client = columns[:, 0].argsort(stable=True)
    return Classified(*(column.numpy() for column in columns[by_client].T)), outputs[by_client]


def scores_of_probabilities(setup: RunSetup, classified: Classified, outputs: Tensor) -> dict[str, Any]:
    """What the summary says of class probabilities; nothing where outputs are none, or were not kept.

    Args:
        setup: What the run was built from.
        classified: What the models take the samples for.
        outputs: The outputs for them, (s, classes).
    """
    if not setup.server.objective.classifies or outputs.shape[1] < 2:
        return {}
    found = probability_scores(torch.from_numpy(classified.client), torch.from_numpy(classified.truth), outputs)
    names = setup.client_data.dataset.class_names or tuple(map(str, range(outputs.shape[1])))
    return {"probabilities": {"classes": list(names), **found}} if found else {}


def _classify(
    setup: RunSetup,
    row: Tensor,
    clients: Sequence[int],
    tests: Sequence[Tensor],
    width: int,
    change: Callable[[Tensor], Tensor] | None,
) -> tuple[Tensor, Tensor]:
    """The client, the class and the predicted class of every test sample of some clients, (s, 3), and the outputs.

    Args:
        setup: What the run was built from.
        row: The model of these clients, (p,).
        clients: Their ids.
        tests: Their test samples.
        width: How many of the outputs for a sample are kept: all or none.
        change: Changes the inputs before they are normalised; None leaves them as they are.
    """
    index = torch.cat(list(tests))
    owners = torch.tensor(clients).repeat_interleave(torch.tensor([len(test) for test in tests]))
    truth = setup.client_data.labels(index)
    # One tensor for all batches: small ones that stay between them would keep the memory of each from being used again.
    predicted = torch.empty_like(truth)
    outputs = torch.empty(len(truth), width)
    data = setup.client_data
    parts = (each.split(EVALUATION_BATCH) for each in (index, predicted, outputs))
    for samples, part, kept in zip(*parts, strict=True):
        raw, _ = data.raw_samples(samples)
        inputs = data.dataset.normalise(raw if change is None else change(raw), data.owner[samples])
        found = setup.clients.outputs(row[None], inputs)[0]
        part.copy_(found.argmax(dim=1))
        kept.copy_(found[:, :width])
    return torch.stack((owners, truth, predicted), dim=1), outputs


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
    classified = classify_test_samples(setup, state, used, setup.trigger.stamp)
    if classified is None:
        return {}
    samples, _ = classified
    others = samples.truth != setup.trigger.target
    owners = samples.client[others]
    fooled = samples.predicted[others] == setup.trigger.target
    return {client: float(fooled[owners == client].mean()) for client in np.unique(owners).tolist()}


def _mean(rates: Sequence[float]) -> float | None:
    """The mean of some rates; None where there are none."""
    return mean(rates) if rates else None
