"""Which model each client uses when a run is over: a cluster's, with the client's own tensors where it has some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from fedstrata.build.run_setup import RunSetup
from fedstrata.core import CLIENT, Evaluation, LocalTask, Problem, Report, State
from fedstrata.records.client_models import ClientModelsRecord, UsedModel, write_client_models

_CHOICE = "choice"
"""The task by which clients that may use several models say which one fits their training data best."""


@dataclass(frozen=True)
class Choice:
    """The clients that may use several models, such as one that waits for a cluster, and what they are asked.

    Attributes:
        clients: Their ids, ascending, (m,).
        tasks: The task that asks them; empty where there is no such client.
    """

    clients: torch.Tensor
    tasks: Mapping[str, LocalTask]

    @classmethod
    def among(cls, problem: Problem, uses: Evaluation) -> Choice:
        """Ask the clients of an evaluation that have more than one candidate. Nobody trains, and nothing is sent."""
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
        return cls(uses.clients[several], {_CHOICE: task} if bool(several.any()) else {})

    def answers(self, report: Report) -> dict[int, int]:
        """Return the model that each client chose, by client. A client that did not answer is missing."""
        if not self.tasks:
            return {}
        result = report.results[_CHOICE]
        return dict(zip(result.updates.clients.tolist(), result.chosen.tolist(), strict=True))


def models_in_use(setup: RunSetup, state: State) -> Evaluation:
    """The models that the clients would use that take part at the end of a run."""
    clients = setup.server.participation.active(state.round)
    return setup.server.algorithm.evaluations(setup.server.problem, state, clients)[CLIENT]


def chosen_models(uses: Evaluation, chosen: Mapping[int, int]) -> dict[int, int | None]:
    """The model of each client: its only candidate, or the one that it chose; None where it did not say which.

    Args:
        uses: The models that the clients use.
        chosen: The model that each client with several candidates chose, by client.
    """
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


def choices_in_use(setup: RunSetup, uses: Evaluation, chosen: Mapping[int, int], before: int) -> list[ModelInUse]:
    """The model of each client that takes part at the end of a run.

    Args:
        setup: What the run was built from. Its clients' store has what they keep to themselves.
        uses: The models that the clients use.
        chosen: The model that each client with several candidates chose.
        before: The round before which the store has the tensors.
    """
    found = list[ModelInUse]()
    for client, model in chosen_models(uses, chosen).items():
        stored = setup.clients.store.read(client, before=before) if any(uses.load_local) else {}
        own = {place: values for place, values in sorted(stored.items()) if uses.load_local[place]}
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
    sample_format = asdict(setup.client_data.sample_format)
    write_client_models(folder, ClientModelsRecord(sample_format=sample_format, clients=clients), personal)
