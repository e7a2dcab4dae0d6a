"""A finished run: its records, and the model of every client. Nothing here changes it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from fedstrata.base.errors import InputError, RecordError
from fedstrata.base.quoting import listed, shown
from fedstrata.base.randomness import model_seed
from fedstrata.base.registry import PortableObject
from fedstrata.build.problem import network_of, problem_of
from fedstrata.build.samples import for_network
from fedstrata.config import Experiment, load_experiment
from fedstrata.config.folders import experiment_file_of
from fedstrata.config.reading import completed_keys, plain_keys
from fedstrata.core import Decision, Node, State, Tree
from fedstrata.data import SampleFormat, load_unlabelled, raw_rows
from fedstrata.models import NetworkMaker, NetworkShape, known_outputs, layout_of
from fedstrata.models.trained import TrainedModel
from fedstrata.objective.metric_info import MetricInfo
from fedstrata.records.client_models import ClientModels, UsedModel
from fedstrata.records.folder import Folder
from fedstrata.records.measures import diverged
from fedstrata.records.resume import last_state
from fedstrata.records.schema import TreeNode

if TYPE_CHECKING:
    from numpy.typing import NDArray


_SHOWN_NAMES = 8
"""The number of clients that a message names."""


@dataclass(frozen=True, repr=False)
class Run:
    """A finished run.

    Attributes:
        folder: The folder of its records.
        summary: The content of ``summary.json``.
        rounds: The lines of ``rounds.jsonl``.
        tree: Every cluster that ever was.
        names: The name of each client, by its id, (n,).
        warnings: What looks wrong with the data, in a line each.
        network: The network, or what makes it; None where the experiment names it.
    """

    folder: Path
    summary: dict[str, Any]
    rounds: list[dict[str, Any]]
    tree: Tree
    names: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    network: Callable[..., nn.Module] | nn.Module | None = None

    def __repr__(self) -> str:
        """What it was and what came out, in a line: its records have many pages."""
        keys = ("algorithm", "rounds", "clusters", "acc_client")
        found = ", ".join(f"{key}={self.summary.get(key)!r}" for key in keys)
        return f"Run(folder={str(self.folder)!r}, {found})"

    @property
    def diverged(self) -> bool:
        """Whether training diverged in every round, so that the models are of no use."""
        return diverged(self.summary)

    @cached_property
    def experiment(self) -> Experiment:
        """The experiment, every default written out."""
        return load_experiment(experiment_file_of(self.folder), find_data=False)

    @cached_property
    def state(self) -> State:
        """The last state of the algorithm, from the newest checkpoint.

        Raises:
            RecordError: When there is no sound checkpoint.
        """
        experiment = self.experiment
        form = self.sample_format
        problem = problem_of(experiment, network_of(experiment, form.network_shape, form.output_shape))
        # The type of the state is wanted, not the state: any true groups will do.
        problem = replace(problem, truth=torch.zeros(problem.clients, dtype=torch.int64))
        fresh: State = experiment.algorithm_of().init(problem)
        return last_state(Folder(self.folder.resolve()), plain_keys(experiment), fresh, completed_keys)

    @cached_property
    def _models(self) -> ClientModels:
        return ClientModels.read(self.folder)

    @cached_property
    def _used(self) -> dict[str, UsedModel]:
        """The model of each client that took part at the end, by the client's name."""
        return {self.names[used.client]: used for used in self._models.record.clients}

    @cached_property
    def sample_format(self) -> SampleFormat:
        """What raw samples look like, and how the network reads them."""
        found: SampleFormat = self._models.sample_format(SampleFormat)
        return found

    @property
    def clients(self) -> tuple[str, ...]:
        """The names of the clients that took part at the end, in the order of their ids."""
        return tuple(self._used)

    @property
    def labels(self) -> dict[str, int]:
        """The tree node of each client, by the client's name. One that waits for a cluster has the node where it waits.

        Clients that have left or never joined are not in it.
        """
        return labels_by_name(self.names, self.rounds[-1]["labels"] if self.rounds else [])

    def model(self, client: str | int) -> TrainedModel:
        """Return the model that a client uses, with its own layers and everything that raw samples need.

        Args:
            client: The name of the client, or its id. A whole number that is a client's name, as text, means that
                name: where clients are called "1" and "2", 1 is client "1", whatever its id is.

        Raises:
            InputError: When there is no such client, its own layers are on its device, or the network cannot be made.
        """
        used = self.model_of(client)
        if used.node is None:
            raise RecordError(
                f"client {client} waits for a cluster and did not answer which model fits it; "
                "take the model of a cluster by cluster_model"
            )
        return self._assembled(used.node, used)

    def cluster_model(self, node: int) -> TrainedModel:
        """Return the model of a cluster, without any client's own layers.

        Args:
            node: The tree node of the cluster, as in `labels`.

        Raises:
            RecordError: When this cluster has no model, because it was split or never was.
        """
        leaves = [leaf.id for leaf in self.tree if leaf.split is None]
        if node not in leaves:
            known = ", ".join(map(str, leaves))
            raise RecordError(f"cluster {node}: expected one of the clusters at the end, {known}")
        return self._assembled(node, None)

    def predict(self, client: str | int, samples: Any) -> NDArray[Any]:
        """Predict the class of raw samples with the model that a client uses.

        Args:
            client: The name of the client, or its id, as in `model`.
            samples: The samples, (samples, *shape), as arrays, tensors or a table: not normalised, as in the data.

        Returns:
            The class of each sample, (samples,): its name where the classes have names, else its number.

        Raises:
            InputError: When there is no such client, or the samples do not fit.
        """
        return self.model(client).predict(samples)

    def predict_proba(self, client: str | int, samples: Any) -> NDArray[Any]:
        """Return the probability of each class, (samples, classes); otherwise as `predict`."""
        return self.model(client).predict_proba(samples)

    @cached_property
    def metric(self) -> MetricInfo:
        """What the metric of the run is, whose values the keys ``acc_client``, ``acc_worst`` and so on hold."""
        return Folder(self.folder.resolve()).metric()

    def _repr_html_(self) -> str:
        """The summary as a table, for notebooks."""
        from html import escape

        from fedstrata.report.summary import summary_rows
        from fedstrata.report.words import ClientNames

        rows = "".join(
            f"<tr><th>{escape(key)}</th><td>{escape(value)}</td><td>{escape(meaning)}</td></tr>"
            for key, value, meaning in summary_rows(self.summary, self.metric, ClientNames(self.names))
        )
        return f"<table>{rows}</table>"

    def model_of(self, client: str | int) -> UsedModel:
        """Return which cluster's model a client uses, and which of its tensors are the client's own.

        Args:
            client: The name of the client, or its id, as in `model`.

        Raises:
            InputError: When no client of this name took part at the end.
        """
        used = self._used.get(self._name_of(client))
        if used is None:
            names = listed(list(self._used), _SHOWN_NAMES)
            raise InputError(f"client {shown(client)}: expected a client that took part at the end, {names}")
        return used

    def _name_of(self, client: str | int) -> str:
        """The name that a user means. A number is an id only where no client has it as its name."""
        name = str(client)
        is_number = isinstance(client, int | np.integer)
        if is_number and name not in self.names and 0 <= int(client) < len(self.names):
            return self.names[int(client)]
        return name

    @cached_property
    def new_network(self) -> Callable[[], nn.Module]:
        """The function that makes the network, with its fixed tensors and any values of the others.

        Raises:
            RecordError: When the network is not that of the run any more.
        """
        make = network_factory(self.experiment, self.sample_format, self.network)
        data = Folder(self.folder.resolve()).data()
        if data is not None and data.network:
            network = make()
            said = outputs_of(network, self.experiment, self.sample_format)
            data.require_same_network(said, layout_of(network).frozen, self.folder)
        return make

    def _assembled(self, node: int, used: UsedModel | None) -> TrainedModel:
        """The network with the tensors of a cluster and those of a client.

        Raises:
            RecordError: When they are not the tensors of the network.
        """
        # The frozen tensors may be those of other networks in this process. Who takes this one may change them, as
        # merging adapters into their base does.
        network = copy.deepcopy(self.new_network())
        tensors = self._models.cluster_tensors(node)
        if used is not None:
            tensors |= self._models.personal_tensors(used, self.names[used.client])
        try:
            missing, unknown = network.load_state_dict(tensors, strict=False)
            # A state dict has more than the tensors that are kept, such as counters.
            wrong = [*unknown, *(spec.name for spec in layout_of(network).tensors if spec.name in missing)]
            if wrong:
                raise RuntimeError(f"{wrong[0]} is in one of the two alone")
        except RuntimeError as error:
            raise RecordError(
                f"{self.folder}: expected the tensors of its network, found others: {' '.join(str(error).split())}; "
                "give the network that the run was made with"
            ) from None
        form = self.sample_format
        if (prepared := form.preparation) is not None and prepared.options.own:
            if used is None or used.client >= len(prepared.fill):
                found = f"cluster {node}" if used is None else f"client {self.names[used.client]} of a device"
                raise RecordError(
                    f"{found}: expected a client of a simulation, as each prepares its rows by statistics of its own "
                    "(data.statistics = 'own')"
                )
            form = replace(form, preparation=prepared.of(used.client))
        return TrainedModel(network, form)


