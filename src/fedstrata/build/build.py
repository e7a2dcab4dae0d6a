"""Build everything that a run needs from an experiment. What can be checked without data is checked first."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from fedstrata import data
from fedstrata.base.errors import ExperimentError
from fedstrata.base.quoting import shown
from fedstrata.build.attacks import attacked_data, byzantine_clients, check_attack
from fedstrata.build.data_warnings import data_warnings
from fedstrata.build.data_warnings.run_data import RunData
from fedstrata.build.participation import Participation, cohort_size, participation_of, sampling_weights
from fedstrata.build.probes import check_group_probes
from fedstrata.build.problem import network_of, objective_of, problem_of, refuse_single_samples
from fedstrata.build.run_setup import RunSetup, server_setup
from fedstrata.build.samples import (
    classes_line,
    inputs_line,
    partition_of,
    prepared,
    public_samples,
    read_samples,
    weighted_objective,
    with_targets,
)
from fedstrata.config import Experiment
from fedstrata.config.tables import EngineTable
from fedstrata.core import Algorithm, LocalTraining
from fedstrata.engine import ENGINES, ClientData, SimulationSpec, registry, resolve_engine
from fedstrata.models import MODELS, NetworkMaker, layout_of
from fedstrata.models.rows import head_warning
from fedstrata.partition import Partition
from fedstrata.records.tracking import require

_logger = logging.getLogger(__name__)


def build_run(experiment: Experiment) -> RunSetup:
    """Everything that a run needs. What can be checked without data is checked first.

    Raises:
        InputError: When something that the experiment names does not exist or does not fit.
    """
    participation = participation_of(experiment)
    _check_before_data(experiment, participation)
    dataset, own_test = read_samples(experiment)
    _logger.info("data %s: %d samples of %s, %d classes", dataset.name, len(dataset), dataset.shape, dataset.classes)
    dataset = with_targets(experiment, dataset)
    partition = partition_of(experiment, dataset, own_test)
    dataset = prepared(experiment, dataset, partition)
    network = network_of(experiment, dataset.shape, dataset.outputs)
    refuse_single_samples(experiment, network)
    server = server_setup(experiment, problem_of(experiment, network), participation)
    layout = server.problem.layout
    check_group_probes(experiment, truth_known=partition.truth is not None)
    warnings = (
        *data_warnings(RunData(experiment, dataset, partition, own_test)),
        *_network_warnings(experiment, network),
        *_cohort_warnings(server.algorithm, participation),
    )
    names = partition.names or tuple(map(str, range(experiment.data.clients)))
    truth = None if partition.truth is None else torch.from_numpy(partition.truth)
    byzantine = byzantine_clients(experiment, layout, truth)
    dataset, partition, trigger = attacked_data(experiment, dataset, partition, byzantine)
    objective = weighted_objective(dataset, partition, server.objective)
    spec = replace(_spec(experiment, network, dataset, partition, participation), objective=objective)
    sizes = _sizes(spec.client_data, 0)
    _logger.info("%d clients with %d to %d training samples", len(sizes), min(sizes), max(sizes))
    participation = _weighted(participation, experiment, spec.client_data)
    registry.require_repeatable(spec, server.problem.training)
    engine, why = _engine(experiment, spec, participation, server.problem.training)
    _logger.info("engine %s on %s, model of %d parameters", engine.name, engine.device, layout.p)
    clients = ENGINES[engine.name](spec, engine.device, engine.workers, engine.timeout)
    public = public_samples(experiment, dataset, partition)
    normalised = None if public is None else dataset.normalise(public)
    predict = objective.predictor(clients.outputs)
    problem = replace(server.problem, truth=truth, public=normalised, predict=predict)
    inputs = inputs_line(dataset)
    choices = {
        "engine": why,
        "network": f"{experiment.model.name}, {layout.p:,} parameters"
        + (f" beside a frozen base of digest {layout.frozen}" if layout.frozen else ""),
        "inputs": inputs,
        "classes": classes_line(experiment, dataset, objective),
    }
    return RunSetup(
        server=replace(server, problem=problem, participation=participation, objective=objective),
        clients=clients,
        client_data=spec.client_data,
        network=network,
        engine=engine,
        names=names,
        warnings=warnings,
        public=public,
        inputs=inputs,
        choices=tuple(f"{name}: {text}" for name, text in choices.items() if text),
        byzantine=byzantine,
        trigger=trigger,
    )


def _check_before_data(experiment: Experiment, participation: Participation) -> None:
    """Refuse what cannot run, before any sample is read; of data whose form is known, also what does not fit them."""
    # Both refuse keys that do not go together.
    experiment.algorithm_of()
    experiment.personal_of()
    resolve_engine(experiment.engine.name, experiment.engine.device)
    registry.check_tf32(experiment.engine.precision, experiment.engine.device)
    check_attack(experiment)
    require(experiment.records.track)
    info = data.find(experiment.data.name, experiment.data.root).info
    if info is not None:
        outputs = objective_of(experiment).outputs_of_classes(info.classes)
        network = network_of(experiment, info.shape, outputs)
        server_setup(experiment, problem_of(experiment, network), participation)


def on_same_clients(setup: RunSetup, experiment: Experiment) -> RunSetup:
    """The setup of another experiment with the same clients, data and network.

    Args:
        setup: What was built from the first experiment.
        experiment: One that differs in algorithm, personal models, local training, server, cohort, network, privacy and
            probes at most.

    Raises:
        ExperimentError: When its networks learn something else, which the clients of the first do not compute.
    """
    objective = objective_of(experiment)
    own = setup.server.objective
    if objective.balanced and own.balanced:
        objective = own
    for key in ("loss", "metric", "transform", "class_weights"):
        expected = getattr(own, key)
        if getattr(objective, key) != expected:
            raise ExperimentError(
                f"local.{key} = {shown(getattr(objective, key))}: expected {shown(expected)}, as in the other runs, "
                "with which it shares its clients; run it on its own"
            )
    assert setup.network is not None  # these clients are simulated
    problem = problem_of(experiment, setup.network)
    known = setup.server.problem
    check_group_probes(experiment, truth_known=known.truth is not None)
    problem = replace(problem, truth=known.truth, public=known.public, predict=known.predict)
    participation = _weighted(participation_of(experiment), experiment, setup.client_data)
    server = replace(server_setup(experiment, problem, participation), objective=objective)
    return replace(setup, server=server)


def _sizes(client_data: ClientData, round: int) -> list[int]:
    """The training samples of each client in a round."""
    return [len(client_data.train(client, round=round)) for client in range(len(client_data))]


def _weighted(participation: Participation, experiment: Experiment, client_data: ClientData) -> Participation:
    """Who takes part, with the weights that the experiment samples by."""
    return replace(participation, weights=sampling_weights(experiment.cohort, partial(_sizes, client_data)))


def _network_warnings(experiment: Experiment, network: NetworkMaker) -> tuple[str, ...]:
    """What looks wrong with a network of the user's own."""
    if experiment.model.name in MODELS:
        return ()
    made = network()
    samples = torch.zeros(2, *network.kind.inputs, dtype=torch.int64 if network.kind.tokens else torch.float32)
    warning = head_warning(made, layout_of(made), samples)
    return () if warning is None else (warning,)


