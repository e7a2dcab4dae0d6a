"""What the models of clients take their test samples for at the end of a run, and whether a backdoor works."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import mean

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstrata.build.run_setup import RunSetup
from fedstrata.core import State
from fedstrata.engine import ClientData
from fedstrata.engine.loop import EVALUATION_BATCH, with_local_tensors
from fedstrata.play.used_models import ModelInUse
from fedstrata.records.schema import Confusion

MOST_ROWS = 2_000_000
"""Pairs of classes of all clients; more are not recorded. There are at most as many as test samples."""


def classify_test_samples(
    setup: RunSetup, state: State, used: Sequence[ModelInUse], change: Callable[[Tensor], Tensor] | None = None
) -> Tensor | None:
    """Classify the test samples of each client with the model that it uses.

    Args:
        setup: What the run was built from.
        state: The last state.
        used: The model of each client that takes part at the end.
        change: Changes the inputs (b, ...) of samples before they are normalised; None leaves them as they are.

    Returns:
        The client, the class and the predicted class of every test sample, (s, 3) int64. Those of one client are in the
        order of its test data. None where networks learn no classes, and on real devices, which keep their test
        samples.
    """
    data = setup.client_data
    test = {each.client: data.test(each.client, state.round) for each in used}
    if not data.has_classes or not test or not all(map(len, test.values())):
        return None
    rows = list[Tensor]()
    # Clients without tensors of their own share the model of their cluster, and so its batches.
    shared = dict[int, list[int]]()
    for client, model, own in used:
        if model is not None and not own:
            shared.setdefault(model, []).append(client)
        elif model is not None:
            row = with_local_tensors(state.models[model], own, setup.server.problem.layout.spans)
            rows.append(_classify(setup, row, [client], [test[client]], change))
    for model, clients in shared.items():
        rows.append(_classify(setup, state.models[model], clients, [test[client] for client in clients], change))
    return torch.cat(rows) if rows else None


def confusion_of(classified: Tensor) -> Confusion | None:
    """Count the test samples of each client by their class and the class that they are taken for.

    Args:
        classified: As of `classify_test_samples`.

    Returns:
        The counts of all clients; None where they are too many.
    """
    columns, samples = classified.unique(dim=0, return_counts=True)
    if len(columns) > MOST_ROWS:
        return None
    return Confusion(*(np.asarray(column) for column in (*columns.T, samples)))


def right_samples(classified: Tensor) -> dict[int, NDArray[np.bool_]]:
    """Which test samples of each client are classified correctly, (s,) in the order of its test data, by client id."""
    owners, truth, predicted = classified.numpy().T
    order = np.argsort(owners, kind="stable")
    clients, starts = np.unique(owners[order], return_index=True)
    rows = np.split((truth == predicted)[order], starts[1:])
    return dict(zip(clients.tolist(), rows, strict=True))


def _classify(
    setup: RunSetup,
    row: Tensor,
    clients: Sequence[int],
    tests: Sequence[Tensor],
    change: Callable[[Tensor], Tensor] | None,
) -> Tensor:
    """The client, the class and the predicted class of every test sample of some clients, (s, 3).

    Args:
        setup: What the run was built from.
        row: The model of these clients, (p,).
        clients: Their ids.
        tests: Their test samples.
        change: Changes the inputs before they are normalised; None leaves them as they are.
    """
    index = torch.cat(list(tests))
    owners = torch.tensor(clients).repeat_interleave(torch.tensor([len(test) for test in tests]))
    truth = setup.client_data.labels(index)
    # One tensor for all batches: small ones that stay between them would keep the memory of each from being used again.
    predicted = torch.empty_like(truth)
    batches = _batches(setup.client_data, index, change)
    for part, inputs in zip(predicted.split(EVALUATION_BATCH), batches, strict=True):
        part.copy_(setup.clients.classify(row[None], inputs)[0])
    return torch.stack((owners, truth, predicted), dim=1)


def _batches(data: ClientData, index: Tensor, change: Callable[[Tensor], Tensor] | None) -> Iterator[Tensor]:
    """Inputs of some samples, a batch at a time."""
    if change is None:
        for inputs, _ in data.batches(index, EVALUATION_BATCH):
            yield inputs
        return
    for part in index.split(EVALUATION_BATCH):
        raw, _ = data.raw_samples(part)
        yield data.dataset.normalise(change(raw))


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
    owners, _, predicted = classified[classified[:, 1] != setup.trigger.target].T
    fooled = (predicted == setup.trigger.target).double()
    return {client: float(fooled[owners == client].mean()) for client in owners.unique().tolist()}


def _mean(rates: Sequence[float]) -> float | None:
    """The mean of some rates; None where there are none."""
    return mean(rates) if rates else None