def predict_file(run: Run, client: str | int, path: Path) -> tuple[list[str], Iterator[list[Any]]]:
    """Predict raw samples with the model that a client uses.

    Args:
        run: The finished run.
        client: The name of the client, or its id.
        path: The samples, in one of the forms that runs read. A table needs the features alone.

    Returns:
        What the columns are called, and the rows: the prediction, and the probability of each class or label where the
        run has some.

    Raises:
        InputError: When there is no such client, or the samples do not fit.
    """
    model = run.model(client)
    form = run.sample_format
    samples = raw_samples(run, path)
    predicted = model.predict(samples).reshape(-1, 1 if form.answer == "classes" else form.output_shape[0])
    several = predicted.shape[1] > 1
    header = [f"prediction {column}" if several else "prediction" for column in range(predicted.shape[1])]
    if form.answer == "numbers":
        return header, iter(predicted.tolist())
    probabilities = model.predict_proba(samples)
    names = form.class_names or tuple(map(str, range(probabilities.shape[1])))
    return [*header, *(f"p({name})" for name in names)], (
        [*said, *shares] for said, shares in zip(predicted.tolist(), probabilities.tolist(), strict=True)
    )


def raw_samples(run: Run, path: Path) -> Any:
    """Read raw samples in one of the forms that runs read, as `TrainedModel.outputs` takes them; classes are not read.

    Raises:
        DataError: When a file is broken, or lacks a feature.
    """
    reading = run.experiment.reading
    if names := run.sample_format.feature_names:
        return raw_rows(path, names, reading)
    dataset = for_network(run.experiment, load_unlabelled(path, reading))
    return dataset.gather(torch.arange(len(dataset)))


