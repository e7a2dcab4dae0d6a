"""Build everything that a run needs from an experiment. What can be checked without data is checked first."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial

import torch

from fedstrata import data
from fedstrata.attacks import ByzantineClients, Trigger
from fedstrata.config import Experiment
from fedstrata.config.tables import EngineTable
from fedstrata.core import LocalTraining, Plan, Report
from fedstrata.engine import (
    ENGINES,
    ClientData,
    Engine,
    SimulationSpec,
    choose_engine,
    engine_candidates,
    resolve_engine,
)
from fedstrata.errors import ExperimentError
from fedstrata.models import MODELS, layout_of
from fedstrata.models.forward_order import order_warning
from fedstrata.partition import Partition
from fedstrata.privacy.secure_sum import Summed, summed_report
from fedstrata.quoting import shown
from fedstrata.records import require
from fedstrata.runner.attacks import attack_warnings, byzantine_clients, check_attack, with_flipped_labels, with_trigger
from fedstrata.runner.data_warnings import data_warnings
from fedstrata.runner.membership import Membership, membership, sampling_weights
from fedstrata.runner.probes import check_group_probes
from fedstrata.runner.problem import as_read, network_of, objective_of, problem_of
from fedstrata.runner.samples import (
    inputs_line,
    normalised_by_training,
    partition_of,
    public_samples,
    read_samples,
    with_targets,
)
from fedstrata.runner.server_setup import ServerSetup, server_setup

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RunSetup(ServerSetup):
    """What a run needs: its server, and the clients.

    Attributes:
        clients: The engine, or the devices, that hold the data.
        client_data: The data of all clients.
        engine: The engine of the experiment, with the choice that "auto" led to.
        why: The reason for this choice in one line; empty when the experiment names the engine.
        names: The name of each client, (n,). Clients without names have their numbers.
        warnings: What looks wrong with the data, in a line each.
        public: The unlabelled samples of the server before they are normalised, (samples, ...); None for none.
        inputs: Which columns of a table the networks read, in one line; empty where the data are no table.
        byzantine: The clients that send something else than they have trained; None where all are honest.
        trigger: The trigger of their backdoor; None where they have none.
        uploads_are_decoded: Whether the reports of the clients are decompressed already, as those of real devices are.
    """

    clients: Engine
    client_data: ClientData
    engine: EngineTable
    why: str = ""
    names: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    public: torch.Tensor | None = None
    inputs: str = ""
    byzantine: ByzantineClients | None = None
    trigger: Trigger | None = None
    uploads_are_decoded: bool = False

    @property
    def everyone(self) -> torch.Tensor:
        """All client ids, (n,)."""
        return torch.arange(self.problem.clients)

    @property
    def choices(self) -> tuple[str, ...]:
        """What was chosen for the experiment where it does not say, in a line each."""
        lines = {"engine": self.why, "inputs": self.inputs}
        return tuple(f"{name}: {text}" for name, text in lines.items() if text)

    def simulate_upload(self, plan: Plan, report: Report) -> Report:
        """What the server gets of a report, where clients add noise, are Byzantine, or compress what they send."""
        if self.client_noise is not None:
            report = self.client_noise.of_report(plan, report)
        if self.byzantine is not None:
            report = self.byzantine.corrupt(plan, report)
        if self.compression is not None and not self.uploads_are_decoded:
            # Nothing else fits into what travels, whoever sends it.
            report = self.compression.of_report(plan, report, self.clients.store)
        return report

    def summed(self, plan: Plan, report: Report) -> Summed:
        """What the server sees of that, with secure aggregation."""
        return summed_report(self.sums, self.problem.layout, plan, report) if self.sums.secure else Summed(report)

    def truth(self, round: int) -> torch.Tensor | None:
        """The true group of each client in a round, (n,). It changes with the data of a client."""
        if self.problem.truth is None:
            return None
        truth = self.problem.truth.clone()
        for client, (since, other) in self.members.handovers.items():
            truth[client] = truth[other if round >= since else client]
        return truth


def build_run(experiment: Experiment) -> RunSetup:
    """Make the network, check the first plan of the algorithm, then read and partition the data.

    Raises:
        InputError: When something that the experiment names does not exist or does not fit.
    """
    members = membership(experiment)
    _check_before_data(experiment, members)
    dataset, own_test = read_samples(experiment)
    _logger.info("data %s: %d samples of %s, %d classes", dataset.name, len(dataset), dataset.shape, dataset.classes)
    dataset = with_targets(experiment, dataset)
    server = server_setup(experiment, problem_of(experiment, dataset.shape, dataset.outputs), members)
    layout = server.problem.layout
    partition = partition_of(experiment, dataset, own_test)
    check_group_probes(experiment, partition.truth)
    dataset = normalised_by_training(experiment, dataset, partition)
    warnings = (
        *data_warnings(experiment, dataset, partition, own_test),
        *_network_warnings(experiment, dataset),
        *attack_warnings(experiment),
    )
    names = partition.names or tuple(map(str, range(experiment.data.clients)))
    truth = None if partition.truth is None else torch.from_numpy(partition.truth)
    byzantine = byzantine_clients(experiment, layout, truth)
    partition = with_flipped_labels(experiment, dataset, partition, byzantine)
    dataset, trigger = with_trigger(experiment, dataset, partition, byzantine)
    spec = _spec(experiment, dataset, partition, members)
    sizes = _sizes(spec.client_data, 0)
    _logger.info("%d clients with %d to %d training samples", len(sizes), min(sizes), max(sizes))
    members = _weighted(members, experiment, spec.client_data)
    engine, why = _engine(experiment, spec, members, server.problem.training)
    _logger.info("engine %s on %s, model of %d parameters", engine.name, engine.device, layout.p)
    clients = ENGINES[engine.name](spec, engine.device, engine.workers, engine.timeout)
    public = public_samples(experiment, dataset, partition)
    normalised = None if public is None else dataset.normalise(public)
    problem = replace(server.problem, truth=truth, public=normalised, predict=clients.predict)
    return RunSetup(
        **vars(replace(server, problem=problem, members=members)),
        clients=clients,
        client_data=spec.client_data,
        engine=engine,
        why=why,
        names=names,
        warnings=warnings,
        public=public,
        inputs=inputs_line(dataset),
        byzantine=byzantine,
        trigger=trigger,
    )


def _check_before_data(experiment: Experiment, members: Membership) -> None:
    """Refuse what cannot run, before any sample is read; of data whose form is known, also what does not fit them."""
    # Both refuse keys that do not go together.
    experiment.algorithm_of()
    experiment.personal_of()
    resolve_engine(experiment.engine.name, experiment.engine.device)
    _refuse_public(experiment)
    check_attack(experiment)
    require(experiment.records.track)
    info = data.find(experiment.data.name, experiment.data.root).info
    if info is not None:
        outputs = objective_of(experiment).outputs_of_classes(info.classes)
        server_setup(experiment, problem_of(experiment, info.shape, outputs), members)


def on_same_clients(setup: RunSetup, experiment: Experiment) -> RunSetup:
    """The setup of another experiment with the same clients, data and network.

    Args:
        setup: What was built from the first experiment.
        experiment: One that differs in algorithm, personal models, local training, server and cohort at most.

    Raises:
        ExperimentError: When its networks learn something else, which the clients of the first do not compute.
    """
    objective = objective_of(experiment)
    for key in ("loss", "metric", "transform"):
        expected = getattr(setup.objective, key)
        if getattr(objective, key) != expected:
            raise ExperimentError(
                f"local.{key} = {shown(getattr(objective, key))}: expected {shown(expected)}, as in the other runs, "
                "with which it shares its clients; run it on its own"
            )
    form = setup.client_data.sample_format
    problem = problem_of(experiment, form.network_shape, form.output_shape)
    own = setup.problem
    problem = replace(problem, truth=own.truth, public=own.public, predict=own.predict)
    members = _weighted(membership(experiment), experiment, setup.client_data)
    return replace(setup, **vars(server_setup(experiment, problem, members)))


def _sizes(client_data: ClientData, round: int) -> list[int]:
    """The training samples of each client in a round."""
    return [len(client_data.train(client, round=round)) for client in range(len(client_data))]


def _weighted(members: Membership, experiment: Experiment, client_data: ClientData) -> Membership:
    """Who takes part, with the weights that the experiment samples by."""
    return replace(members, weights=sampling_weights(experiment.cohort, partial(_sizes, client_data)))


def _refuse_public(experiment: Experiment) -> None:
    """Refuse public samples where models are no classifiers: algorithms compare the classes that they predict."""
    if experiment.data.public and not objective_of(experiment).classifies:
        raise ExperimentError(
            f"data.public = {experiment.data.public}: expected 0 with local.loss = {experiment.local.loss!r}, as "
            "algorithms compare the class probabilities of public samples; use local.loss = 'cross_entropy'"
        )


def _network_warnings(experiment: Experiment, dataset: data.Dataset) -> tuple[str, ...]:
    """What looks wrong with a network of the user's own."""
    if experiment.model.name in MODELS:
        return ()
    network = network_of(experiment, dataset.shape, dataset.outputs)()
    kind = torch.int64 if experiment.data.tokens else torch.float32
    found = order_warning(network, layout_of(network), torch.zeros(2, *as_read(experiment, dataset.shape), dtype=kind))
    return () if found is None else (found,)