def _cohort_warnings(algorithm: Algorithm[Any], participation: Participation) -> tuple[str, ...]:
    """What cannot happen with so few clients in a round."""
    least = getattr(algorithm, "min_split", 0)
    selected = cohort_size(participation.clients, participation.fraction)
    if selected >= least:
        return ()
    return (
        f"algorithm.min_split = {least}: {selected} clients are selected in a round, so that no cluster is ever split; "
        "with a lower min_split, clients that are alike are often split by chance",
    )


def _spec(
    experiment: Experiment,
    network: NetworkMaker,
    dataset: data.Dataset,
    partition: Partition,
    participation: Participation,
) -> SimulationSpec:
    """What the engine is made of."""
    # Of the columns, only the one that marks independent units is still needed.
    columns = {} if dataset.unit is None else {dataset.unit: dataset.columns[dataset.unit]}
    return SimulationSpec(
        network,
        replace(dataset, columns=columns).channels_last(),
        partition,
        experiment.seed,
        participation.handovers,
        experiment.engine.precision,
        objective_of(experiment),
    )


def _engine(
    experiment: Experiment, spec: SimulationSpec, participation: Participation, training: LocalTraining
) -> tuple[EngineTable, str]:
    """The engine with "auto" resolved, and the reason for the choice."""
    wanted = experiment.engine
    why = ""
    name, device = resolve_engine(wanted.name, wanted.device)
    if name == "auto":
        cohort = participation.sample(1).cohort
        candidates = registry.engine_candidates(spec, wanted.workers, device, wanted.timeout)
        chosen, why = registry.choose_engine(spec, candidates, training, cohort, experiment.rounds)
        name = chosen.name
        device = chosen.device
    return wanted.model_copy(update={"name": name, "device": device}), why