def outputs_of(network: nn.Module, experiment: Experiment, form: SampleFormat) -> list[float]:
    """What the network of a run says, as `known_outputs` returns it; its own weights do not matter, and are lost."""
    return known_outputs(network, form.network_shape, experiment.seed, tokens=form.dtype == "int64")


def network_factory(
    experiment: Experiment, form: SampleFormat, given: Callable[..., nn.Module] | nn.Module | None = None
) -> Callable[[], nn.Module]:
    """The function that makes the network of a run, with its fixed tensors and any values of the others.

    Args:
        experiment: The experiment.
        form: What raw samples look like.
        given: The network, or what makes it, where it is not the one that the experiment names.
    """
    if given is None:
        return network_of(experiment, form.network_shape, form.output_shape)
    kind = NetworkShape(form.network_shape, form.output_shape, form.dtype == "int64")
    maker = PortableObject(given, getattr(given, "__qualname__", type(given).__name__))
    options = _accepted(given, experiment.model.options)
    return NetworkMaker(maker, kind, model_seed(experiment.seed), options)


def _accepted(maker: Callable[..., nn.Module] | nn.Module, options: Mapping[str, Any]) -> dict[str, Any]:
    """Those options of a run's network that another one takes."""
    if isinstance(maker, nn.Module):
        return {}
    parameters = signature(maker).parameters
    anything = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    return {name: value for name, value in options.items() if anything or name in parameters}


def labels_by_name(names: Sequence[str], nodes: Sequence[int]) -> dict[str, int]:
    """The tree node of each client that takes part, by its name.

    Args:
        names: The name of each client, by its id, (n,).
        nodes: The tree node of each client, (n,), as in a record of a round; -1 for one that takes no part.
    """
    return {names[client]: node for client, node in enumerate(nodes) if node >= 0}


def load(folder: Path | str, network: Callable[..., nn.Module] | nn.Module | None = None) -> Run:
    """Return a finished run from its folder.

    Args:
        folder: The run folder.
        network: A function or class that makes the network from (shape, classes) or from nothing, or a network, as
            `fedstrata.run` takes it. None is the network that the experiment names.

    Raises:
        RecordError: When it is no folder of a finished run.
    """
    path = Path(folder)
    records = Folder(path.resolve())
    summary = records.summary()
    rounds = records.rounds()
    clients = len(rounds[-1]["labels"]) if rounds else 0
    data = records.data()
    if data is not None and len(data.names) != clients:
        raise RecordError(f"{path}: expected the names of {clients} clients, found {len(data.names)} in data.json")
    names = tuple(map(str, range(clients))) if data is None else data.names
    warnings = () if data is None else tuple(data.warnings)
    return Run(path, summary, rounds, tuple(map(_node, records.tree())), names, warnings, network)


def _node(record: TreeNode) -> Node:
    values = {name: float("nan") if value is None else value for name, value in record.criteria.items()}
    decision = Decision(record.why, record.layer, values) if record.why else None
    return Node(record.id, record.parent, tuple(record.members), record.born, record.split, decision)