def _spec(experiment: Experiment, dataset: data.Dataset, partition: Partition, members: Membership) -> SimulationSpec:
    """What the engine is made of."""
    # Of the columns, only the one that marks independent units is still needed.
    columns = {} if dataset.unit is None else {dataset.unit: dataset.columns[dataset.unit]}
    return SimulationSpec(
        network_of(experiment, dataset.shape, dataset.outputs),
        replace(dataset, columns=columns).channels_last(),
        partition,
        experiment.seed,
        # The plans that follow the last round must not meet data of a later one.
        {client: (since, other) for client, (since, other) in members.handovers.items() if since <= experiment.rounds},
        experiment.engine.precision,
        objective_of(experiment),
    )


def _engine(
    experiment: Experiment, spec: SimulationSpec, members: Membership, training: LocalTraining
) -> tuple[EngineTable, str]:
    """The engine with "auto" resolved, and the reason for the choice."""
    wanted = experiment.engine
    why = ""
    name, device = resolve_engine(wanted.name, wanted.device)
    if name == "auto":
        cohort = members.sample(1).cohort
        candidates = engine_candidates(spec, wanted.workers, device, wanted.timeout)
        chosen, why = choose_engine(spec, candidates, training, cohort, experiment.rounds)
        name = chosen.name
        device = chosen.device
    return wanted.model_copy(update={"name": name, "device": device}), why
